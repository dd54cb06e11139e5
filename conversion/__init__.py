"""Conversion between the original checkpoints and folders of transformers; installed as `hf_elmo.conversion`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check_folder import VerificationReport, verify_folder
    from .convert import convert_checkpoint
    from .errors import ConversionError
    from .export import export_checkpoint
    from .hub_errors import PushError
    from .push import PushReport, push_folder
    from .report import ConversionReport

__all__ = [
    "ConversionError",
    "ConversionReport",
    "PushError",
    "PushReport",
    "VerificationReport",
    "convert_checkpoint",
    "export_checkpoint",
    "push_folder",
    "verify_folder",
]

HOMES = {
    "ConversionError": "errors",
    "ConversionReport": "report",
    "PushError": "hub_errors",
    "PushReport": "push",
    "VerificationReport": "check_folder",
    "convert_checkpoint": "convert",
    "export_checkpoint": "export",
    "push_folder": "push",
    "verify_folder": "check_folder",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that the package stays light."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)

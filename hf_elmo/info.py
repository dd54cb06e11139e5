"""What runs on this machine, and why: the fast paths, for no model in particular or for one."""

import platform
from collections import Counter
from dataclasses import dataclass

import torch
import transformers

from ._version import __version__
from .character_encoder_elmo import ElmoCharacterEncoder
from .fast_paths_elmo import FAST_PATHS, VARIABLE, is_enabled
from .lstm_elmo import ElmoLstm
from .modeling_elmo import ElmoPreTrainedModel
from .packed_weights_elmo import why_not_onednn_tanh, why_not_packable, why_not_packed


@dataclass(frozen=True)
class Fact:
    """A line of the report.

    Attributes:
        name: What it is about.
        value: What holds.
        reason: Why, where that is not plain.
    """

    name: str
    value: str
    reason: str = ""


def environment_facts() -> list[Fact]:
    """Versions, threads, devices."""
    devices = [f"GPU {number}: {torch.cuda.get_device_name(number)}" for number in range(torch.cuda.device_count())]
    return [
        Fact("hf_elmo", __version__, f"Python {platform.python_version()}, transformers {transformers.__version__}"),
        Fact("torch", torch.__version__, f"CPU capability {torch.backends.cpu.get_cpu_capability()}"),
        Fact("threads", str(torch.get_num_threads()), "torch.set_num_threads changes it; hf_elmo never does"),
        Fact("devices", ", ".join(["CPU", *devices])),
    ]


def fast_path_facts() -> list[Fact]:
    """Which fast paths are on, and which of oneDNN's operators work here."""
    facts = []
    for name, purpose in FAST_PATHS.items():
        facts.append(Fact(name, "on" if is_enabled(name) else f"off ({VARIABLE})", purpose))
    for dtype in (torch.float32, torch.bfloat16):
        reason = why_not_packed(dtype)
        name = f"oneDNN's packed product, {str(dtype).removeprefix('torch.')}"
        facts.append(Fact(name, *_verdict(reason, "tried here, gives the numbers of the plain product")))
    facts.append(Fact("oneDNN's tanh", *_verdict(why_not_onednn_tanh(), "tried here, gives the numbers of torch's")))
    return facts


@torch.no_grad()
def model_facts(model: ElmoPreTrainedModel) -> list[Fact]:
    """What a model runs through when it is called without gradients."""
    lstms = [module for module in model.modules() if isinstance(module, ElmoLstm)]
    encoder = next(module for module in model.modules() if isinstance(module, ElmoCharacterEncoder))
    weight = lstms[0].recurrent_gates.weight
    matrices = [
        linear.weight for lstm in lstms for linear in (lstm.input_gates, lstm.recurrent_gates, lstm.projection)
    ]
    not_fused = lstms[0].why_not_fused()
    step_by_step = None if not_fused is None else "the recurrence goes step by step"
    against = [why_not_packable(matrix) or step_by_step for matrix in matrices]
    packed = [matrix for matrix, reason in zip(matrices, against, strict=True) if reason is None]
    reasons = Counter(reason for reason in against if reason)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    copies = sum(matrix.numel() * matrix.element_size() for matrix in packed)
    return [
        Fact("weights", f"{size / 2**20:.0f} MiB", f"{str(weight.dtype).removeprefix('torch.')} on {weight.device}"),
        Fact("recurrence", *_verdict(not_fused, "few passes over the memory", "fused", "step by step")),
        Fact(
            "products of the LSTMs",
            f"{len(packed)} of {len(matrices)} matrices packed" if packed else "plain",
            "; ".join(reasons) or f"{copies / 2**20:.0f} MiB for the copies, from the first call on",
        ),
        Fact("token layer", *_verdict(encoder.why_not_direct(), "weights used directly", "fused", "step by step")),
        Fact("cache of words", *_verdict(encoder.why_not_cached(), "for calls without gradients", "on", "off")),
    ]


def _verdict(reason_against: str | None, reason_for: str, yes: str = "yes", no: str = "no") -> tuple[str, str]:
    return (yes, reason_for) if reason_against is None else (no, reason_against)


__all__ = ["Fact", "environment_facts", "fast_path_facts", "model_facts"]

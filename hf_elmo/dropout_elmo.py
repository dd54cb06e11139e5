"""Dropout, with masks that a CPU draws quickly: torch draws one number after the other there."""

import torch
from torch import nn

from .fast_paths_elmo import is_enabled, why_not_opaque

# Random bits of a number, so that dropout comes in multiples of 1 / 65,536.
BITS = 16
NUMBERS = 1 << BITS


def apply_dropout(values: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """As `torch.nn.functional.dropout`; on a CPU p is rounded to a multiple of 1 / 65,536.

    Both draw from torch's generator of the device, but other masks from the same seed.

    Args:
        values: Any shape.
        p: The probability of 0, from 0 to 1.
        training: Whether to drop anything.
    """
    dropped = round(p * NUMBERS)
    if not training or not 0 < dropped < NUMBERS or not _draws_bits(values):
        return nn.functional.dropout(values, p, training)
    kept = _random_numbers(values.shape) >= dropped - NUMBERS // 2
    return values * (kept * values.new_tensor(NUMBERS / (NUMBERS - dropped)))


class ElmoDropout(nn.Dropout):
    """As `torch.nn.Dropout`, through `apply_dropout`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drops numbers in training."""
        return apply_dropout(input, self.p, self.training)


def _draws_bits(values: torch.Tensor) -> bool:
    is_eager = not torch.compiler.is_compiling() and is_enabled("dropout_from_bits") and why_not_opaque() is None
    return is_eager and values.device.type == "cpu" and values.is_floating_point()


def _random_numbers(shape: torch.Size) -> torch.Tensor:
    """All whole numbers of `BITS` bits, each as likely as the others."""
    count = shape.numel()
    whole = torch.iinfo(torch.int64)
    words = torch.empty(-(-count * BITS // whole.bits), dtype=torch.int64, device="cpu").random_(whole.min, None)
    return words.view(torch.int16)[:count].view(shape)


__all__ = ["ElmoDropout", "apply_dropout"]

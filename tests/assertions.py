"""Assertions shared by the tests: each says what differs, where, and by how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# What two float32 implementations of the same weights may differ by; a wrong conversion shows at 0.1 and more.
PARITY_TOLERANCE = 5e-5


def as_array(values: Any) -> np.ndarray:
    """A NumPy array of a tensor (floating-point ones in at least float32) or of anything array-like."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype in (torch.float16, torch.bfloat16) else values).numpy()
    return np.asarray(values)


def assert_close(actual: Any, expected: Any, tolerance: float = PARITY_TOLERANCE, what: str = "values") -> float:
    """Asserts equal shapes, no NaN and an absolute difference of at most `tolerance`; returns the largest one."""
    ours, theirs = as_array(actual).astype(np.float64), as_array(expected).astype(np.float64)
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, expected {theirs.shape}"
    assert np.isfinite(theirs).all(), f"{what}: the expected values are not finite"
    assert np.isfinite(ours).all(), f"{what}: not finite at {tuple(map(int, np.argwhere(~np.isfinite(ours))[0]))}"
    if ours.size == 0:
        return 0.0
    difference = np.abs(ours - theirs)
    where = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    largest = float(difference[where])
    assert largest <= tolerance, (
        f"{what}: largest difference {largest:.3g} at {where} (got {ours[where]:.6g}, expected {theirs[where]:.6g}), "
        f"{int((difference > tolerance).sum())} of {difference.size} beyond {tolerance:g}"
    )
    return largest


def assert_far(actual: Any, expected: Any, least: float, what: str = "values") -> float:
    """Asserts that two arrays differ somewhere by at least `least`; returns the largest difference."""
    difference = np.abs(as_array(actual).astype(np.float64) - as_array(expected).astype(np.float64))
    largest = float(difference.max())
    assert largest >= least, f"{what}: the largest difference is only {largest:.3g}, expected at least {least:g}"
    return largest


def assert_identical(actual: Any, expected: Any, what: str = "values") -> None:
    """Asserts equal shapes and equal values, bit for bit."""
    ours, theirs = as_array(actual), as_array(expected)
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, expected {theirs.shape}"
    different = np.argwhere(ours != theirs)
    assert len(different) == 0, (
        f"{what}: {len(different)} of {ours.size} differ, first at {tuple(map(int, different[0]))}: "
        f"got {ours[tuple(different[0])]}, expected {theirs[tuple(different[0])]}"
    )


def assert_relative(actual: float, expected: float, relative: float, floor: float, what: str = "value") -> float:
    """Asserts |actual - expected| <= relative * max(|expected|, floor); returns their ratio."""
    error = abs(actual - expected) / max(abs(expected), floor)
    assert error <= relative, f"{what}: got {actual:.12g}, expected {expected:.12g}, relative error {error:.3g}"
    return error


def assert_zero_at_padding(output: torch.Tensor, attention_mask: torch.Tensor, what: str = "output") -> None:
    """Asserts that an output (batch, seq, dim) is exactly 0 wherever the mask (batch, seq) is 0."""
    padded = output[attention_mask == 0]
    assert not padded.any(), f"{what}: {int(padded.ne(0).sum())} values at padding are not zero"

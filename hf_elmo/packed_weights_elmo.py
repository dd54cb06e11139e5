"""Products with weight matrices that are laid out once for oneDNN's kernels, and oneDNN's tanh.

A plain product of few rows spends most of its time on the layout of the weight: 32 rows by 512 x 16384 take half of
the time or less when a copy of the weight is packed beforehand. The operators are those that torch's own compiler
emits. They are private, so they are tried on small examples first, and the ordinary ones take over where they are
missing, fail, or give other numbers.

A copy is used only for the weight that it was made of. The version of a tensor tells of most changes, but not of those
through `.data` (merging LoRA) or shared memory, so that sums over the whole content are compared too, at each forward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from .fast_paths_elmo import is_enabled
from .locks_elmo import ProcessLock

# A copy does not pay for matrices of fewer numbers, nor oneDNN's tanh for fewer.
SMALLEST_MATRIX = 1 << 15
SMALLEST_TANH = 1 << 14
# Tensors of fewer numbers are compared number by number.
FEWEST_SUMMED = 1 << 12

Fingerprint = tuple[torch.Tensor, torch.Tensor]


@cache
def why_not_packed(dtype: torch.dtype) -> str | None:
    """Why the packed product is not used for a type on the CPU, or None where it is. It is tried once."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"oneDNN's packed product has no {str(dtype).removeprefix('torch.')}"
    generator = torch.Generator().manual_seed(0)
    inputs, weight, bias = (
        (torch.rand(shape, generator=generator, device="cpu") - 0.5).to(dtype) for shape in ((3, 33), (65, 33), (65,))
    )
    product = inputs.double() @ weight.double().T
    return _why_not(
        lambda: [_packed_product(inputs, _pack(weight), bias), _packed_product(inputs, _pack(weight))],
        [product + bias.double(), product],
        1e-5 if dtype == torch.float32 else 2e-2,
    )


@cache
def why_not_onednn_tanh() -> str | None:
    """Why oneDNN's tanh is not used on the CPU, or None where it is. It is tried once."""
    exponents = torch.arange(-30, 4, dtype=torch.float32, device="cpu")
    values = torch.cat([torch.linspace(-20, 20, 4001, dtype=torch.float32, device="cpu"), exponents.exp2()])
    return _why_not(lambda: [_onednn_tanh(values)], [values.double().tanh()], 5e-7)


def _why_not(attempt: Callable[[], list[torch.Tensor]], expected: list[torch.Tensor], tolerance: float) -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    try:
        with torch.no_grad():
            found = attempt()
    except Exception as error:  # whatever a private operator of another version may raise
        return f"torch {torch.__version__} lacks oneDNN's operators, or they fail: {str(error).splitlines()[0]}"
    if all(
        a.shape == b.shape and torch.allclose(a.double(), b, rtol=tolerance, atol=tolerance)
        for a, b in zip(found, expected, strict=True)
    ):
        return None
    return f"oneDNN's operators in torch {torch.__version__} give other numbers than expected"


@torch.inference_mode(False)
def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())


def _packed_product(inputs: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")


def _onednn_tanh(values: torch.Tensor) -> torch.Tensor:
    return values.to_mkldnn().tanh_().to_dense()


def tanh(values: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent without gradient, to float rounding: oneDNN's takes a third of the time of torch's."""
    if (
        values.numel() >= SMALLEST_TANH
        and values.dtype == torch.float32
        and values.device.type == "cpu"
        and is_enabled("packed_weights")
        and why_not_onednn_tanh() is None
    ):
        return _onednn_tanh(values)
    return values.tanh()


def why_not_packable(weight: torch.Tensor, dtype: torch.dtype | None = None) -> str | None:
    """Why a matrix gets no packed copy, in its own type or another, or None where it gets one."""
    if not is_enabled("packed_weights"):
        return "packed weights are switched off"
    if weight.device.type != "cpu":
        return "packed weights are for the CPU"
    if weight.numel() < SMALLEST_MATRIX:
        return "the matrices are too small for it to pay"
    return why_not_packed(dtype or weight.dtype)


class WeightWatch:
    """Notices that tensors are no longer what they were, whatever way they were changed in."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._identities: list[tuple[Any, ...]] | None = None
        self._fingerprints: list[Fingerprint] = []

    def __reduce__(self) -> tuple[type["WeightWatch"], tuple[()]]:
        return WeightWatch, ()

    @contextmanager
    def changes(self, *tensors: torch.Tensor) -> Iterator[bool]:
        """Whether these are other tensors, or hold other numbers, than the last time.

        What was made of the tensors is renewed under `with`. Meanwhile no other thread finds them unchanged and takes
        what is old; and where the work is cut off by an error or an interrupt, they count as changed the next time.
        """
        with self._lock.of_this_process():
            identities = [_identity(tensor) for tensor in tensors]
            fingerprints = [_fingerprint(tensor) for tensor in tensors]
            unchanged = identities == self._identities and all(
                torch.equal(new, old)
                for new_sums, old_sums in zip(fingerprints, self._fingerprints, strict=True)
                for new, old in zip(new_sums, old_sums, strict=True)
            )
            self._identities = None
            yield not unchanged
            self._fingerprints = fingerprints
            self._identities = identities  # last, for a process that is forked meanwhile


class PackedWeight:
    """A packed copy of a matrix that changes now and then.

    The copy is no part of a state dict, and is neither copied nor pickled with the module that keeps it.
    """

    def __init__(self) -> None:
        self._packed: torch.Tensor | None = None
        self._watch = WeightWatch()

    def __reduce__(self) -> tuple[type["PackedWeight"], tuple[()]]:
        return PackedWeight, ()

    @property
    def is_packed(self) -> bool:
        """Whether there is a copy."""
        return self._packed is not None

    def update(self, weight: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        """Makes the copy one of the weight (out, in) as it is now, or drops it where it cannot be used.

        Args:
            weight: The weight.
            dtype: The type of the copy, by default that of the weight.
        """
        if why_not_packable(weight, dtype) is not None:
            self._packed = None
        else:
            with self._watch.changes(weight) as has_changed:
                self.renew(weight, has_changed, dtype)

    def renew(self, weight: torch.Tensor, has_changed: bool, dtype: torch.dtype | None = None) -> None:
        """`update` where the weight is watched already."""
        dtype = dtype or weight.dtype
        if why_not_packable(weight, dtype) is not None:
            self._packed = None
        elif has_changed or self._packed is None or self._packed.dtype != dtype:
            self._packed = None  # before the new one is made: never two at a time
            self._packed = _pack(weight.to(dtype))

    def drop(self) -> None:
        """Frees the copy."""
        self._packed = None

    def product(
        self,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        limit: float | None = None,
    ) -> torch.Tensor:
        """inputs @ weight.T + bias without gradient, after `update(weight)`.

        Args:
            inputs: Shape (rows, in).
            weight: Shape (out, in), of the type of the inputs or, where there is a copy, of any.
            bias: Shape (out,), or None.
            limit: The bound that the result is clipped to, or None.

        Returns:
            New memory of shape (rows, out).
        """
        packed = self._packed
        if packed is None or packed.dtype != inputs.dtype:  # another thread may want another type
            product = nn.functional.linear(inputs, weight.to(inputs.dtype), bias)
        else:
            product = _packed_product(inputs, packed, bias)
        # oneDNN could clip too, but makes a bound of what is no number.
        return product if limit is None else product.clamp_(-limit, limit)


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _fingerprint(weight: torch.Tensor) -> Fingerprint:
    """Sums of the bits, 8 bytes at a time, and the numbers at both ends that fill no sum.

    A sum ends a little before a row does, so that rows or columns that change places show too.
    """
    flat = weight.detach().reshape(-1)
    if len(flat) < FEWEST_SUMMED:
        return flat.clone(), flat[:0]
    numbers = 8 // flat.element_size()
    stride = max(2, weight[0].numel() // numbers - 1)
    first = -flat.storage_offset() % numbers
    summed = (len(flat) - first) // (numbers * stride) * (numbers * stride)
    bits = flat[first : first + summed].view(torch.int64)
    return bits.view(-1, stride).sum(dim=1), torch.cat([flat[:first], flat[first + summed :]])


__all__ = ["PackedWeight", "WeightWatch", "tanh", "why_not_packable"]

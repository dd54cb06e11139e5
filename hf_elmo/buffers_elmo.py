"""Memory of large tensors that is used again.

A training step takes some hundred megabytes for what it computes on the way, and the system hands out, and clears, new
pages for them each time, which takes up to a tenth of the step. So the memory is kept for the next tensor as soon as
nothing refers to the one before.
"""

import math
import weakref

import numpy as np
import torch

from .fast_paths_elmo import is_enabled
from .locks_elmo import ProcessLock

# Smaller tensors are left to torch.
SMALLEST_BYTES = 1 << 20
# Memory that is kept while nothing uses it.
LARGEST_BYTES = 512 << 20
# Calls without gradients, of one layer each, after which it is given back. A few may come between training steps.
MOST_IDLE_CALLS = 64
# Torch's own tensors start at multiples of this.
ALIGNMENT = 64


class Buffers:
    """A bounded store of memory that no tensor uses at the moment."""

    def __init__(self) -> None:
        self._free: dict[int, np.ndarray] = {}
        self._idle_calls = 0
        self._lock = ProcessLock()

    @property
    def free_bytes(self) -> int:
        """The memory that is kept."""
        return sum(block.nbytes for block in list(self._free.values()))

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """`like.new_empty(shape)`, on the CPU in memory that was used before where there is some.

        The memory is free again when the last tensor that shares it is gone, so that it is safe to save it for a
        backward pass; but it must not be given to users, who might keep it, and all the rest of it, for long.
        """
        size = math.prod(shape) * like.element_size()
        if size < SMALLEST_BYTES or like.device.type != "cpu" or not is_enabled("reused_buffers"):
            return like.new_empty(shape)
        self._idle_calls = 0
        block = self._take(size + ALIGNMENT)
        first = -block.ctypes.data % ALIGNMENT
        lease = block[first : first + size]  # torch refers to this view as long as any tensor needs it
        weakref.finalize(lease, self._give_back, block).atexit = False
        return torch.from_numpy(lease).view(like.dtype).view(shape)

    def idle(self) -> None:
        """Tells of a call that needs none of it; after many in a row what is kept is freed."""
        self._idle_calls += 1
        if self._idle_calls > MOST_IDLE_CALLS:
            self._free.clear()

    def _take(self, size: int) -> np.ndarray:
        with self._lock.of_this_process():
            # At most twice as large, so that large memory is not spent on small tensors.
            near = [block for block in list(self._free.values()) if size <= 2 * len(block) and len(block) <= 2 * size]
            near.sort(key=len)
            fitting = next((block for block in near if size <= len(block)), None)
            if near:  # a new one takes the place of one that is too small
                self._free.pop(id(near[-1] if fitting is None else fitting), None)
        return np.empty(size, np.uint8) if fitting is None else fitting

    def _give_back(self, block: np.ndarray) -> None:
        # Without the lock, because this may run anywhere, also inside of `_take`.
        if self.free_bytes + block.nbytes <= LARGEST_BYTES:
            self._free[id(block)] = block


buffers = Buffers()

__all__ = ["Buffers", "buffers"]

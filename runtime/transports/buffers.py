"""Memory for what arrives: aligned so that devices take it over, and used again once nothing looks
at it any more.

Fresh memory of the system costs a page fault every few KiB, which is as slow as copying; a step
receives the same sizes as the one before. An array from `take` belongs to whoever holds it (XLA,
too, keeps the arrays that it aliases); when the last view is gone, its memory comes back by itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np

ALIGNMENT = 64  # what XLA wants of memory that it is to alias
# Below this the allocator's own lists do as well, and a device copies it faster than somebody asks
# whether it is aligned.
_POOLED_BYTES = 1 << 16
# Sizes are rounded up to pages, so that nearly equal ones share memory.
_PAGE = 4096


class _Block:
    """Memory on loan; numpy keeps the block as the base of all views, so its end is theirs."""

    __slots__ = ("__array_interface__", "_memory", "_returns")

    def __init__(self, memory: np.ndarray, returns: SimpleQueue[np.ndarray]) -> None:
        self._memory, self._returns = memory, returns
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._returns.put(self._memory)


class BufferPool:
    """Any thread may take. Free memory is kept up to what was in use at the most, the longest
    unused goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Its `put` may run anywhere, inside `take` as well.
        self._returns: SimpleQueue[np.ndarray] = SimpleQueue()
        # By size, the longest unused size first.
        self._free: OrderedDict[int, list[np.ndarray]] = OrderedDict()
        self.free_bytes = 0
        self.used_bytes = 0
        self.peak_bytes = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A C-contiguous array of unknown contents whose memory nobody else looks at; aligned, but
        for small ones."""
        bytes = prod(shape) * dtype.itemsize
        if bytes < _POOLED_BYTES:
            return np.empty(shape, dtype)
        size = -(-bytes // _PAGE) * _PAGE
        with self._lock:
            self._collect()
            kept = self._free.get(size)
            memory = kept.pop() if kept else None
            self.free_bytes -= size if memory is not None else 0
            self.used_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self._evict()
        block = _Block(_aligned(size) if memory is None else memory, self._returns)
        return np.asarray(block)[:bytes].view(dtype).reshape(shape)

    def _collect(self) -> None:
        while not self._returns.empty():
            memory = self._returns.get()
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._free.move_to_end(memory.nbytes)
            self.free_bytes += memory.nbytes
            self.used_bytes -= memory.nbytes

    def _evict(self) -> None:
        while self.free_bytes > self.peak_bytes:
            size, kept = next(iter(self._free.items()))
            if kept:
                kept.pop()
                self.free_bytes -= size
            if not kept:
                del self._free[size]


def _aligned(bytes: int) -> np.ndarray:
    memory = np.empty(bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + bytes]


def pays_to_keep(array: np.ndarray) -> bool:
    """Whether a device can take the array over as it is, and that is less work than a copy."""
    return (
        array.nbytes >= _POOLED_BYTES
        and array.flags.c_contiguous
        and array.__array_interface__["data"][0] % ALIGNMENT == 0
    )

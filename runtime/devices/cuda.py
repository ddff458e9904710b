"""Memory and streams of GPUs, as cupy gives them: shards of XLA seen without a copy, and memory
that becomes shards.

Nothing here waits on the host. A stream waits for what computes a shard (`__dlpack__` says so to
XLA); and XLA waits for a stream by an event, when it takes memory over."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np

from shardopt.runtime.devices.dlpack import CUDA, capsule
from shardopt.support.errors import UserError

# Bytes are moved in words of the size of an element, whatever it means. No integer has 16 bytes;
# copies leave the bits of a complex number alone.
_WORDS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}
# So many blocks of a size may be read still while others are taken: more memory, or the host waits.
_STILL_READ = 2
Stream = Any
Words = Any  # an array of cupy


def load_cupy() -> Any:
    """Raises UserError where cupy, or the driver that it needs, is missing."""
    try:
        cupy = import_module("cupy")
        import_module("cupy.cuda.nccl")
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # a missing driver has many faces
        raise UserError(f"the transport 'nccl' needs cupy with NCCL, and GPUs: {error}") from error
    return cupy


class Cuda:
    """What is done with the GPU `ordinal` of this machine. `last_run` gives what the last
    dispatched RUN can be awaited by, or None: memory that comes back may still be read by it."""

    kind = CUDA

    def __init__(self, cupy: Any, ordinal: int, last_run: Callable[[], Any] = lambda: None) -> None:
        self.cupy, self.ordinal = cupy, ordinal
        self._last_run = last_run
        self._free: dict[int, deque[_Memory]] = {}
        self._returns: SimpleQueue[_Memory] = SimpleQueue()  # its `put` may run anywhere
        self._lock = threading.Lock()

    def here(self) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = self.cupy.cuda.Device(self.ordinal)
        return device

    def stream(self) -> Stream:
        """One that waits for no other."""
        with self.here():
            return self.cupy.cuda.Stream(non_blocking=True)

    def event(self, stream: Stream) -> Any:
        """All that the stream was given so far."""
        with self.here():
            # Events that keep times are slower to record and to wait for.
            return stream.record(self.cupy.cuda.Event(disable_timing=True))

    def view(self, shard: Any, stream: Stream) -> Words:
        """The words of a shard of XLA, which what is put on the stream from now on may read. Keeps
        the shard alive."""
        # The stream waits for whoever computes it, and nobody else does.
        ready = shard.__dlpack__(stream=stream.ptr)
        return self._words(
            shard.unsafe_buffer_pointer(), shard.shape, shard.dtype.itemsize, (shard, ready)
        )

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Words:
        """Words of unknown contents that nobody else looks at."""
        # Not 0: an empty shard needs an address as well.
        size = max(prod(shape) * dtype.itemsize, 1)
        with self._lock:
            while not self._returns.empty():
                returned = self._returns.get()
                self._free.setdefault(returned.size, deque()).append(returned)
            kept = self._free.setdefault(size, deque())
            # The one that has been back for longest.
            is_free = kept and (kept[0].read_by is None or len(kept) > _STILL_READ)
            block = kept.popleft() if is_free else None
        if block is None:
            with self.here():
                block = _Memory(self.cupy.cuda.alloc(size), size)
        elif block.read_by is not None:
            block.read_by.block_until_ready()  # of an earlier step, as a rule, and long done
        return self._words(
            block.memory.ptr, shape, dtype.itemsize, _Loan(block, self._returns, self._last_run)
        )

    def give(
        self, words: Words, dtype: np.dtype[Any], events: Sequence[Any], consumer: int | None
    ) -> Any:
        """A capsule with what is there after the events; `consumer`, the pointer of a stream, waits
        for them, or the host does where the consumer has no streams."""
        with self.here():
            for event in events:
                if consumer is None:
                    event.synchronize()
                else:
                    self.cupy.cuda.ExternalStream(consumer, self.ordinal).wait_event(event)
        return capsule(words.data.ptr, words.shape, dtype, (self.kind, self.ordinal), words)

    def compact(self, words: Words, stream: Stream) -> Words:
        """The same in one run of memory: as it is, or copied by a kernel on the stream."""
        if words.flags.c_contiguous:
            return words
        with self.here(), stream:
            return self.cupy.ascontiguousarray(words)

    def empty_like(self, words: Words, stream: Stream) -> Words:
        """One run of memory of the same shape, for use on the stream."""
        with self.here(), stream:
            return self.cupy.empty(words.shape, words.dtype)

    def write(self, target: Words, source: Words, stream: Stream) -> None:
        """Copy on the stream, which is of the GPU that both are on."""
        with self.here(), stream:
            target[...] = source

    def fetch(self, target: Words, source: Words, stream: Stream) -> None:
        """Copy one run of memory, maybe of another GPU, to one on this."""
        with self.here():
            target.data.copy_from_device_async(source.data, source.nbytes, stream)

    def _words(self, pointer: int, shape: Sequence[int], itemsize: int, owner: Any) -> Words:
        cuda, size = self.cupy.cuda, max(prod(shape) * itemsize, 1)
        memory = cuda.UnownedMemory(pointer, size, owner, self.ordinal)
        return self.cupy.ndarray(
            tuple(shape), _WORDS[itemsize], memptr=cuda.MemoryPointer(memory, 0)
        )


class _Memory:
    """`read_by` is the last RUN that may have been reading it when it came back."""

    def __init__(self, memory: Any, size: int) -> None:
        self.memory, self.size = memory, size
        self.read_by: Any = None


class _Loan:
    """The owner of views of memory: its end is theirs."""

    def __init__(
        self, memory: _Memory, returns: SimpleQueue[_Memory], last_run: Callable[[], Any]
    ) -> None:
        self._memory, self._returns, self._last_run = memory, returns, last_run

    def __del__(self) -> None:
        self._memory.read_by = self._last_run()
        self._returns.put(self._memory)

"""cupy and NCCL on host memory, with streams that do nothing until somebody waits, and then in any
allowed order.

What a stream was given runs in order; which stream goes on is drawn by chance. A group of sends and
receives is one operation of its stream: a piece moves when the group of its other end has come to
the head of its stream, too, and never before, and the next operation follows when all have moved.
Memory that is let go is
overwritten at once, or, if it was taken for a stream, when that stream comes to it: whoever still
reads it then reads garbage."""

from __future__ import annotations

import ctypes
import random
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardopt.runtime.transports.buffers import BufferPool

GARBAGE = 0xDD
PATIENCE_SECONDS = 20.0


class Op:
    def __init__(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.run, self.ready = run, ready


class World:
    """All streams of all devices, and all communicators."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self.streams: dict[int, Stream] = {}
        self.numbers = count(1000)
        # Of each communicator, the groups of each rank that are under way.
        self.comms: dict[tuple[int, ...], dict[int, deque[Group]]] = defaultdict(
            lambda: defaultdict(deque)
        )
        self.members: dict[tuple[int, ...], set[int]] = defaultdict(set)
        self.pool, self.graves = BufferPool(), []  # type: ignore[var-annotated]
        self.local = threading.local()
        self.groups: list[list[tuple[str, int]]] = []  # what each group did: (operation, bytes)
        self.host_waits = 0

    def progress(self) -> bool:
        """One operation, if any can run."""
        with self.lock:
            heads = [each for each in self.streams.values() if each.ops and each.ops[0].ready()]
            if not heads:
                return False
            stream = self.random.choice(heads)
            op = stream.ops[0]
            op.run()
            if not isinstance(op, Group):
                stream.ops.popleft()
            # A piece that moved may have been the last of its other end, too.
            for each in self.streams.values():
                while each.ops and isinstance(each.ops[0], Group) and each.ops[0].is_over:
                    each.ops.popleft().leave()  # type: ignore[attr-defined]
            return True

    def until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if not self.progress():
                assert time.monotonic() < limit, "all streams wait for each other"
                time.sleep(1e-4)

    @property
    def stream(self) -> Stream | None:
        stack = getattr(self.local, "stack", [])
        return stack[-1] if stack else None


class Stream:
    def __init__(self, world: World, device: int) -> None:
        self.world, self.device = world, device
        self.ptr = next(world.numbers)
        self.ops: deque[Op] = deque()
        world.streams[self.ptr] = self

    def __enter__(self) -> None:
        assert self.world.local.device == self.device, "a stream is used on its own device"
        self.world.local.stack = [*getattr(self.world.local, "stack", []), self]

    def __exit__(self, *_: object) -> None:
        self.world.local.stack.pop()

    def put(self, op: Op) -> None:
        with self.world.lock:
            self.ops.append(op)

    def record(self, event: Event) -> Event:
        self.put(Op(event.set))
        return event

    def wait_event(self, event: Event) -> None:
        self.put(Op(lambda: None, lambda: event.happened))


class Event:
    def __init__(self, world: World) -> None:
        self.world, self.happened = world, False

    def set(self) -> None:
        self.happened = True

    @property
    def done(self) -> bool:
        self.world.progress()
        return self.happened

    def synchronize(self) -> None:
        self.world.host_waits += 1
        self.world.until(lambda: self.happened)


class Memory:
    """Taken for a stream, or for none."""

    def __init__(self, world: World, size: int, stream: Stream | None) -> None:
        self.world, self.stream = world, stream
        self.bytes = world.pool.take((size,), np.dtype(np.uint8))
        self.bytes[...] = GARBAGE
        self.ptr = self.bytes.ctypes.data

    def __del__(self) -> None:
        self.world.graves.append(self.bytes)  # never anybody else's
        spoil = Op(lambda bytes=self.bytes: bytes.fill(GARBAGE))  # type: ignore[misc]
        if self.stream is None:
            spoil.run()
        else:
            self.stream.put(spoil)


class Pointer:
    def __init__(self, world: World, memory: Any, offset: int) -> None:
        self.world, self.memory, self.ptr = world, memory, memory.ptr + offset

    def copy_from_device_async(self, source: Pointer, size: int, stream: Stream) -> None:
        target, start = self.ptr, source.ptr
        stream.put(Op(lambda: ctypes.memmove(target, start, size) and None))  # type: ignore[func-returns-value]


class Array:
    """Of words; keeps its memory."""

    def __init__(self, world: World, pointer: Pointer, array: np.ndarray) -> None:
        self.world, self._pointer, self._array = world, pointer, array
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.flags = array.flags

    @property
    def data(self) -> Pointer:
        return Pointer(
            self.world, self._pointer.memory, self._array.ctypes.data - self._pointer.memory.ptr
        )

    def __getitem__(self, slices: Any) -> Array:
        return Array(self.world, self._pointer, self._array[slices])

    def __setitem__(self, slices: Any, value: Array) -> None:
        target, source = self._array[slices], value._array
        stream = self.world.stream
        assert stream is not None, "copies are put on a stream"
        stream.put(Op(lambda: np.copyto(target, source)))


class Group(Op):
    """The sends and receives of one rank in one group."""

    def __init__(self, comm: Communicator, stream: Stream) -> None:
        self.comm, self.stream = comm, stream
        self.pieces: list[tuple[str, int, int, int]] = []  # what, peer, address, bytes

    def ready(self) -> bool:  # type: ignore[override]
        return self.comm.aborted or any(self._mate(*piece[:2]) for piece in self.pieces)

    def run(self) -> None:  # type: ignore[override]
        if self.comm.aborted:
            self.pieces.clear()
            return
        what, peer = next(piece[:2] for piece in self.pieces if self._mate(*piece[:2]))
        mate = self._mate(what, peer)
        assert mate is not None
        mine, theirs = self._between(what, peer), mate._between(_OTHER[what], self.comm.rank)
        assert [each[3] for each in mine] == [each[3] for each in theirs], (
            "one message at both ends"
        )
        for (_, _, here, size), (_, _, there, _) in zip(mine, theirs, strict=True):
            source, target = (here, there) if what == "send" else (there, here)
            ctypes.memmove(target, source, size)
        self.pieces = [each for each in self.pieces if each not in mine]
        mate.pieces = [each for each in mate.pieces if each not in theirs]

    @property
    def is_over(self) -> bool:
        return not self.pieces

    def leave(self) -> None:
        self.comm.world.comms[self.comm.unique][self.comm.rank].remove(self)

    def _between(self, what: str, peer: int) -> list[tuple[str, int, int, int]]:
        return [each for each in self.pieces if each[:2] == (what, peer)]

    def _mate(self, what: str, peer: int) -> Group | None:
        """The group of the other end, where both are first on their streams and mean each other."""
        others = self.comm.world.comms[self.comm.unique][peer]
        if self.stream.ops[0] is not self or not others:
            return None
        mate = others[0]
        heads = mate.stream.ops[0] is mate
        return mate if heads and mate._between(_OTHER[what], self.comm.rank) else None


_OTHER = {"send": "recv", "recv": "send"}


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"NCCL_ERROR {status}")
        self.status = status


class Communicator:
    def __init__(self, world: World, size: int, unique: tuple[int, ...], rank: int) -> None:
        assert len(unique) == 128 and all(-128 <= each < 128 for each in unique)
        self.world, self.unique, self.rank, self.size = world, unique, rank, size
        self.aborted, self.error, self.stream = False, 0, 0
        with world.lock:
            assert rank not in world.members[unique], "one rank, one communicator"
            world.members[unique].add(rank)
        if getattr(world.local, "making", None) is None:
            self.await_others()
        else:
            world.local.making.append(self)

    def await_others(self) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while len(self.world.members[self.unique]) < self.size:  # as NCCL does: all ranks or none
            assert time.monotonic() < limit, "communicators are made in different orders"
            time.sleep(1e-4)

    def send(self, pointer: int, size: int, type_: int, peer: int, stream: int) -> None:
        self._post("send", pointer, size, peer, stream)

    def recv(self, pointer: int, size: int, type_: int, peer: int, stream: int) -> None:
        self._post("recv", pointer, size, peer, stream)

    def _post(self, what: str, pointer: int, size: int, peer: int, stream: int) -> None:
        assert 0 <= peer < self.size and (peer != self.rank or self.size == 1)
        assert self.stream in (0, stream), "a communicator has one stream at a rank"
        self.stream = stream
        assert self.world.local.device == self.world.streams[stream].device, (
            "the device of the communicator is current"
        )
        self.world.local.group.append((self, what, pointer, size, peer, stream))

    def check_async_error(self) -> None:
        if self.error:
            raise NcclError(self.error)

    def abort(self) -> None:
        self.aborted = True

    def destroy(self) -> None:
        with self.world.lock:
            assert not self.world.comms[self.unique][self.rank], "nothing is under way"


def _group_start(world: World) -> None:
    world.local.group, world.local.making = [], []


def _group_end(world: World) -> None:
    """One operation on the stream of each rank; communicators are there when all ranks are."""
    making, world.local.making = world.local.making, None
    for comm in making:
        comm.await_others()
    if not world.local.group:
        return
    groups: dict[int, Group] = {}
    with world.lock:
        world.groups.append([(what, size) for _, what, _, size, _, _ in world.local.group])
        for comm, what, pointer, size, peer, stream in world.local.group:
            if id(comm) not in groups:
                groups[id(comm)] = group = Group(comm, world.streams[stream])
                world.comms[comm.unique][comm.rank].append(group)
            groups[id(comm)].pieces.append((what, peer, pointer, size))
        for group in groups.values():
            group.stream.put(group)


def fake_cupy(world: World) -> Any:
    """What the runtime uses of the module."""

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            self.before = getattr(world.local, "device", None)
            world.local.device = self.number

        def __exit__(self, *_: object) -> None:
            world.local.device = self.before

    def stream(non_blocking: bool = False) -> Stream:
        assert non_blocking, "a stream that waits for the default one is none of its own"
        return Stream(world, world.local.device)

    def unowned(pointer: int, size: int, owner: Any, device: int) -> Any:
        return SimpleNamespace(ptr=pointer, size=size, owner=owner, device=device)

    def array(shape: tuple[int, ...], dtype: str, memptr: Pointer) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = (ctypes.c_uint8 * max(size, 1)).from_address(memptr.ptr)
        return Array(world, memptr, np.frombuffer(raw, np.uint8, size).view(dtype).reshape(shape))

    def empty(shape: tuple[int, ...], dtype: Any) -> Array:
        assert world.stream is not None
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        return array(shape, dtype, Pointer(world, Memory(world, size, world.stream), 0))

    def ascontiguousarray(source: Array) -> Array:
        copy = empty(source.shape, source.dtype)
        copy[...] = source
        return copy

    nccl = SimpleNamespace(
        NCCL_UINT8=1,
        NcclError=NcclError,
        get_unique_id=lambda: tuple(world.random.randrange(-128, 128) for _ in range(128)),
        NcclCommunicator=lambda size, unique, rank: Communicator(world, size, unique, rank),
        groupStart=lambda: _group_start(world),
        groupEnd=lambda: _group_end(world),
    )
    cuda = SimpleNamespace(
        Device=Device,
        Stream=stream,
        ExternalStream=lambda pointer, device: world.streams[pointer],
        Event=lambda disable_timing=False: Event(world),
        UnownedMemory=unowned,
        MemoryPointer=lambda memory, offset: Pointer(world, memory, offset),
        alloc=lambda size: Pointer(world, Memory(world, size, None), 0),
        nccl=nccl,
    )
    return SimpleNamespace(
        cuda=cuda, ndarray=array, empty=empty, ascontiguousarray=ascontiguousarray
    )


class Shard:
    """A shard of XLA on a GPU, which is computed on a stream of XLA's when that comes to it."""

    def __init__(self, world: World, contents: np.ndarray, stream: Stream) -> None:
        self._world = world
        self._memory = Memory(world, max(contents.nbytes, 1), None)
        self.shape, self.dtype = contents.shape, contents.dtype
        data, memory = np.frombuffer(contents.tobytes(), np.uint8), weakref.ref(self._memory)

        def compute() -> None:
            if current := memory():
                current.bytes[: data.size] = data

        self._event = Event(world)
        stream.put(Op(compute))
        stream.record(self._event)

    def __dlpack__(self, *, stream: int) -> Any:
        self._world.streams[stream].wait_event(self._event)
        return self._memory

    def unsafe_buffer_pointer(self) -> int:
        return self._memory.ptr

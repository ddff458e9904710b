"""Arrays through a stream socket: many pieces in one system call, none of them copied when that can
be helped.

What lies in one run of memory, or in long runs, goes straight to and from the system. Arrays of
short runs pass through a small buffer, part by part, while it is in the cache. A stream of many
small messages is read ahead (`ReadAhead`)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

Count: TypeAlias = Callable[[int], None]  # is told bytes as they come

_RUN_BYTES = 1 << 14  # a shorter run costs more in bookkeeping than its copy takes
_STAGE_BYTES = 1 << 19  # stays in the second-level cache
# Read in one call: a slow link is seen to move, and a fast one pays a call for milliseconds of it.
_TURN_BYTES = 1 << 24
_VECTORS = 512  # of at most 1024 that the system takes in one call
# Small: a copy costs less than its bookkeeping. As much of what has come in is read with the
# header, so that many small messages cost one call, and one turn at the interpreter's lock.
_SMALL_BYTES = 1 << 14


class Source(Protocol):
    """Where bytes come from, as sockets give them."""

    def recvmsg_into(
        self, buffers: list[memoryview], ancbufsize: int, flags: int, /
    ) -> tuple[int, Any, int, Any]: ...


class ReadAhead:
    """A connection on which the beginning of a message, with whatever has come behind it, is read
    into a buffer; what follows is taken from there first. For one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(_SMALL_BYTES))
        self._begin = self._end = 0

    @property
    def is_empty(self) -> bool:
        return self._begin == self._end

    def take(self, size: int) -> memoryview:
        """So many bytes, few, which are there until something else is read. Raises EOFError when
        the peer closes first."""
        if self._end - self._begin < size:
            left = self._buffer[self._begin : self._end].tobytes()
            self._begin, self._end = 0, len(left)
            self._buffer[: len(left)] = left
        while self._end < size:
            count = self._connection.recv_into(self._buffer[self._end :])
            if count == 0:
                raise EOFError("the peer closed the connection")
            self._end += count
        self._begin += size
        return self._buffer[self._begin - size : self._begin]

    def fill(self, arrays: Sequence[np.ndarray], size: int) -> bool:
        """Whether all of the arrays, so many bytes, had been read: they are filled then."""
        if self._end - self._begin < size:
            return False
        for array in arrays:
            array[...] = np.ndarray(array.shape, array.dtype, self._buffer, self._begin)
            self._begin += array.nbytes
        return True

    def recvmsg_into(
        self, buffers: list[memoryview], ancbufsize: int, flags: int, /
    ) -> tuple[int, Any, int, Any]:
        if self.is_empty:
            return self._connection.recvmsg_into(buffers, ancbufsize, flags)
        begin = self._begin
        for each in buffers:
            size = min(each.nbytes, self._end - self._begin)
            each[:size] = self._buffer[self._begin : self._begin + size]
            self._begin += size
        return self._begin - begin, [], 0, None


def _ignored(size: int) -> None:
    """For those who do not count."""


def send_arrays(connection: socket.socket, header: bytes, arrays: Sequence[np.ndarray]) -> None:
    """Write header and contents, in order. Returns when the system has taken all of it."""
    if sum(array.nbytes for array in arrays) <= _SMALL_BYTES:
        connection.sendall(b"".join((header, *(array.tobytes() for array in arrays))))
        return
    vectors, staged = [memoryview(header)], 0
    for part in _parts(arrays):
        if not part.flags.c_contiguous:
            part = np.ascontiguousarray(part)
            staged += part.nbytes
        vectors.append(_bytes(part))
        if len(vectors) >= _VECTORS or staged >= _STAGE_BYTES:
            _send_all(connection, vectors)
            vectors, staged = [], 0
    _send_all(connection, vectors)


def receive_arrays(
    connection: Source, arrays: Sequence[np.ndarray], count: Count = _ignored
) -> None:
    """Fill the arrays, in order; `count` is told the bytes as they come. Raises EOFError when the
    peer closes first."""
    vectors: list[memoryview] = []
    staged: list[tuple[np.ndarray, np.ndarray]] = []
    for part in _parts(arrays):
        if not part.flags.c_contiguous:
            staged.append((part, np.empty(part.shape, part.dtype)))
        vectors.append(_bytes(staged[-1][1] if staged and staged[-1][0] is part else part))
        if len(vectors) >= _VECTORS or sum(each.nbytes for _, each in staged) >= _STAGE_BYTES:
            _receive_all(connection, vectors, staged, count)
    _receive_all(connection, vectors, staged, count)


def receive_exactly(connection: Source, size: int) -> bytes:
    """Raises EOFError when the peer closes first."""
    data = bytearray(size)
    receive_vectors(connection, [memoryview(data)])
    return bytes(data)


def receive_vectors(connection: Source, vectors: list[memoryview], count: Count = _ignored) -> None:
    while vectors:
        # The system fills all of a turn before it returns: fewer turns at the interpreter's lock.
        size = connection.recvmsg_into(_turn(vectors), 0, socket.MSG_WAITALL)[0]
        if size == 0:
            raise EOFError("the peer closed the connection")
        count(size)
        _skip(vectors, size)


def _turn(vectors: list[memoryview]) -> list[memoryview]:
    """The first ones, or the beginning of the first."""
    size = 0
    for number, vector in enumerate(vectors):
        size += vector.nbytes
        if size > _TURN_BYTES:
            return vectors[:number] if number else [vector[:_TURN_BYTES]]
    return vectors


def _receive_all(
    connection: Source,
    vectors: list[memoryview],
    staged: list[tuple[np.ndarray, np.ndarray]],
    count: Count,
) -> None:
    receive_vectors(connection, vectors, count)
    for part, stage in staged:
        part[...] = stage
    vectors.clear()
    staged.clear()


def _send_all(connection: socket.socket, vectors: list[memoryview]) -> None:
    while vectors:
        _skip(vectors, connection.sendmsg(vectors))


def _skip(vectors: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes."""
    whole = 0
    while whole < len(vectors) and count >= vectors[whole].nbytes:
        count -= vectors[whole].nbytes
        whole += 1
    del vectors[:whole]
    if count:
        vectors[0] = vectors[0][count:]


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array; types that numpy only borrows have no buffer of their
    own."""
    return array.reshape(-1).view(np.uint8).data


def _parts(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The same contents in the same order, in contiguous parts, or strided ones that fit into the
    stage."""
    for array in arrays:
        if array.size:
            yield from _split(array)


def _split(array: np.ndarray) -> Iterator[np.ndarray]:
    if array.flags.c_contiguous:
        yield array
        return
    run, outer = array.itemsize, array.ndim
    while outer and (array.strides[outer - 1] == run or array.shape[outer - 1] == 1):
        run *= array.shape[outer - 1]
        outer -= 1
    if run >= _RUN_BYTES:
        for index in np.ndindex(array.shape[:outer]):
            yield array[index]
    elif array.nbytes <= _STAGE_BYTES:
        yield array
    else:
        rows = max(1, _STAGE_BYTES * len(array) // array.nbytes)
        for start in range(0, len(array), rows):
            yield from _split(array[0] if len(array) == 1 else array[start : start + rows])

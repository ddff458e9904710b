"""Writing shards to a worker's file of a checkpoint, and reading any slice of an array back from
such files."""

from __future__ import annotations

import os
import zlib
from math import prod
from types import TracebackType

import numpy as np

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Slice
from shardopt.forms.reshard_steps import intersect
from shardopt.runtime.state.manifest import BLOCK_BYTES, StoredArray, StoredShard, shard_bytes
from shardopt.runtime.state.places import Place, RemoteFile, create_file, read_range
from shardopt.support.errors import UserError

_ALIGNMENT = 64  # shards start where a memory map of the file would give aligned arrays


class ShardWriter:
    """A new file of shards; a context manager. What it holds is on the disk when the block ends
    without an error."""

    def __init__(self, folder: Place, name: str) -> None:
        self._name = name
        self._file = create_file(folder / name)

    def add(self, slice_: Slice, shard: np.ndarray) -> StoredShard:
        """Append the shard's bytes. Raises OSError."""
        data = np.ascontiguousarray(shard).reshape(-1).view(np.uint8).data
        offset = self._file.tell()
        if data:  # nothing may start behind the end of the file
            offset += self._file.write(bytes(-offset % _ALIGNMENT))
        blocks = [data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES)]
        for block in blocks:
            self._file.write(block)
        return StoredShard(slice_, self._name, offset, tuple(zlib.crc32(block) for block in blocks))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._file as file:
            if error is None and not isinstance(file, RemoteFile):
                file.flush()
                os.fsync(file.fileno())


def read_slice(folder: Place, array: StoredArray, slice_: Slice) -> np.ndarray:
    """The elements of a global slice, in new memory; reads only rows of shards that meet it.

    Raises UserError that names the file and the array when bytes are missing or do not have their
    checksum."""
    elements = np.empty([limit - start for start, limit in slice_], numpy_dtype(array.dtype))
    for shard in array.shards:
        common = intersect(shard.slice, slice_)
        if common is None:
            continue
        rows = _read_rows(folder, array, shard, common)
        into = tuple(
            slice(low - start, high - start)
            for (low, high), (start, _) in zip(common, slice_, strict=True)
        )
        elements[into] = rows
    return elements


def _read_rows(folder: Place, array: StoredArray, shard: StoredShard, slice_: Slice) -> np.ndarray:
    """`slice_` of one shard, which holds it: the rows of the first dimension are read and checked,
    the rest cut out."""
    dtype = numpy_dtype(array.dtype)
    extents = [limit - start for start, limit in shard.slice]
    if not slice_:
        return np.frombuffer(_read(folder, array, shard, 0, dtype.itemsize), dtype).reshape(())
    row = prod(extents[1:]) * dtype.itemsize
    first, last = (bound - shard.slice[0][0] for bound in slice_[0])
    data = _read(folder, array, shard, first * row, last * row)
    rows = np.frombuffer(data, np.uint8).view(dtype).reshape(last - first, *extents[1:])
    rest = (
        slice(low - start, high - start)
        for (low, high), (start, _) in zip(slice_[1:], shard.slice[1:], strict=True)
    )
    return rows[(slice(None), *rest)]


def _read(
    folder: Place, array: StoredArray, shard: StoredShard, begin: int, end: int
) -> memoryview:
    """Bytes `begin` to `end` of a shard; every block they touch is read and compared with its
    checksum."""
    size = shard_bytes(shard.slice, array.dtype)
    first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
    length = min(last * BLOCK_BYTES, size) - first * BLOCK_BYTES
    path, start = folder / shard.file, shard.offset + first * BLOCK_BYTES
    try:
        view = read_range(path, start, start + length)
    except OSError as error:
        raise UserError(
            f"checkpoint '{path}': cannot read '{array.name}': {error.strerror or error}"
        ) from error
    if len(view) < length:
        raise UserError(
            f"checkpoint '{path}': '{array.name}' ends {length - len(view)} bytes too early"
        )
    for block in range(first, last):
        start = (block - first) * BLOCK_BYTES
        if zlib.crc32(view[start : start + BLOCK_BYTES]) != shard.checksums[block]:
            raise UserError(
                f"checkpoint '{path}': '{array.name}' is damaged at byte "
                f"{shard.offset + block * BLOCK_BYTES}: "
                "the data do not have their checksum"
            )
    return view[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

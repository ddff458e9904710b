"""Between whole numpy arrays, shards, and the pieces that travel: the data side of a `Route`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardopt.cost.mesh import Mesh
from shardopt.dialect.dtypes import numpy_dtype
from shardopt.dialect.exported_program import Box, TensorSpec
from shardopt.dialect.reshard_steps import tiles_by_device
from shardopt.runtime.program.instructions import Route

Slices = tuple[slice, ...]


def box_slices(box: Box) -> Slices:
    return tuple(slice(start, limit) for start, limit in box)


class Tiling:
    """The tiles of one spec on one mesh, worked out once."""

    def __init__(self, mesh: Mesh, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = numpy_dtype(spec.dtype)
        self.local_shape = spec.sharding.local_shape(mesh, spec.shape)
        self._slices = [box_slices(tile) for tile in tiles_by_device(mesh, spec).values()]

    def split(self, whole: np.ndarray) -> list[np.ndarray]:
        """The shard of each device, each in memory of its own."""
        return [np.array(whole[slices], order="C", copy=True) for slices in self._slices]

    def join(self, shards: Sequence[np.ndarray]) -> np.ndarray:
        """The whole array; replicas are read once."""
        whole = np.empty(self.spec.shape, self.dtype)
        seen: set[str] = set()
        for slices, shard in zip(self._slices, shards, strict=True):
            if str(slices) not in seen:
                seen.add(str(slices))
                whole[slices] = shard
        return whole


class RouteSource:
    """Cuts the pieces out of a sender's shards."""

    def __init__(self, route: Route) -> None:
        # The ellipsis keeps a scalar's piece an array.
        self._cuts = [(piece.shard, (..., *box_slices(piece.box))) for piece in route.pieces]

    def cut(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Views, in the order of the route's pieces."""
        return [shards[shard][slices] for shard, slices in self._cuts]


class RouteTarget:
    """Lands pieces in the receiver's shards, and lets these exchange boxes."""

    def __init__(self, route: Route, mesh: Mesh) -> None:
        tiling = Tiling(mesh, route.target)
        self._dtype, self._shape, self._size = tiling.dtype, tiling.local_shape, mesh.size
        self._places = [(place.piece, place.shard, box_slices(place.box)) for place in route.placements]
        self._moves = [
            (move.source_shard, box_slices(move.source_box), move.target_shard, box_slices(move.target_box))
            for move in route.exchanges
        ]
        self._piece_shapes = [tuple(limit - start for start, limit in piece.box) for piece in route.pieces]

    @property
    def is_complete(self) -> bool:
        """Whether the pieces alone fill the shards."""
        return not self._moves

    def piece_types(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and element type of every piece, in order."""
        return [(shape, self._dtype) for shape in self._piece_shapes]

    def land(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        """New memory for every shard: devices take it over without another copy."""
        shards = [np.empty(self._shape, self._dtype) for _ in range(self._size)]
        for piece, shard, slices in self._places:
            shards[shard][slices] = pieces[piece]
        return shards

    def exchange(self, shards: Sequence[np.ndarray]) -> None:
        """Complete what has landed, in place."""
        for source, source_slices, target, target_slices in self._moves:
            shards[target][target_slices] = shards[source][source_slices]


def decode(data: bytearray, targets: Sequence[RouteTarget]) -> list[np.ndarray]:
    """The pieces of all targets in a message of bytes, as views of it. Raises ValueError when the length is wrong."""
    pieces, offset = [], 0
    for shape, dtype in (type_ for target in targets for type_ in target.piece_types()):
        count = prod(shape) * dtype.itemsize
        if offset + count <= len(data):
            pieces.append(np.frombuffer(data, np.uint8, count, offset).view(dtype).reshape(shape))
        offset += count
    if offset != len(data):
        raise ValueError(f"expected a message of {offset} bytes, found {len(data)}")
    return pieces

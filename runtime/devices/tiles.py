"""Between whole numpy arrays, shards, and the pieces that travel: the data side of a `Route`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np

from shardopt.cost.mesh import Mesh
from shardopt.dialect.dtypes import numpy_dtype
from shardopt.dialect.exported_program import Box, TensorSpec
from shardopt.dialect.reshard_steps import tiles_by_device
from shardopt.runtime.program.instructions import Route
from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.landing import Landing, Place, Shards

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
        self._cuts: list[tuple[int, Any]] = [(piece.shard, (..., *box_slices(piece.box))) for piece in route.pieces]

    def cut(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Views, in the order of the route's pieces."""
        return [shards[shard][slices] for shard, slices in self._cuts]


class RouteTarget:
    """Where pieces land in the receiver's shards, and the boxes that these exchange afterwards."""

    def __init__(self, route: Route, mesh: Mesh) -> None:
        tiling = Tiling(mesh, route.target)
        self.shards = ((tiling.local_shape, tiling.dtype),) * mesh.size
        self._places: list[list[Place]] = [[] for _ in route.pieces]
        for place in route.placements:
            self._places[place.piece].append(Place(place.shard, box_slices(place.box)))
        self._moves = [
            (
                Place(move.source_shard, box_slices(move.source_box)),
                Place(move.target_shard, box_slices(move.target_box)),
            )
            for move in route.exchanges
        ]
        self._lands_everywhere = len({place.shard for place in route.placements}) == mesh.size

    @property
    def is_complete(self) -> bool:
        """Whether the pieces alone fill the shards."""
        return not self._moves

    def places(self, first_shard: int) -> list[tuple[Place, ...]]:
        """Those of each piece, where the shards are numbered from `first_shard`."""
        return [tuple(Place(first_shard + each.shard, each.slices) for each in piece) for piece in self._places]

    def exchange(self, shards: Sequence[np.ndarray | None], pool: BufferPool) -> Sequence[np.ndarray]:
        """Complete what has landed. Shards become one memory where they are replicas: devices write to none of them."""
        if self.is_complete and self._lands_everywhere:
            return cast(Sequence[np.ndarray], shards)
        completed = Shards(self.shards, pool, shards)
        for source, target in self._moves:
            completed.copy(source, target)
        return completed.all()


def landing_of(targets: Sequence[RouteTarget], source: str) -> Landing:
    """Of a message from worker `source` with the pieces of several values."""
    firsts = accumulate((len(target.shards) for target in targets[:-1]), initial=0)
    return Landing(
        shards=tuple(shard for target in targets for shard in target.shards),
        pieces={source: [each for target, first in zip(targets, firsts, strict=True) for each in target.places(first)]},
    )

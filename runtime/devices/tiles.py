"""Between whole numpy arrays, shards, and the pieces that travel: the data side of a `Route`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Slice, TensorSpec
from shardopt.forms.reshard_steps import tiles_by_device
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.host_routes import RouteParts, passed_on
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Route
from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.landing import Landing, Shards, ShardSlice

Slices = tuple[slice, ...]


def python_slices(slice_: Slice) -> Slices:
    return tuple(slice(start, limit) for start, limit in slice_)


def filled(shard: np.ndarray, tile: Slice) -> np.ndarray:
    """What of a shard is its tile, and no padding: a view."""
    cut: Any = (..., *(slice(limit - start) for start, limit in tile))
    return cast(np.ndarray, shard[cut])


class Tiling:
    """The tiles of one spec on one mesh, worked out once: those of `host`, or of all devices.

    Between driver and workers values travel as *parts*: a host's tiles, replicas once, in the order
    of its shards. All shards have `local_shape`: where tiles are uneven a smaller one stands at the
    start of its shard, and zeros follow."""

    def __init__(self, mesh: Mesh, spec: TensorSpec, host: Host | None = None) -> None:
        self.spec = spec
        self.dtype = numpy_dtype(spec.dtype)
        self.local_shape = spec.sharding.local_shape(mesh, spec.shape)
        tiles = list(tiles_by_device(mesh, spec).values())
        shards = range(mesh.size) if host is None else host.shards
        first: dict[Slice, int] = {}
        for shard, tile in enumerate(tiles):
            first.setdefault(tile, shard)
        numbers: dict[Slice, int] = {}
        self._part = [numbers.setdefault(tiles[shard], len(numbers)) for shard in shards]
        self.tiles = tuple(numbers)  # the global slice of each part
        # The ellipsis keeps a scalar's part an array.
        self._slices: list[Any] = [(..., *python_slices(tile)) for tile in numbers]
        # Of equal tiles on several hosts, the first one is read.
        self._owned = [
            (place, self._part[place])
            for place, shard in enumerate(shards)
            if first[tiles[shard]] == shard
        ]

    def parts(self, whole: np.ndarray) -> list[np.ndarray]:
        """Views of what the host needs."""
        return [whole[slices] for slices in self._slices]

    def spread(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The shard of each device, each in memory of its own."""
        return [self._shard(parts[part]) for part in self._part]

    def _shard(self, part: np.ndarray) -> np.ndarray:
        if part.shape == self.local_shape:
            return np.array(part, order="C", copy=True)
        return np.pad(
            part,
            [(0, extent - size) for extent, size in zip(self.local_shape, part.shape, strict=True)],
        )

    def split(self, whole: np.ndarray) -> list[np.ndarray]:
        """The shard of each device, each in memory of its own."""
        return self.spread(self.parts(whole))

    def owned(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The parts that this host contributes to the whole: each tile of the mesh comes from one
        host."""
        return [filled(shards[place], self.tiles[part]) for place, part in self._owned]

    def paste(self, owned: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Write what `owned` returned into the whole array."""
        for (_, part), tile in zip(self._owned, owned, strict=True):
            whole[self._slices[part]] = tile

    def join(self, shards: Sequence[np.ndarray]) -> np.ndarray:
        """The whole array from the shards of all devices; replicas are read once."""
        whole = np.empty(self.spec.shape, self.dtype)
        self.paste(self.owned(shards), whole)
        return whole


class RouteSource:
    """Cuts the pieces that one host has for another out of its shards."""

    def __init__(self, route: Route, host: Host, target: Host, parts: RouteParts) -> None:
        # The ellipsis keeps a scalar's piece an array.
        self._cuts: list[tuple[int, Any]] = []
        for part in parts.between(host, target):
            piece = route.pieces[part.piece]
            slice_ = _within(piece.slice, part.slice)
            self._cuts.append((host.shards.index(piece.shard), (..., *python_slices(slice_))))

    @property
    def size(self) -> int:
        """How many parts of pieces there are."""
        return len(self._cuts)

    def cut(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Views, in the order of the message."""
        return [shards[shard][slices] for shard, slices in self._cuts]


class RouteTarget:
    """Where the pieces of a route land in the shards of one host of the receiver."""

    def __init__(self, route: Route, mesh: Mesh, host: Host, parts: RouteParts) -> None:
        tiling = Tiling(mesh, route.target)
        local = {shard: place for place, shard in enumerate(host.shards)}
        self.shards = ((tiling.local_shape, tiling.dtype),) * len(local)
        self.is_complete = not route.exchanges  # whether the pieces alone fill the shards
        self._host, self._parts = host, parts
        self._places: list[list[tuple[int, Slice]]] = [[] for _ in route.pieces]
        for place in route.placements:
            if place.shard in local:
                self._places[place.piece].append((local[place.shard], place.slice))
        landed = {shard for places in self._places for shard, _ in places}
        self._lands_everywhere = len(landed) == len(local)
        # What is passed on to other hosts can go there as it comes in; a piece for several shards
        # is copied to the others once all of it is there.
        self.streams = bool(passed_on(route, parts.targets, host)) and all(
            len(places) <= 1 for places in self._places
        )

    def regions(self, source: Host) -> list[tuple[tuple[int, Slice], ...]]:
        """Those of each part in the message of one host: shards, and slices of them."""
        return [
            tuple(
                (shard, _within(slice_, part.slice)) for shard, slice_ in self._places[part.piece]
            )
            for part in self._parts.between(source, self._host)
        ]

    def places(self, source: Host, first_shard: int) -> list[tuple[ShardSlice, ...]]:
        """The same as memory, where the shards are numbered from `first_shard`."""
        return [
            tuple(ShardSlice(first_shard + shard, python_slices(slice_)) for shard, slice_ in each)
            for each in self.regions(source)
        ]

    def all(self, landed: Sequence[np.ndarray | None], pool: BufferPool) -> Sequence[np.ndarray]:
        """The shards, with memory for those that no piece is for: tiles without elements, or
        padding of one."""
        if self._lands_everywhere:
            return cast(Sequence[np.ndarray], landed)
        return Shards(self.shards, pool, landed).all()


def _within(outer: Slice, inner: Slice) -> Slice:
    """A slice that is relative to the start of another, in the coordinates of that."""
    return tuple(
        (origin + start, origin + limit)
        for (origin, _), (start, limit) in zip(outer, inner, strict=True)
    )


def landing_of(targets: Sequence[RouteTarget], sources: Sequence[Host]) -> Landing:
    """Of a message from some hosts with the pieces of several values; hosts that have none are not
    in it."""
    firsts = list(accumulate((len(target.shards) for target in targets[:-1]), initial=0))
    pieces = {}
    for source in sources:
        places_by_input = [
            target.places(source, first) for target, first in zip(targets, firsts, strict=True)
        ]
        if any(places_by_input):
            pieces[source.name] = [places for each in places_by_input for places in each]
    shards = tuple(shard for target in targets for shard in target.shards)
    return Landing(shards, pieces, streams=any(target.streams for target in targets))

"""Where the pieces of a message end up: in memory that will be a shard of the receiver, at once
where that is possible.

A piece is written to the first place that wants it; what other places want of it is copied from
there. Pieces of one message may come from several workers, and one message may bring several
values; `shards` are then those of all values, one value after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardopt.runtime.transports.buffers import BufferPool, pays_to_keep

Slices = tuple[slice, ...]
ShardType = tuple[tuple[int, ...], np.dtype[Any]]  # of one device's part of an array


@dataclass(frozen=True)
class ShardSlice:
    """A slice of shard number `shard`."""

    shard: int
    slices: Slices


def fills(place: ShardSlice, shape: tuple[int, ...]) -> bool:
    """Whether a slice is all of its shard."""
    return all(
        each.indices(size) == (0, size, 1) for each, size in zip(place.slices, shape, strict=True)
    )


@dataclass(frozen=True)
class Landing:
    """`shards` are shapes and element types; `pieces[source]` are the places of each piece of that
    worker's message, in its order; every piece has one at least. A message that `streams` is looked
    at while it comes in, piece by piece."""

    shards: tuple[ShardType, ...]
    pieces: Mapping[str, Sequence[tuple[ShardSlice, ...]]]
    streams: bool = False

    @cached_property
    def whole(self) -> dict[str, list[bool]]:
        """Which pieces fill all shards that want them."""
        return {
            source: [
                all(fills(place, self.shards[place.shard][0]) for place in each) for each in places
            ]
            for source, places in self.pieces.items()
        }

    @cached_property
    def piece_types(self) -> dict[str, list[ShardType]]:
        """Shape and element type of every piece."""
        return {
            source: [self._type(places[0]) for places in each]
            for source, each in self.pieces.items()
        }

    def _type(self, place: ShardSlice) -> ShardType:
        shape, dtype = self.shards[place.shard]
        extents = (
            len(range(*each.indices(size))) for each, size in zip(place.slices, shape, strict=True)
        )
        return tuple(extents), dtype


class Shards:
    """Shards that are being filled, in memory that is taken when something is first written to it.

    Shards that turn out to be replicas share memory: devices do not write to what they take over.
    """

    def __init__(
        self,
        types: Sequence[ShardType],
        pool: BufferPool,
        shards: Sequence[np.ndarray | None] | None = None,
    ) -> None:
        self._types, self._pool = types, pool
        self.memory: list[np.ndarray | None] = (
            [None] * len(types) if shards is None else list(shards)
        )
        self._lock = threading.Lock()
        self._numbers = range(len(types))  # in `memory`

    def part(self, first: int, count: int) -> Shards:
        """So many of them, numbered from 0: the same memory."""
        part = copy(self)
        part._numbers = self._numbers[first : first + count]
        return part

    def given(self) -> list[np.ndarray | None]:
        """None for those that nothing was written to."""
        return [self.memory[number] for number in self._numbers]

    def view(self, place: ShardSlice) -> np.ndarray:
        """Writable."""
        index: Any = (..., *place.slices)  # the ellipsis keeps a scalar an array
        return self._shard(place.shard)[index]

    def share(self, place: ShardSlice, memory: np.ndarray) -> None:
        """A whole shard that exists."""
        self.memory[self._numbers[place.shard]] = memory

    def copy(self, source: ShardSlice, target: ShardSlice) -> None:
        memory = self.memory[self._numbers[source.shard]]
        if memory is not None and self._fill(source) and self._fill(target):
            self.share(target, memory)
        else:
            self.view(target)[...] = self.view(source)

    def all(self) -> list[np.ndarray]:
        """Nothing was written where there is nothing: a tile without elements, or the padding of
        one."""
        return [self._shard(place) for place in range(len(self._numbers))]

    def _shard(self, place: int) -> np.ndarray:
        number = self._numbers[place]
        with self._lock:
            shard = self.memory[number]
            if shard is None:
                shard = self.memory[number] = self._pool.take(*self._types[number])
            return shard

    def _fill(self, place: ShardSlice) -> bool:
        return fills(place, self._types[self._numbers[place.shard]][0])


class Arrival:
    """One message on its way in, or the messages of all sources. Each source's part is filled by
    one thread."""

    def __init__(self, landing: Landing, pool: BufferPool) -> None:
        self.landing = landing
        self.shards = Shards(landing.shards, pool)
        # By source, the pieces that are there; only the thread of the source writes its own.
        self.landed = dict.fromkeys(landing.pieces, 0)
        self._missing = set(landing.pieces)
        self._lock = threading.Lock()

    @property
    def missing(self) -> tuple[str, ...]:
        """Sources whose part is not complete."""
        with self._lock:
            return tuple(sorted(self._missing))

    def windows(self, source: str) -> list[np.ndarray]:
        """Writable views for the pieces of one source, in the order of its message."""
        return [self.shards.view(places[0]) for places in self.landing.pieces[source]]

    def adopt(self, source: str, pieces: Sequence[np.ndarray], *, keep: bool) -> None:
        """Copy the pieces in. With `keep`, nobody will ever write to them, and they may become
        shards themselves."""
        landing = self.landing
        for piece, places, whole in zip(
            pieces, landing.pieces[source], landing.whole[source], strict=True
        ):
            if keep and whole and pays_to_keep(piece):
                self.shards.share(places[0], piece)
            else:
                self.shards.view(places[0])[...] = piece

    def land(self, source: str) -> None:
        """The next piece of a source is there."""
        number = self.landed[source]
        # Copied before the piece counts as there, on the thread of its source and without the lock.
        first, *others = self.landing.pieces[source][number]
        for place in others:
            self.shards.copy(first, place)
        self.landed[source] = number + 1

    def finish(self, source: str) -> list[np.ndarray | None] | None:
        """The part of one source is complete. When that was the last one: all shards, None for
        those that no piece is for; nothing before."""
        for _ in range(self.landed[source], len(self.landing.pieces[source])):
            self.land(source)
        with self._lock:
            self._missing.discard(source)
            return None if self._missing else self.shards.memory

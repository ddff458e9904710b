"""ALLGATHER and BROADCAST on shards in host memory: rounds of slices between shards, which travel
where these are on different hosts, and may begin while the message with the shards comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from shardopt.forms.exported_program import Slice
from shardopt.forms.reshard_steps import intersect
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.devices.tiles import RouteTarget, Tiling, python_slices
from shardopt.runtime.program.host_routes import Origins, Round, rounds_of, wire_tag
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Route
from shardopt.runtime.transports.buffers import pays_to_keep
from shardopt.runtime.transports.landing import (
    Arrival,
    Landing,
    Shards,
    ShardSlice,
    ShardType,
    fills,
)
from shardopt.runtime.transports.mailbox import Mailbox, Payload

Region: TypeAlias = tuple[int, Slice]  # of a shard of this host
Give = Callable[[str, int, list[np.ndarray]], None]  # (name of the worker, tag, pieces)


# By each source that has some: the numbers of parts in its message, and what they fill.
Parts: TypeAlias = Mapping[str, Sequence[tuple[int, Region]]]


@dataclass(frozen=True)
class Streamed:
    """A value whose message, which may bring others too, is still coming in. Its parts fill
    `shards`; `end` is called when all of them are there."""

    arrival: Arrival
    shards: Shards
    parts: Parts
    end: Callable[[], None]

    def has_begun(self) -> bool:
        """Whether the first part of every source is there."""
        return all(self.arrival.landed[name] > parts[0][0] for name, parts in self.parts.items())

    def has_all(self) -> bool:
        return all(self.arrival.landed[name] > parts[-1][0] for name, parts in self.parts.items())


def parts_of_values(targets: Sequence[RouteTarget], sources: Sequence[Host]) -> tuple[Parts, ...]:
    """For every value of a message, which parts of each source's are its, and what they fill
    first: only what does not stream has parts for several places."""
    begin = {source.name: 0 for source in sources}
    parts: list[Parts] = []
    for target in targets:
        of_value = {}
        for source in sources:
            filled = [regions[0] for regions in target.regions(source)]
            if filled:
                of_value[source.name] = list(enumerate(filled, begin[source.name]))
            begin[source.name] += len(filled)
        parts.append(of_value)
    return tuple(parts)


def streamed_values(
    mailbox: Mailbox, step: int, tag: int, targets: Sequence[RouteTarget], parts: Sequence[Parts]
) -> list[Streamed]:
    """The values of a message, which may not have begun to come. It is through when all that
    stream are."""
    arrival = mailbox.stream(step, tag)
    left = [target for target in targets if target.streams]

    def end() -> None:
        left.pop()
        if not left:
            mailbox.until(lambda: not arrival.missing)
            mailbox.end(step, tag)

    values, first = [], 0
    for target, of_value in zip(targets, parts, strict=True):
        count = len(target.shards)
        values.append(Streamed(arrival, arrival.shards.part(first, count), of_value, end))
        first += count
    return values


@dataclass(frozen=True)
class _Step:
    """One round with everything in the numbers of this host's shards. What is given leaves from
    where it lay first on this host, so that it need not wait for copies of it: it can go once
    `after` rounds are through. What arrives is kept apart, slice by slice, until it is copied to
    its `places`: a peer may be ahead, and the shards not there yet."""

    tag: int
    outgoing: tuple[tuple[str, tuple[ShardSlice, ...]], ...]
    after: int
    moves: tuple[tuple[ShardSlice, ShardSlice], ...]
    reads: tuple[tuple[Region, ...], tuple[Region, ...]]  # of `outgoing`, and of `moves`
    landing: Landing
    places: tuple[tuple[int, ShardSlice], ...]  # (number of the slice, where it goes)


class Exchanges:
    """The exchanges of a route for one host of its target mesh, worked out once. `tag` names their
    messages."""

    def __init__(
        self,
        route: Route,
        mesh: Mesh,
        hosts: Sequence[Host],
        here: Host,
        tag: int,
        mailbox: Mailbox,
    ) -> None:
        tiling = Tiling(mesh, route.target)
        type_ = (tiling.local_shape, tiling.dtype)
        self._types, self._mailbox = (type_,) * len(here.shards), mailbox
        lying = _Lying()
        self._steps = [
            _step(each, lying, hosts, here, type_, wire_tag(tag, number))
            for number, each in enumerate(rounds_of(route, hosts, here))
        ]
        # Announced before any step runs, as a peer may be a round ahead.
        for step in self._steps:
            if step.landing.pieces:
                mailbox.expect(step.tag, step.landing)
        self._needs: list[tuple[Mapping[str, int], ...]] | None = None

    def complete(
        self, step: int, landed: Sequence[np.ndarray | None] | Streamed, give: Give
    ) -> list[np.ndarray]:
        """All shards, from those that have landed, or land meanwhile. Shards become one memory
        where they are replicas: devices write to none of them. What `give` gets is not written to
        until it is a device's."""
        if not isinstance(landed, Streamed):
            shards = Shards(self._types, self._mailbox.pool, landed)
            self._exchange(step, shards, give, lambda number, use: True)
            return shards.all()
        arrival = landed.arrival
        if self._needs is None:  # the same in every step
            self._needs = [
                tuple(_parts_of(regions, landed.parts) for regions in each.reads)
                for each in self._steps
            ]
        needs = self._needs

        def is_there(number: int, use: int) -> bool:
            needed = needs[number][use].items()
            return all(arrival.landed[source] >= count for source, count in needed)

        self._exchange(step, landed.shards, give, is_there)
        self._mailbox.until(landed.has_all)
        landed.end()
        return landed.shards.all()

    def _exchange(
        self, step: int, shards: Shards, give: Give, is_there: Callable[[int, int], bool]
    ) -> None:
        """`is_there` says whether all has landed that a round gives (0), or copies (1)."""
        done = 0
        to_give = [number for number, each in enumerate(self._steps) if each.outgoing]

        def give_ready() -> None:
            # Also of later rounds: other hosts wait for them.
            for number in to_give.copy():
                each = self._steps[number]
                if each.after <= done and is_there(number, 0):
                    to_give.remove(number)
                    for worker, places in each.outgoing:
                        give(worker, each.tag, [shards.view(place) for place in places])

        for number, each in enumerate(self._steps):
            self._mailbox.until(partial(is_there, number, 1), give_ready)
            for source, target in each.moves:
                shards.copy(source, target)
            arrived: Payload = ()
            if each.landing.pieces:
                self._mailbox.until(partial(self._mailbox.has, step, each.tag), give_ready)
                arrived = self._mailbox.take(step, each.tag)
            for slice_, place in each.places:
                piece: Any = arrived[slice_]
                # A whole shard in aligned memory is handed to the device as it is; anything else is
                # copied.
                if fills(place, self._types[place.shard][0]) and pays_to_keep(piece):
                    shards.share(place, piece)
                else:
                    shards.view(place)[...] = piece
            done = number + 1
        self._mailbox.until(lambda: not to_give, give_ready)


class _Lying:
    """What lies where on a host while its rounds are gone through."""

    def __init__(self) -> None:
        self._origins = Origins()
        self._filled: dict[int, list[tuple[Slice, int]]] = {}
        self._rounds = 0

    def give(self, shard: int, slice_: Slice) -> tuple[tuple[int, Slice], int]:
        """Where a slice lay first, and after how many rounds it is there."""
        origin = self._origins.of(shard, slice_)
        filled = self._filled.get(origin[0], ())
        after = (turn + 1 for other, turn in filled if intersect(other, origin[1]) is not None)
        return origin, max(after, default=0)

    def end(self, round_: Round) -> None:
        for move in round_.local:
            origin = self._origins.of(move.source_shard, move.source_slice)
            self._origins.copied(move, origin)
            self._fill(move.target_shard, move.target_slice)
        for _, _, shard, slice_ in round_.landing:
            self._fill(shard, slice_)
        self._rounds += 1

    def _fill(self, shard: int, slice_: Slice) -> None:
        self._filled.setdefault(shard, []).append((slice_, self._rounds))


def _parts_of(regions: Sequence[Region], parts: Parts) -> Mapping[str, int]:
    """How many parts of each source's message must be there for what is in the regions."""

    def count(of_source: Sequence[tuple[int, Region]]) -> int:
        counts = (
            number + 1
            for number, (shard, slice_) in of_source
            if any(
                shard == other and intersect(slice_, read) is not None for other, read in regions
            )
        )
        return max(counts, default=0)

    return {source: count(of_source) for source, of_source in parts.items()}


def _place(shard: int, slice_: Slice) -> ShardSlice:
    return ShardSlice(shard, python_slices(slice_))


def _step(
    round_: Round,
    lying: _Lying,
    hosts: Sequence[Host],
    here: Host,
    type_: ShardType,
    tag: int,
) -> _Step:
    local = {shard: place for place, shard in enumerate(here.shards)}

    def region(shard: int, slice_: Slice) -> Region:
        return local[shard], slice_

    given, after = [], 0
    for other, slices in round_.outgoing:
        origins = [lying.give(*slice_) for slice_ in slices]
        after = max(after, *(turn for _, turn in origins))
        given.append((hosts[other].name, [region(*origin) for origin, _ in origins]))
    copied = [
        (region(move.source_shard, move.source_slice), region(move.target_shard, move.target_slice))
        for move in round_.local
    ]
    lying.end(round_)
    types: list[ShardType] = []
    pieces: dict[str, list[tuple[ShardSlice, ...]]] = {}
    number_of: dict[tuple[int, int], int] = {}
    for other, slices in round_.incoming:
        for number, (_, slice_) in enumerate(slices):
            shape = tuple(limit - start for start, limit in slice_)
            number_of[other, number] = len(types)
            whole = ShardSlice(len(types), tuple(slice(0, size) for size in shape))
            pieces.setdefault(hosts[other].name, []).append((whole,))
            types.append((shape, type_[1]))
    return _Step(
        tag=tag,
        outgoing=tuple(
            (worker, tuple(_place(*each) for each in regions)) for worker, regions in given
        ),
        after=after,
        moves=tuple((_place(*source), _place(*target)) for source, target in copied),
        reads=(
            tuple(each for _, regions in given for each in regions),
            tuple(source for source, _ in copied),
        ),
        landing=Landing(tuple(types), pieces),
        places=tuple(
            (number_of[other, number], _place(*region(shard, slice_)))
            for other, number, shard, slice_ in round_.landing
        ),
    )

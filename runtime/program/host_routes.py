"""A route as the hosts of its two ends see it: which pieces go from which host to which, and in
which rounds the shards of the target exchange slices.

A piece travels once to each host that needs it, whatever the number of its shards that do. Where a
host passes slices of it on to other hosts, it travels in parts, in the order in which those are
passed on: the first ones can go on while others are still coming in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod

from shardopt.forms.exported_program import Slice
from shardopt.forms.reshard_steps import intersect
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Exchange, Placement, Route
from shardopt.runtime.program.routes import relative

# Every tag stays below, and a header has 64 bits for both.
_PART_BITS = 32


def wire_tag(tag: int, part: int) -> int:
    """What names a message: the instruction's tag, and which of its messages it is. Part 0 keeps
    the tag as it is."""
    return part << _PART_BITS | tag


def pieces_between(route: Route, source: Host, target: Host) -> tuple[int, ...]:
    """Numbers of the pieces that `source` holds and `target` needs, ascending."""
    numbers = {place.piece for place in route.placements if place.shard in target.shards}
    return tuple(
        number
        for number, piece in enumerate(route.pieces)
        if number in numbers and piece.shard in source.shards
    )


@dataclass(frozen=True)
class Part:
    """A slice of piece number `piece`, relative to its start; all of it mostly."""

    piece: int
    slice: Slice


class RouteParts:
    """The parts of a route in the order of their messages: both ends work them out alike. `targets`
    are all hosts of the target mesh."""

    def __init__(self, route: Route, targets: Sequence[Host]) -> None:
        self._route, self.targets = route, targets
        self._leaving = {host.number: passed_on(route, targets, host) for host in targets}

    def between(self, source: Host, target: Host) -> tuple[Part, ...]:
        """The parts of the pieces that `source` holds and `target` needs."""
        leaving = self._leaving[target.number]
        places: dict[int, list[Placement]] = {}
        for place in self._route.placements:
            if place.shard in target.shards:
                places.setdefault(place.piece, []).append(place)
        parts: list[tuple[float, Part]] = []
        for number in pieces_between(self._route, source, target):
            parts += _parts(number, places[number][0], leaving)
        # A stable sort: pieces of which nothing leaves the host keep their order, behind the rest.
        return tuple(part for _, part in sorted(parts, key=lambda each: each[0]))


def passed_on(
    route: Route, hosts: Sequence[Host], here: Host
) -> dict[int, list[tuple[Slice, int]]]:
    """What a host of the target passes on to others: by the shard that gets it first, slices and
    the round in which each leaves the host."""
    leaving: dict[int, list[tuple[Slice, int]]] = {}
    if len(hosts) == 1 or not route.exchanges:
        return leaving
    rounds = _independent(route.exchanges)
    origins = Origins()
    for number, moves in enumerate(rounds):
        for move in moves:
            if move.source_shard not in here.shards:
                continue
            origin = origins.of(move.source_shard, move.source_slice)
            if move.target_shard in here.shards:
                origins.copied(move, origin)
            elif not any(slice_ == origin[1] for slice_, _ in leaving.get(origin[0], ())):
                leaving.setdefault(origin[0], []).append((origin[1], number))
    return leaving


class Origins:
    """Where on a host a slice lay first that was copied from shard to shard there."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, Slice], tuple[int, Slice]] = {}

    def of(self, shard: int, slice_: Slice) -> tuple[int, Slice]:
        return self._of.get((shard, slice_), (shard, slice_))

    def copied(self, move: Exchange, origin: tuple[int, Slice]) -> None:
        self._of[move.target_shard, move.target_slice] = origin


def _parts(
    number: int, place: Placement, leaving: dict[int, list[tuple[Slice, int]]]
) -> list[tuple[float, Part]]:
    """A piece, with the round in which each part of it leaves the host."""
    whole = tuple(limit - start for start, limit in place.slice)
    slices = [
        (inside, turn)
        for slice_, turn in leaving.get(place.shard, ())
        if (inside := intersect(slice_, place.slice)) is not None
    ]
    volume = sum(prod(limit - start for start, limit in slice_) for slice_, _ in slices)
    if not slices or volume != prod(whole) or _any_meet(slices):
        turn: float = min((turn for _, turn in slices), default=inf)
        return [(turn, Part(number, tuple((0, size) for size in whole)))]
    return [(turn, Part(number, relative(slice_, place.slice))) for slice_, turn in slices]


def _any_meet(slices: Sequence[tuple[Slice, int]]) -> bool:
    return any(_overlap(one, other) for (one, _), (other, _) in combinations(slices, 2))


@dataclass(frozen=True)
class Round:
    """Exchanges that need nothing of each other, as one host sees them.

    `local` stay on the host. `outgoing` and `incoming` are, by the number of the other host, the
    slices that travel: (shard, slice) of the source, each once; `landing` says where an incoming
    slice goes: (host, number of the slice, shard, slice)."""

    local: tuple[Exchange, ...]
    outgoing: tuple[tuple[int, tuple[tuple[int, Slice], ...]], ...]
    incoming: tuple[tuple[int, tuple[tuple[int, Slice], ...]], ...]
    landing: tuple[tuple[int, int, int, Slice], ...]


def rounds_of(route: Route, hosts: Sequence[Host], here: Host) -> tuple[Round, ...]:
    """The rounds of a route's exchanges for one host of the target mesh; there are as many for all
    of its hosts."""
    home = {shard: host.number for host in hosts for shard in host.shards}
    return tuple(_round(moves, home, here.number) for moves in _independent(route.exchanges))


def _independent(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Runs of the list in which nothing is passed on that arrives in the same run."""
    rounds: list[list[Exchange]] = []
    written: dict[int, list[Slice]] = {}
    for move in exchanges:
        if not rounds or any(
            _overlap(move.source_slice, slice_) for slice_ in written.get(move.source_shard, ())
        ):
            rounds.append([])
            written = {}
        rounds[-1].append(move)
        written.setdefault(move.target_shard, []).append(move.target_slice)
    return rounds


def _overlap(left: Slice, right: Slice) -> bool:
    """Scalars, which have no extent, overlap."""
    return intersect(left, right) is not None


def _round(moves: Sequence[Exchange], home: dict[int, int], here: int) -> Round:
    outgoing: dict[int, dict[tuple[int, Slice], int]] = {}
    incoming: dict[int, dict[tuple[int, Slice], int]] = {}
    local, landing = [], []
    for move in moves:
        source, target = home[move.source_shard], home[move.target_shard]
        shard_slice = (move.source_shard, move.source_slice)
        if source == here == target:
            local.append(move)
        elif source == here:
            slices = outgoing.setdefault(target, {})
            slices.setdefault(shard_slice, len(slices))
        elif target == here:
            slices = incoming.setdefault(source, {})
            landing.append(
                (
                    source,
                    slices.setdefault(shard_slice, len(slices)),
                    move.target_shard,
                    move.target_slice,
                )
            )
    return Round(tuple(local), _ordered(outgoing), _ordered(incoming), tuple(landing))


def _ordered(
    slices: dict[int, dict[tuple[int, Slice], int]],
) -> tuple[tuple[int, tuple[tuple[int, Slice], ...]], ...]:
    return tuple((host, tuple(of_host)) for host, of_host in sorted(slices.items()))

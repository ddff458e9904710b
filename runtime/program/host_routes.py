"""A route as the hosts of its two ends see it: which pieces go from which host to which, and in
which rounds the shards of the target exchange slices.

A piece travels once to each host that needs it, whatever the number of its shards that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardopt.forms.exported_program import Slice
from shardopt.forms.reshard_steps import intersect
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Exchange, Route

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

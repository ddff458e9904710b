"""What the order of a graph's operations does not say about memory: loops, arrivals from other
meshes, literals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from shardopt.graph.op_graph import Op


@dataclass(frozen=True)
class MicrobatchLoop:
    """Operations [start, stop) run once a microbatch; `in_flight` of these are between forward and
    backward at once.

    Where several stages share a mesh, `of_group` has the number of each group of operations (each
    fragment) instead, `stage_of` its stage, and `beside` how many of each other stage are in flight
    while it runs, as far as a schedule says: at most as many as ever are."""

    start: int
    stop: int
    in_flight: int = 1
    of_group: Mapping[int, int] = field(default_factory=dict)
    stage_of: Mapping[int, int] = field(default_factory=dict)
    beside: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def in_flight_of(self, groups: Iterable[int]) -> int:
        """Microbatches for which a value is held that operations of these groups make and read."""
        return max(
            (self.of_group.get(group, self.in_flight) for group in groups), default=self.in_flight
        )


class HostMove(NamedTuple):
    """A message of a group of operations between a device and its host, so many times in a step."""

    group: int
    tensor: int
    times: int


def host_moves(
    ops: Iterable[Op], on_host: Set[int], replaced: Mapping[int, int]
) -> tuple[HostMove, ...]:
    """Every message between a device and its host: groups of operations fetch what others made, or
    nobody, of what they read of `on_host`, and store what they make of it, or what replaces some of
    it (`replaced[b]` is the tensor that b replaces)."""
    moves: dict[tuple[int, int], int] = {}
    made: dict[int, int] = {}
    for op in ops if on_host else ():
        fetched = (t for t in op.operands if t in on_host and made.get(t) != op.group)
        stored = [t for t in op.results if t in on_host or replaced.get(t) in on_host]
        made.update(dict.fromkeys(stored, op.group))
        for tensor in (*fetched, *stored):
            moves.setdefault((op.group, tensor), op.repeat // (op.trips or 1))
    return tuple(HostMove(*key, times) for key, times in moves.items())


def travels(moves: Iterable[HostMove], replaced: Mapping[int, int]) -> Counter[int]:
    """How often in a step each tensor on the host travels, what replaces it among that."""
    times = Counter[int]()
    for move in moves:
        times[replaced.get(move.tensor, move.tensor)] += move.times
    return times


@dataclass(frozen=True)
class Residency:
    """What the operations do not say about memory.

    `arrivals[t]` is the operation before which input t comes from another mesh, `literals` are
    constants whose elements differ and which therefore lie in memory all the time. `on_host` are
    inputs and values that lie in the memory of the hosts: a device holds them, and what replaces
    them, while groups of operations that read or make these run."""

    loop: MicrobatchLoop | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()
    on_host: frozenset[int] = frozenset()

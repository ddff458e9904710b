"""What the order of a graph's operations does not say about memory: loops, arrivals from other
meshes, literals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from shardopt.graph.op_graph import Op


@dataclass(frozen=True)
class MicrobatchLoop:
    """Operations [start, stop) run once a microbatch; `in_flight` of these are between forward and
    backward at once.

    Where several stages share a mesh, `of_group` has the number of each group of operations (each
    fragment) instead."""

    start: int
    stop: int
    in_flight: int = 1
    of_group: Mapping[int, int] = field(default_factory=dict)

    def in_flight_of(self, groups: Iterable[int]) -> int:
        """Microbatches for which a value is held that operations of these groups make and read."""
        return max(
            (self.of_group.get(group, self.in_flight) for group in groups), default=self.in_flight
        )


def host_moves(
    ops: Iterable[Op], on_host: Set[int], replaced: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    """(group, tensor) for every message between a device and its host: groups of operations fetch
    what they read of `on_host`, and store what they make that replaces it (`replaced[b]` is the
    tensor that b replaces)."""
    moves: dict[tuple[int, int], None] = {}
    for op in ops if on_host else ():
        moves.update(((op.group, tensor), None) for tensor in op.operands if tensor in on_host)
        stored = (tensor for tensor in op.results if replaced.get(tensor) in on_host)
        moves.update(((op.group, tensor), None) for tensor in stored)
    return tuple(moves)


@dataclass(frozen=True)
class Residency:
    """What the operations do not say about memory.

    `arrivals[t]` is the operation before which input t comes from another mesh, `literals` are
    constants whose elements differ and which therefore lie in memory all the time. `on_host` are
    inputs that lie in the memory of the hosts: a device holds them, and what replaces them, while
    groups of operations that read or make these run."""

    loop: MicrobatchLoop | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()
    on_host: frozenset[int] = frozenset()

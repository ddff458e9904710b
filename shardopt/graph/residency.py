"""What the order of a graph's operations does not say about memory: loops, arrivals from other
meshes, literals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class Residency:
    """What the operations do not say about memory.

    `arrivals[t]` is the operation before which input t comes from another mesh, `literals` are
    constants whose elements differ and which therefore lie in memory all the time."""

    loop: MicrobatchLoop | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()

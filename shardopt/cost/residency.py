"""What the order of a graph's operations does not say about memory: loops, arrivals from other meshes, literals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Loop:
    """Operations [start, stop) run once a microbatch; `in_flight` of these are between forward and backward at once."""

    start: int
    stop: int
    in_flight: int = 1


@dataclass(frozen=True)
class Residency:
    """What the operations do not say about memory.

    `arrivals[t]` is the operation before which input t comes from another mesh, `literals` are constants whose elements
    differ and which therefore lie in memory all the time.
    """

    loop: Loop | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()

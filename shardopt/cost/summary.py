"""Predicted cost of some operations of a plan on one device: what planners hand to each other and
the IR records."""

from __future__ import annotations

from dataclasses import dataclass

from shardopt.cost.collectives import ALL_REDUCE, REDUCE_SCATTER
from shardopt.cost.traffic import Traffic


@dataclass(frozen=True)
class CostSummary:
    """Seconds, bytes and collectives of the operations in question.

    `peak_bytes` is the most a device holds while one of the operations runs. `traffic` are the
    collectives by kind and mesh axes, sorted. `hidden_seconds` are those of the communication that
    pass while the device computes; `host_seconds` pass while state comes from the memory of the
    host and goes back, and nothing else does."""

    compute_seconds: float
    communication_seconds: float
    peak_bytes: int
    traffic: tuple[Traffic, ...]
    hidden_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        busy = self.compute_seconds + self.communication_seconds - self.hidden_seconds
        return busy + self.host_seconds

    @property
    def communication_bytes(self) -> int:
        """Bytes of one device that take part in collectives, counted as `Traffic` does."""
        return sum(item.bytes for item in self.traffic)

    @property
    def summed_bytes(self) -> int:
        """Of the terms that one device has in sums over devices."""
        return self.scattered_bytes + self._bytes_of(ALL_REDUCE)

    @property
    def scattered_bytes(self) -> int:
        """Of those of its terms of whose sum it gets a part."""
        return self._bytes_of(REDUCE_SCATTER)

    def _bytes_of(self, kind: str) -> int:
        return sum(item.bytes for item in self.traffic if item.kind == kind)

    @property
    def collectives(self) -> tuple[tuple[str, int], ...]:
        """(kind, number of tensors), sorted by kind."""
        kinds = sorted({item.kind for item in self.traffic})
        return tuple(
            (kind, sum(item.tensors for item in self.traffic if item.kind == kind))
            for kind in kinds
        )

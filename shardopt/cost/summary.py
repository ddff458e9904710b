"""Predicted cost of some operations of a plan on one device: what planners hand to each other and the IR records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostSummary:
    """Seconds, bytes and collectives of the operations in question.

    `communication_bytes` are those that take part in collectives, as the formula of each kind counts them (see
    `shardopt.cost.collectives`). `peak_bytes` is the most a device holds while one of the operations runs.
    `collectives` are (kind, number), sorted by kind.
    """

    compute_seconds: float
    communication_seconds: float
    communication_bytes: int
    peak_bytes: int
    collectives: tuple[tuple[str, int], ...]

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

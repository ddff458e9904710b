"""Time against memory: what the solver finds, the IR records and the report draws."""

from __future__ import annotations

from dataclasses import dataclass

# A gap this small is rounding.
_ROUNDING = 1e-7


@dataclass(frozen=True)
class FrontierPoint:
    """A plan that no other known plan beats in both: `seconds` is its cost, `recomputed` counts the
    values that it computes again.

    No plan within `peak_bytes` takes less than `bound_seconds`. No plan is faster (within the
    tolerance of the search) at any budget up to `fastest_to_bytes`: None for all budgets,
    `peak_bytes` - 1 where nothing is proven."""

    peak_bytes: int
    seconds: float
    bound_seconds: float
    fastest_to_bytes: int | None
    recomputed: int

    @property
    def gap(self) -> float:
        """(seconds - bound) / seconds, never negative."""
        return max(self.seconds - self.bound_seconds, 0.0) / self.seconds if self.seconds else 0.0

    @property
    def status(self) -> str:
        return "optimal" if self.gap <= _ROUNDING else "feasible"


@dataclass(frozen=True)
class Frontier:
    """Points by bytes, the smallest first. No plan holds less than `least_bound_bytes`. It is
    `complete` when the least time (within the tolerance) is known at every budget; `searches`
    counts solves within a budget."""

    points: tuple[FrontierPoint, ...]
    least_bound_bytes: int
    complete: bool
    searches: int

    def to_json(self) -> dict[str, object]:
        return {
            "complete": self.complete,
            "searches": self.searches,
            "least_bound_bytes": self.least_bound_bytes,
            "points": [
                {
                    "peak_bytes": point.peak_bytes,
                    "seconds": point.seconds,
                    "bound_seconds": point.bound_seconds,
                    "gap": point.gap,
                    "status": point.status,
                    "fastest_to_bytes": point.fastest_to_bytes,
                    "recomputed": point.recomputed,
                }
                for point in self.points
            ],
        }

"""The cheapest mixture of known plans within a memory limit, and the prices of memory at which it
is paid for.

A mixture takes a share of each plan, and holds that share of what the plan holds. Its linear
program is the master of Dantzig and Wolfe's decomposition (1960); the multipliers of its limit, one
for each time, are the next prices of the relaxation (Kelley 1960). Few times bind: those at which a
mixture exceeds the limit are added until none does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A mixture may hold this share more than the limit: what is left is rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class SeenPlan:
    """What a choice costs and holds, int64 `[times]`."""

    choice: tuple[int, ...]
    seconds: float
    live_bytes: np.ndarray

    def priced(self, prices: np.ndarray) -> float:
        """Its seconds and what it pays for memory."""
        return self.seconds + float(prices @ self.live_bytes)


@dataclass(frozen=True, eq=False)
class Mixture:
    """`prices` float64 `[times]` are seconds of a byte. A plan makes the mixture cheaper if what it
    costs at these prices is less than `paid`. `excess` is what the mixture holds above the limit,
    as a share of that, or in bytes where the limit is 0."""

    prices: np.ndarray
    paid: float
    excess: float


def cheapest_mixture(plans: Sequence[SeenPlan], limit: int, dearness: float) -> Mixture:
    """The mixture of least seconds within the limit, which it may exceed for `dearness` seconds
    each time the limit, or for each byte where that is 0."""
    unit = max(limit, 1)
    times = sorted({int(plan.live_bytes.argmax()) for plan in plans})
    while True:
        shares, excess, paid, prices = _solved(plans, times, limit, dearness)
        held = sum(share * plan.live_bytes for share, plan in zip(shares, plans, strict=True))
        worst = int(np.argmax(held))
        if worst in times or held[worst] <= limit + unit * (excess + _ROUNDING):
            break
        times = sorted((*times, worst))
    of_time = np.zeros(len(plans[0].live_bytes))
    of_time[times] = prices / unit
    return Mixture(of_time, paid, excess)


def _solved(
    plans: Sequence[SeenPlan], times: Sequence[int], limit: int, dearness: float
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Shares of the plans, the excess, and the multipliers of "shares add up to 1" and of the limit
    at the times."""
    from ortools.math_opt.python import mathopt

    model, unit = mathopt.Model(), max(limit, 1)
    shares = [model.add_variable(lb=0.0) for _ in plans]
    excess = model.add_variable(lb=0.0)
    whole = model.add_linear_constraint(mathopt.fast_sum(shares) == 1.0)
    held = [
        model.add_linear_constraint(
            mathopt.fast_sum(
                share * float(plan.live_bytes[time] / unit)
                for share, plan in zip(shares, plans, strict=True)
            )
            - excess
            <= limit / unit
        )
        for time in times
    ]
    seconds = (share * plan.seconds for share, plan in zip(shares, plans, strict=True))
    model.minimize(mathopt.fast_sum(seconds) + dearness * excess)
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    # Multipliers of upper bounds are never positive.
    prices = np.maximum(-np.array([result.dual_values(row) for row in held]), 0.0)
    values = np.array(result.variable_values(shares))
    return values, result.variable_values(excess), result.dual_values(whole), prices

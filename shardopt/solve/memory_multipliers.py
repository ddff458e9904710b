"""Lagrangian multipliers for memory: a price per byte at each time turns the limit into node costs.

For any prices λ >= 0 the optimum of cost + Σ_t λ_t (usage_t - limit) is a lower bound, and its assignment tends to keep
the limit as prices rise. Without memory the problem is often narrow enough for dynamic programming, so this gives a
good assignment and a bound where the integer program would take minutes to its first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.problem import Problem, evaluate, relative_gap

# An exact solver of a problem without memory: an optimal choice, or None if it gives up, which ends the search.
RelaxedSolver = Callable[[Problem], tuple[int, ...] | None]

_MAX_DOUBLINGS = 40
_MAX_BISECTIONS = 8
_MAX_STEPS = 60
_REPAIR_EVERY = 15  # steps between attempts to reach an allowed assignment from the current prices
_REPAIRS = 8
_REPAIR_STEEPNESS = 0.02  # first raise, as a share of the highest price


@dataclass(frozen=True)
class PricedResult:
    """The best assignment that keeps the limit (empty if none was met), its objective, and a proven lower bound."""

    choice: tuple[int, ...]
    objective: float
    bound: float
    solves: int


def search_prices(
    problem: Problem, relaxed: RelaxedSolver, *, deadline: float | None = None, gap_tolerance: float = 0.0
) -> PricedResult:
    """Raise a uniform price until the limit is kept, bisect it, then improve the prices of single times.

    `deadline` is in seconds of `monotonic`; without one the number of relaxed solves is fixed.
    """
    search = _Search(problem, relaxed, deadline, gap_tolerance)
    search.find_uniform_price()
    if search.choice:
        search.improve_prices()
    return PricedResult(search.choice, search.objective, search.bound, search.solves)


class _Search:
    def __init__(self, problem: Problem, relaxed: RelaxedSolver, deadline: float | None, gap_tolerance: float) -> None:
        assert problem.usages is not None and problem.memory_limit is not None
        self.problem, self.relaxed, self.deadline, self.gap_tolerance = problem, relaxed, deadline, gap_tolerance
        self.usages, self.limit = problem.usages, problem.memory_limit
        self.choice: tuple[int, ...] = ()
        self.objective, self.bound, self.solves = inf, -inf, 0
        self.best_prices = np.zeros(problem.num_times)
        self.gave_up = False

    @property
    def done(self) -> bool:
        late = self.deadline is not None and monotonic() >= self.deadline
        return late or self.gave_up or relative_gap(self.objective, self.bound) <= self.gap_tolerance

    def find_uniform_price(self) -> None:
        if self.done:
            return
        ones = np.ones(self.problem.num_times)
        excess, _ = self.probe(0.0 * ones)
        # A price at which one limit's worth of bytes, held throughout, costs a thousandth of everything.
        high = 1e-3 * max(abs(self.bound), np.finfo(float).tiny) / (max(self.limit, 1) * len(ones))
        low = 0.0
        for _ in range(_MAX_DOUBLINGS):
            if self.done or excess.max() <= 0:
                break
            excess, _ = self.probe(high * ones)
            if excess.max() > 0:
                low, high = high, 2 * high
        for _ in range(_MAX_BISECTIONS):
            if self.done or not self.choice:
                return
            middle = 0.5 * (low + high)
            excess, _ = self.probe(middle * ones)
            low, high = (middle, high) if excess.max() > 0 else (low, middle)

    def improve_prices(self) -> None:
        """Projected subgradient ascent with Polyak's step towards the best objective; halved when it stalls."""
        prices, scale, stalled = self.best_prices, 1.0, 0
        for step in range(_MAX_STEPS):
            if self.done:
                return
            before = self.bound
            excess, value = self.probe(prices)
            direction = np.where((prices > 0) | (excess > 0), excess, 0.0)
            length = float(direction @ direction)
            if length == 0.0:
                return  # the limit is kept and no slack is paid for: optimal
            if self.bound <= before:
                stalled += 1
                if stalled == 4:
                    prices, scale, stalled = self.best_prices, 0.5 * scale, 0
                    continue
            prices = np.maximum(prices + scale * max(self.objective - value, 0.0) / length * direction, 0.0)
            if step % _REPAIR_EVERY == _REPAIR_EVERY - 1:
                self.repair(self.best_prices)

    def repair(self, prices: np.ndarray) -> None:
        """Raise prices where the limit is exceeded, ever more steeply, until it is kept."""
        level = float(prices.max(initial=0.0))
        for attempt in range(_REPAIRS):
            if self.done:
                return
            excess, _ = self.probe(prices)
            if excess.max() <= 0:
                return
            steepness = _REPAIR_STEEPNESS * 2.0**attempt
            prices = prices + steepness * level * np.maximum(excess, 0.0) / excess.max()

    def probe(self, prices: np.ndarray) -> tuple[np.ndarray, float]:
        """Solve at these prices: float64 bytes above the limit at each time, and the bound this proves."""
        self.solves += 1
        choice = self.relaxed(Problem(self.priced_costs(prices), self.problem.edges))
        if choice is None:
            self.gave_up = True
            return np.zeros(self.problem.num_times), -inf
        objective, _, feasible = evaluate(self.problem, choice)
        if feasible and objective < self.objective:
            self.choice, self.objective = choice, objective
        excess = self.usage(choice) - self.limit
        value = objective + float(prices @ excess)
        if value > self.bound:
            self.bound, self.best_prices = value, prices
        return excess.astype(np.float64), value

    def priced_costs(self, prices: np.ndarray) -> tuple[np.ndarray, ...]:
        until = np.concatenate([[0.0], np.cumsum(prices)])
        costs = []
        for cost, segments in zip(self.problem.costs, self.usages, strict=True):
            for usage in segments:
                cost = cost + (until[usage.hi] - until[usage.lo]) * usage.bytes
            costs.append(cost)
        return tuple(costs)

    def usage(self, choice: tuple[int, ...]) -> np.ndarray:
        change = np.zeros(self.problem.num_times + 1, dtype=np.int64)
        for strategy, segments in zip(choice, self.usages, strict=True):
            for usage in segments:
                change[usage.lo] += usage.bytes[strategy]
                change[usage.hi] -= usage.bytes[strategy]
        return np.cumsum(change)[:-1]

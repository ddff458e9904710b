"""Assignments for large problems: exact dynamic programming on random induced forests, again and
again.

Nodes that form a forest among themselves, with all others held fixed, have an optimum that costs
one pass over their tables. Over the whole graph such passes lower a priced cost; over
neighbourhoods, with memory checked exactly, they improve an assignment that keeps the limit."""

from __future__ import annotations

from math import inf

import numpy as np

from shardopt.solve.assignment.large import forest_moves as moves
from shardopt.solve.assignment.large import message_kernels as kernels
from shardopt.solve.assignment.large.flat_problem import Flat
from shardopt.solve.assignment.large.forest_kernels import make_scratch

# Forests over the whole graph, for a new start and after a change of prices.
_FIRST_PASSES, _LATER_PASSES = (15, 4)
_RAISES, _STEEPNESS, _STEEPENING = 30, 0.02, 1.5
# Halvings, which leave 2 % of the interval of prices.
_BISECTIONS = 6
_ROUNDING = 1e-12  # changes of cost below this share of it are rounding


class ForestSearch:
    """The best assignment that keeps the limit; `objective` is inf and `choice` None until there is
    one."""

    def __init__(self, flat: Flat, seed: int) -> None:
        self.flat = flat
        self.scratch = make_scratch(flat, seed)
        self.choice: np.ndarray | None = None
        self.objective = inf
        self.work = 0
        self._priced = np.zeros(len(flat.costs))

    def offer(self, choice: np.ndarray) -> bool:
        """Take `choice` if it keeps the limit and is better; whether it keeps the limit."""
        if self._excess(choice).max(initial=0) > 0:
            return False
        objective = self.cost(choice)
        if objective < self.objective:
            self.choice, self.objective = choice.copy(), objective
        return bool(objective < inf)

    def cost(self, choice: np.ndarray) -> float:
        return float(kernels.cost_of(self.flat, self.flat.costs, choice))

    def start_from(self, choice: np.ndarray, prices: np.ndarray, scale: float) -> np.ndarray | None:
        """An assignment near `choice` that keeps the limit at raised prices, as low as they can be;
        None if none does.

        `scale` is a price per byte to raise by where `prices` are all 0.
        """
        candidate = choice.copy()
        self._relax(candidate, prices, _FIRST_PASSES)
        if self.offer(candidate):
            return candidate
        low, high = prices, prices
        level = max(float(prices.max(initial=0.0)), scale)
        for attempt in range(_RAISES):
            excess = np.maximum(self._excess(candidate), 0)
            if not excess.any():
                break
            low = high
            high = high + _STEEPNESS * _STEEPENING**attempt * level * excess / excess.max()
            self._relax(candidate, high, _LATER_PASSES)
        else:
            return None
        self.offer(candidate)
        return self._lower_prices(candidate, low, high)

    def polish(
        self, choice: np.ndarray, prices: np.ndarray, work: int, heat: float = 0.0
    ) -> np.ndarray:
        """Improve an assignment that keeps the limit, in place, by neighbourhoods; with `heat`,
        shake it."""
        kernels.apply_prices(self.flat, prices, self._priced)
        usage = kernels.usage_of(self.flat, choice)
        noise = _ROUNDING * abs(self.cost(choice))
        price = self._priced - self.flat.costs
        self.work += moves.search(self.flat, self.scratch, price, choice, usage, work, noise, heat)
        self.offer(choice)
        return choice

    def _lower_prices(self, choice: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Bisect between prices that were too low and prices at which `choice` keeps the limit."""
        best, cost = choice, self.cost(choice)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            trial = best.copy()
            self._relax(trial, middle, _LATER_PASSES)
            if not self.offer(trial):
                low = middle
                continue
            high = middle
            if (value := self.cost(trial)) < cost:
                best, cost = trial, value
        return best

    def _relax(self, choice: np.ndarray, prices: np.ndarray, passes: int) -> None:
        kernels.apply_prices(self.flat, prices, self._priced)
        moves.relax(self.flat, self.scratch, self._priced - self.flat.costs, choice, passes)
        self.work += passes * self.flat.sweep_work

    def _excess(self, choice: np.ndarray) -> np.ndarray:
        return kernels.usage_of(self.flat, choice) - self.flat.capacity

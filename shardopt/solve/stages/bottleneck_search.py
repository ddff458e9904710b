"""The search over t_max, the longest station of the pipeline: branch and bound over its candidate values.

If F(t) uses only m <= t, no t in [m, t] does better, and every t in (a, m) has T >= F(t) + (B - 1) · (next candidate
above a); intervals that cannot win are dropped, others halved. It visits tens of candidates instead of the thousands of
an upward enumeration and stays exact, so the epsilon of the paper is not needed. The recursion itself leaves out what
cannot beat the best plan known, so a good plan to begin with makes all of it shorter.
"""

from __future__ import annotations

import heapq

import numpy as np

from shardopt.solve.stages.stage_problem import StageSolution, evaluate
from shardopt.solve.stages.stage_searches import Search

ROUNDING = 1e-9  # sums of the same stages in another order differ by less than this share


class BottleneckSearch:
    """Branch and bound over t_max for one recursion.

    `best` is the best plan known, also of other recursions; plans longer than `cutoff` are of no interest. Afterwards
    `found` are the plans met on the way, each of least sum for some t_max, and `evaluations` counts the t_max tried.
    """

    def __init__(self, search: Search, best: StageSolution | None = None, cutoff: float = np.inf) -> None:
        self.search, self.problem = search, search.problem
        self.candidates = search.recursion.candidates
        self.repeats = search.problem.num_microbatches - 1
        self.best, self.cutoff = best, cutoff if best is None else min(cutoff, best.seconds)
        self.found: list[StageSolution] = []
        self.evaluations = 0
        # Open intervals of candidates (bound, low, high, floor): t_max strictly between, sum at least floor.
        self._queue: list[tuple[float, int, int, float]] = []

    def run(self) -> StageSolution | None:
        """The best plan of this recursion, or the one known before if none is shorter."""
        if not len(self.candidates):
            return self.best
        low, floor = self._low_end()
        if np.isinf(self.cutoff):
            loosest = self._attempt(len(self.candidates) - 1, 0)
            if loosest is not None:
                self._push(low, self._index(loosest.max_stage_seconds), loosest.sum_seconds)
        else:
            self._push(low, len(self.candidates), floor)
        while self._queue:
            bound, low, high, floor = heapq.heappop(self._queue)
            if bound >= self.cutoff:
                break
            if self.repeats:  # a longer t_max cannot win even with the least sum
                high = min(high, self._index((self.cutoff - floor) / self.repeats) + 1)
            middle = (low + high) // 2
            if not low < middle < high:
                continue
            plan = self._attempt(middle, low + 1)
            if plan is not None:
                self._push(low, self._index(plan.max_stage_seconds), plan.sum_seconds)
            self._push(middle, high, floor)
        return self.best

    def _low_end(self) -> tuple[int, float]:
        """The last candidate below which even stages with little memory in use have no plan, and their least sum."""
        recursion = self.search.recursion
        if not recursion.counted:
            return -1, 0.0
        low, high = -1, len(self.candidates) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if np.isfinite(recursion.least_sum(self.candidates[middle])) else (middle, high)
        return low, recursion.least_sum(self.candidates[-1])

    def _push(self, low: int, high: int, floor: float) -> None:
        if high - low > 1:
            heapq.heappush(self._queue, (floor + self.repeats * float(self.candidates[low + 1]), low, high, floor))

    def _attempt(self, candidate: int, least: int) -> StageSolution | None:
        """The plan of least sum among those without a station slower than this candidate t_max.

        None if there is none, or none within the cutoff while its longest station is at least candidate `least`.
        """
        self.evaluations += 1
        limit = self.cutoff * (1 + ROUNDING) - self.repeats * float(self.candidates[least])
        stations = self.search.recursion.solve(float(self.candidates[candidate]), limit)
        if stations is None:
            return None
        plan = evaluate(self.problem, self.search.stages(stations))
        self.found.append(plan)
        if plan.seconds < self.cutoff or (self.best is None and plan.seconds <= self.cutoff):
            self.best, self.cutoff = plan, plan.seconds
        return plan

    def _index(self, seconds: float) -> int:
        """Index of the first candidate that is not below `seconds`."""
        return int(np.searchsorted(self.candidates, seconds))

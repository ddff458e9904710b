"""The search over t_max, the longest station of the pipeline: branch and bound over its candidate values.

If F(t) uses only m <= t, no t in [m, t] does better, and every t in (a, m) has T >= F(t) + (B - 1) · (next candidate
above a); intervals that cannot win are dropped, others halved. It visits tens of candidates instead of the thousands of
an upward enumeration and stays exact, so the epsilon of the paper is not needed. The recursion itself leaves out what
cannot beat the best plan known, so a good plan to begin with makes all of it shorter.
"""

from __future__ import annotations

import heapq

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, StageSolution, evaluate
from shardopt.solve.stages.stage_searches import Search

ROUNDING = 1e-9  # sums of the same stages in another order differ by less than this share


class _Attempts:
    """Solves the recursion for given t_max and remembers the best plan and the number of attempts."""

    def __init__(self, problem: StageProblem, search: Search, best: StageSolution | None) -> None:
        self.problem, self.search, self.best, self.count = problem, search, best, 0
        self.candidates = search.recursion.candidates
        self.repeats = problem.num_microbatches - 1

    def __call__(self, candidate: int, least: int) -> StageSolution | None:
        """The plan of least sum among those without a station slower than this candidate t_max.

        None if there is none, or none that beats the best while its longest station is at least candidate `least`.
        """
        self.count += 1
        limit = np.inf
        if self.best is not None:
            limit = self.best.seconds * (1 + ROUNDING) - self.repeats * float(self.candidates[least])
        stations = self.search.recursion.solve(float(self.candidates[candidate]), limit)
        if stations is None:
            return None
        plan = evaluate(self.problem, self.search.stages(stations))
        if self.best is None or plan.seconds < self.best.seconds:
            self.best = plan
        return plan

    def index(self, seconds: float) -> int:
        """Index of the first candidate that is not below `seconds`."""
        return int(np.searchsorted(self.candidates, seconds))


def branch_and_bound(
    problem: StageProblem, search: Search, best: StageSolution | None
) -> tuple[StageSolution | None, int]:
    """The best plan of this search, or `best` if none is shorter, and how many t_max were tried."""
    attempt = _Attempts(problem, search, best)
    repeats = attempt.repeats
    # Open intervals of candidates (bound, low, high, floor): t_max strictly between low and high, sum at least floor.
    queue: list[tuple[float, int, int, float]] = []

    def push(low: int, high: int, floor: float) -> None:
        if high - low > 1:
            heapq.heappush(queue, (floor + repeats * float(attempt.candidates[low + 1]), low, high, floor))

    loosest = attempt(len(attempt.candidates) - 1, 0) if len(attempt.candidates) else None
    if loosest is not None:
        push(-1, attempt.index(loosest.max_stage_seconds), loosest.sum_seconds)
    while queue:
        bound, low, high, floor = heapq.heappop(queue)
        if attempt.best is not None and bound >= attempt.best.seconds:
            break
        if attempt.best is not None and repeats:  # a longer t_max cannot win even with the least sum
            high = min(high, attempt.index((attempt.best.seconds - floor) / repeats) + 1)
        middle = (low + high) // 2
        if not low < middle < high:
            continue
        plan = attempt(middle, low + 1)
        if plan is not None:
            push(low, attempt.index(plan.max_stage_seconds), plan.sum_seconds)
        push(middle, high, floor)
    return attempt.best, attempt.count

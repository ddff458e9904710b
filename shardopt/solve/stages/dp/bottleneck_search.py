"""The search over t_max, the longest slot of the pipeline: branch and bound over its candidate
values.

If F(t) uses only m <= t, no t in [m, t] does better, and every t in (a, m) has T >= F(t) + (B - 1)
· (next candidate above a); intervals that cannot win are dropped, others halved. It visits tens of
candidates instead of the thousands of an upward enumeration and stays exact, so the epsilon of the
paper is not needed. The recursion itself leaves out what cannot beat the best plan known, so a good
plan to begin with makes all of it shorter."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from shardopt.solve.stages.dp.recursion import PipelineSlot, Recursion
from shardopt.solve.stages.dp.searches import Search
from shardopt.solve.stages.stage_problem import StageSolution

ROUNDING = 1e-9  # sums of the same stages in another order differ by less than this share


class BottleneckSearch:
    """Branch and bound over t_max for one recursion.

    `best` is the best plan known, also of other recursions; plans longer than `cutoff` are of no
    interest. Afterwards `plans_met` are the plans met on the way, each of least sum for some t_max,
    and `evaluations` counts the t_max tried."""

    def __init__(
        self, search: Search, best: StageSolution | None = None, cutoff: float = np.inf
    ) -> None:
        self.search = search
        self.best, self.cutoff = best, cutoff if best is None else min(cutoff, best.seconds)
        self.plans_met: list[StageSolution] = []
        self.evaluations = 0

    def run(self) -> StageSolution | None:
        """The best plan of this recursion, or the one known before if none is shorter."""
        recursion, repeats = self.search.recursion, self.search.problem.num_microbatches - 1
        low, floor = -1, 0.0
        if recursion.relaxed is not None:
            low, floor = recursion.relaxed.low_end
            # With a plan known already, the cutoff does what the relaxed recursion is for: skip it.
            if np.isinf(self.cutoff) and self._is_settled_by(recursion.relaxed):
                return self.best
        intervals = Intervals(recursion, repeats, self.cutoff)
        for slots in intervals.run(low, floor):
            plan = self.search.plan(slots)
            assert plan is not None, "the recursion has stages that fit"
            self._take(plan)
            intervals.went(plan.sum_seconds, plan.slot_seconds, self.cutoff)
        self.evaluations += intervals.evaluations
        return self.best

    def _is_settled_by(self, relaxed: Recursion) -> bool:
        """Begin with what the relaxed recursion finds, as far as it fits: whether that is as good
        as the bound."""
        intervals = Intervals(relaxed, self.search.problem.num_microbatches - 1, np.inf)
        least = np.inf
        for slots in intervals.run(-1, 0.0):
            total, longest = relaxed.measure(slots)
            least = min(least, total + intervals.repeats * longest)
            intervals.went(total, longest, least)
            plan = self.search.plan(slots)
            if plan is not None:
                self._take(plan)
        self.evaluations += intervals.evaluations
        return self.best is not None and self.best.seconds <= least * (1 + ROUNDING)

    def _take(self, plan: StageSolution) -> None:
        self.plans_met.append(plan)
        if plan.seconds < self.cutoff or (self.best is None and plan.seconds <= self.cutoff):
            self.best, self.cutoff = plan, plan.seconds


class Intervals:
    """The open intervals of t_max that may hold a plan within `cutoff`. `run` asks the recursion
    for one t_max after another; the caller says with `went` what came of each answer, before it
    takes the next."""

    def __init__(self, recursion: Recursion, repeats: int, cutoff: float) -> None:
        self.recursion, self.repeats, self.cutoff = recursion, repeats, cutoff
        self.candidates = recursion.candidates
        self.evaluations = 0
        # (bound, low, high, floor): t_max strictly between two candidates, sum at least floor.
        self._queue: list[tuple[float, int, int, float]] = []
        self._answer = (0.0, 0.0)

    def went(self, total: float, longest: float, cutoff: float) -> None:
        """The sum and the longest slot of the last answer, and the cutoff since."""
        self._answer, self.cutoff = (total, longest), cutoff

    def run(self, low: int, floor: float) -> Iterator[tuple[PipelineSlot, ...]]:
        """Answers for values of t_max above candidate `low`; all sums are at least `floor`."""
        high = len(self.candidates)
        if np.isinf(self.cutoff) and high > low + 1:
            # The least sum of all plans, whatever their longest slot: it bounds the sums of all
            # intervals.
            slots = self._solve(high - 1, 0)
            if slots is None:
                return
            yield slots
            floor, longest = self._answer
            high = self._index(longest)
        self._push(low, high, floor)
        while self._queue:
            bound, low, high, floor = heapq.heappop(self._queue)
            # The heap rises, so every other interval is as bad.
            if bound >= self.cutoff:
                return
            if self.repeats:  # a longer t_max cannot win even with the least sum
                high = min(high, self._index((self.cutoff - floor) / self.repeats) + 1)
            middle = (low + high) // 2
            if not low < middle < high:
                continue
            slots = self._solve(middle, low + 1)
            # Where there is no answer, no t_max in (low, middle] can win: a smaller t_max allows
            # fewer stages. An answer is the best down to the longest slot that it uses; below that,
            # sums are at least its sum.
            if slots is not None:
                yield slots
                self._push(low, self._index(self._answer[1]), self._answer[0])
            self._push(middle, high, floor)

    def _solve(self, candidate: int, least: int) -> tuple[PipelineSlot, ...] | None:
        """The stages of least sum up to this candidate t_max; None if there are none, or none
        within the cutoff while the longest slot is at least candidate `least`."""
        self.evaluations += 1
        limit = self.cutoff * (1 + ROUNDING) - self.repeats * float(self.candidates[least])
        return self.recursion.solve(float(self.candidates[candidate]), limit)

    def _push(self, low: int, high: int, floor: float) -> None:
        if high - low > 1:
            heapq.heappush(
                self._queue,
                (floor + self.repeats * float(self.candidates[low + 1]), low, high, floor),
            )

    def _index(self, seconds: float) -> int:
        """Index of the first candidate that is not below `seconds`."""
        return int(np.searchsorted(self.candidates, seconds))

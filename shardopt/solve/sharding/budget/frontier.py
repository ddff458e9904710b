"""Least seconds at every memory budget: the Pareto front of time and memory, as TensorOpt draws it
(arXiv 2004.10856, §3), here with a proof at each point.

The least time is a step function of the budget: it falls as the budget grows, from the smallest
budget that any plan fits into to the peak of the plan without a limit. A search within the budget b
that ends with a plan of peak p says what it is over all of [p, b]:

1. Solve without a limit, and for the least peak; they are the ends.
2. Solve at budgets that are evenly spaced between them, the largest first, and at the least peak.
3. Then one byte below the peaks of the plans found, where the step between two neighbours is
   largest, until no step is left open or the searches are spent.

What a search has proven is not proven again: a bound of one budget is one of all smaller ones, so
it is handed down, and a plan is kept for all larger ones. A budget for which some plan is known to
be as fast as the bound needs no search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from shardopt.cost.frontier import Frontier, FrontierPoint
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Solution, relative_gap
from shardopt.solve.sharding.budget.kept_copies import Overlooked
from shardopt.solve.sharding.budget.least_peak import find_least_peak
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import OPTIMAL_GAP, Fit, fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.support.progress import progress


def find_frontier(
    problem: IntraOpProblem,
    searches: int,
    *,
    relaxed: Solution | None = None,
    limits: SearchLimits = NO_LIMITS,
) -> Frontier:
    """The front from at most `searches` searches within a budget. `relaxed` is the solution of the
    problem without memory, where that is known; it and the search for the least peak have the whole
    work of the limits, which the searches share. Raises UserError when there is no plan at all,
    ValueError for fewer than one search."""
    if searches < 1:
        raise ValueError(f"expected at least one search within a budget, found {searches}")
    if relaxed is None:
        relaxed = problem.solve(limits)
    return _Search(problem, relaxed, searches, limits).run()


class _Known(NamedTuple):
    """A plan that was found, by its peak; `start` are its strategies of the plain nodes."""

    peak_bytes: int
    seconds: float
    recomputed: int
    start: tuple[int, ...]


@dataclass(eq=False)
class _Search:
    problem: IntraOpProblem
    relaxed: Solution
    searches: int
    limits: SearchLimits
    known: list[_Known] = field(default_factory=list)
    # (budget, bound): no plan within the budget is faster.
    bounds: list[tuple[float, float]] = field(default_factory=list)
    # Budgets at which another search would find what is known: (from, to).
    searched: list[tuple[float, float]] = field(default_factory=list)
    least_bound_bytes: int = 0
    spent: int = 0
    overlooked: Overlooked = field(default_factory=Overlooked)

    def run(self) -> Frontier:
        self._record(inf, fit(self.problem, None, relaxed=self.relaxed))
        self._find_least()
        ends = sorted({plan.peak_bytes for plan in (self.known[0], self.known[-1])})
        shares = max(self.searches // 2, 1)
        for share in range(shares - 1, -1, -1):
            self._search(ends[0] + (ends[-1] - ends[0]) * share // shares)
        while self.spent < self.searches and (budget := self._largest_step()) is not None:
            self._search(budget)
        return self._frontier()

    def _find_least(self) -> None:
        model = BudgetModel(self.problem, find_candidates(self.problem))
        least = find_least_peak(model, self.relaxed.choice, None, self.limits)
        self.least_bound_bytes = least.bound_bytes
        if least.plan is not None:
            self._keep(least.plan, least.solution)

    def _search(self, budget: int) -> None:
        """Search within a budget, unless the least time there is known."""
        if self.spent >= self.searches or self._is_known(budget):
            return
        self.spent += 1
        progress(self.spent, self.searches, "budgets of the frontier")
        larger = [plan for plan in self.known if plan.peak_bytes > budget]
        nearest = min(larger, key=lambda plan: plan.peak_bytes, default=None)
        within = fit(
            self.problem,
            budget,
            limits=self._share,
            relaxed=replace(self.relaxed, bound=self._bound(budget)),
            start=() if nearest is None else nearest.start,
            overlooked=self.overlooked,
        )
        self._record(budget, within)

    @property
    def _share(self) -> SearchLimits:
        """Of one search, so that all of them together end in time."""
        work = self.limits.work
        return replace(self.limits, work=None if work is None else work // self.searches)

    def _record(self, budget: float, within: Fit) -> None:
        if within.plan is None:
            if within.least is not None:
                self.least_bound_bytes = max(self.least_bound_bytes, within.least.bound_bytes)
                if within.least.plan is not None:
                    self._keep(within.least.plan, within.least.solution)
            self.searched.append((0, budget))
            return
        self._keep(within.plan, within.solution)
        self.bounds.append((budget, within.solution.bound))
        self.searched.append((within.plan.peak_bytes, budget))

    def _keep(self, plan: IntraOpPlan, solution: Solution) -> None:
        start = solution.choice[: len(self.problem.problem.costs)]
        self.known.append(
            _Known(plan.peak_bytes, solution.objective, len(plan.rematerialized), start)
        )

    def _bound(self, budget: float) -> float:
        """No plan within the budget is faster."""
        return max((bound for limit, bound in self.bounds if limit >= budget), default=0.0)

    def _front(self) -> list[_Known]:
        """The known plans that no other one beats, the smallest first."""
        front: list[_Known] = []
        for plan in sorted(self.known, key=lambda plan: plan[:2]):
            if not front or plan.seconds < front[-1].seconds * (1 - OPTIMAL_GAP):
                front.append(plan)
        return front

    def _is_fastest(self, plan: _Known, budget: float) -> bool:
        """Whether no plan within the budget is proven faster, within the tolerance."""
        gap = relative_gap(plan.seconds, self._bound(budget))
        return gap <= max(self.limits.gap_tolerance, OPTIMAL_GAP)

    def _is_known(self, budget: int) -> bool:
        if budget < self.least_bound_bytes:
            return True
        if any(low <= budget <= high for low, high in self.searched):
            return True
        fitting = [plan for plan in self._front() if plan.peak_bytes <= budget]
        return bool(fitting) and self._is_fastest(fitting[-1], budget)

    def _steps(self) -> Iterator[tuple[_Known | None, int]]:
        """Each plan of the front, and the largest budget at which a search may improve on it; first
        None, below the least peak."""
        front = self._front()
        yield None, front[0].peak_bytes - 1
        for plan, larger in pairwise(front):
            yield plan, larger.peak_bytes - 1

    def _largest_step(self) -> int | None:
        """The budget where the known steps leave most room for a better plan, by the area of time
        and memory; what is below all plans comes first, as time there is unlimited."""
        front = self._front()
        seconds = {plan.peak_bytes: plan.seconds for plan in front}
        open_: list[tuple[float, int]] = []
        for plan, budget in self._steps():
            if self._is_known(budget):
                continue
            if plan is None:
                return budget
            area = (plan.seconds - seconds[budget + 1]) * (budget + 1 - plan.peak_bytes)
            open_.append((area, budget))
        return max(open_)[1] if open_ else None

    def _frontier(self) -> Frontier:
        front = self._front()
        points = []
        for plan, larger in zip(front, [*front[1:], None], strict=True):
            limits = (inf if larger is None else larger.peak_bytes - 1, *dict(self.bounds))
            reached = [b for b in limits if b >= plan.peak_bytes and self._is_fastest(plan, b)]
            most = min(max(reached, default=plan.peak_bytes - 1), limits[0])
            points.append(
                FrontierPoint(
                    plan.peak_bytes,
                    plan.seconds,
                    min(self._bound(plan.peak_bytes), plan.seconds),
                    None if most == inf else int(most),
                    plan.recomputed,
                )
            )
        complete = self.least_bound_bytes >= front[0].peak_bytes and all(
            point.fastest_to_bytes == (None if larger is None else larger.peak_bytes - 1)
            for point, larger in zip(points, [*points[1:], None], strict=True)
        )
        return Frontier(tuple(points), self.least_bound_bytes, complete, self.spent)

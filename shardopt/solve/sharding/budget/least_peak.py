"""The smallest memory budget that works, between a proven bound and a plan that was found.

For any weights w >= 0 over time that sum to one, no plan has a smaller peak than the least weighted
sum of its usage, and that is a problem without a limit. Weights that follow where the plans found
so far hold most (multiplicative weights, Arora, Hazan and Kale 2012) raise the bound and lower the
peak, in a fixed number of solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.sharding.budget.fewer_bytes import FewerBytes
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.budget.operand_copies import copies_at_excess, split_copies
from shardopt.solve.sharding.budget.start import greedy_start
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan

_ROUNDS = 12
# Weight of the highest time over that of an empty one after one round: e to this power.
_STEEPNESS = 8.0
# A peak this near to the bound is taken for the least, as a share of it.
_CLOSE = 0.005
# Copies held this near to the peak are counted from the next round on.
_NEAR_PEAK = 0.98
# Bytes above every peak that still fit into an int64.
_UNKNOWN = 2**62
# Share of the peak that all costs together weigh: they only break ties, and the bound loses no more
# than this.
_TIE = 1e-3


@dataclass(frozen=True, eq=False)
class LeastPeak:
    """No plan holds less than `bound_bytes`; `plan`, of `solution`, holds `peak_bytes`.

    `weights`, which sum to one over the times, are those of the bound; `copies` are the copies of
    operands that the problems of the search counted."""

    bound_bytes: int
    peak_bytes: int
    plan: IntraOpPlan | None
    solution: Solution
    weights: np.ndarray
    copies: tuple[Operand, ...] = ()


def find_least_peak(
    model: BudgetModel,
    shardings: Sequence[int],
    exceeded: int | None = None,
    limits: SearchLimits = NO_LIMITS,
) -> LeastPeak:
    """`shardings` are strategies of the plain nodes to begin with, `exceeded` a limit that is known
    to be too small. The solves share the work of `limits`."""
    search = _Search(model, 0 if exceeded is None else exceeded + 1, limits)
    search.begin(shardings)
    return search.run()


class _Search:
    def __init__(self, model: BudgetModel, bound: int, limits: SearchLimits) -> None:
        self.model, self.bound = model, bound
        self.limits = SearchLimits(work=limits.budget // _ROUNDS)
        self.copies: dict[Operand, None] = {}
        self.fewer = FewerBytes(model)
        self.weights = np.full(len(model.base.order), 1 / max(len(model.base.order), 1))
        nothing = Solution((), inf, inf, 0.0, "infeasible")
        self.best = LeastPeak(bound, _UNKNOWN, None, nothing, self.weights)

    def begin(self, shardings: Sequence[int]) -> None:
        """The plan with given shardings that recomputes whatever lowers its peak."""
        problem = self.model.problem(0, ())
        start = greedy_start(self.model, problem, (), shardings)
        self._offer(problem, Solution(start, 0.0, 0.0, 0.0, "feasible"))

    def run(self) -> LeastPeak:
        total, weights = np.zeros(len(self.weights)), self.weights
        for _ in range(_ROUNDS):
            plan = self._probe(weights)
            if plan is None or self.best.peak_bytes <= self.bound * (1 + _CLOSE):
                break
            total += plan.live_bytes / max(plan.peak_bytes, 1)
            # The maximum is subtracted so that no power overflows; the weights are normalised next.
            weights = np.exp(_STEEPNESS * (total - total.max()))
            weights /= weights.sum()
            self.copies |= copies_at_excess(
                self.model.base, plan, int(_NEAR_PEAK * plan.peak_bytes)
            )
        self._sharpen()
        return replace(
            self.best,
            bound_bytes=min(self.bound, self.best.peak_bytes),
            weights=self.weights,
            copies=tuple(self.copies),
        )

    def _sharpen(self) -> None:
        """The best bound again, now without what breaking ties costs."""
        if self.best.plan is None or self.bound >= self.best.peak_bytes:
            return
        bytes_alone = weighted(self.model.problem(0, self.copies), self.weights, 0.0)
        solution = solve(bytes_alone, self.limits)
        if solution.choice:
            # Peaks are whole numbers: half a byte is for rounding.
            self.bound = max(self.bound, ceil(solution.bound - 0.5))

    def _probe(self, weights: np.ndarray) -> IntraOpPlan | None:
        """The plan with the least weighted usage, or None when there is no plan at all."""
        problem = self.model.problem(0, self.copies)
        share = tie_share(problem, self._peak())
        start = greedy_start(self.model, problem, self.copies, self.best.solution.choice)
        solution = solve(weighted(problem, weights, share), self.limits, start=start)
        if not solution.choice:
            return None
        # The bound is one of bytes and of the costs that break ties: these come off.
        if (bound := ceil(solution.bound - _TIE * self._peak() - 0.5)) > self.bound:
            self.bound, self.weights = bound, weights
        return self._offer(problem, solution)

    def _offer(self, problem: Problem, solution: Solution) -> IntraOpPlan:
        """The plan of a solution, kept if it holds less than all before; its own costs instead of
        weighted bytes."""
        plan = split_copies(self.model, solution, self._peak() - 1)
        if plan.peak_bytes < self.best.peak_bytes:
            solution, plan = self.fewer.within(problem, solution, plan, 0)
        if plan.peak_bytes < self.best.peak_bytes:
            objective = self.model.base.plan_seconds(plan)
            unweighted = Solution(
                choice=solution.choice,
                objective=objective,
                bound=0.0,
                gap=1.0,
                status="feasible",
                statistics=solution.statistics,
            )
            self.best = LeastPeak(self.bound, plan.peak_bytes, plan, unweighted, self.weights)
        return plan

    def _peak(self) -> int:
        return max(self.bound, 1) if self.best.plan is None else self.best.peak_bytes


def tie_share(problem: Problem, peak: int) -> float:
    """Bytes a second under which all costs together weigh no more than what breaks ties between
    peaks of `peak` bytes."""
    tables = (*problem.costs, *(edge.cost for edge in problem.edges))
    most = sum(float(table[np.isfinite(table)].max(initial=0.0)) for table in tables)
    return _TIE * peak / most if most > 0 else 0.0


def weighted(problem: Problem, weights: np.ndarray, share: float) -> Problem:
    """Without a limit: bytes weighted over the times as costs, and `share` bytes for each second of
    the costs themselves."""
    until = np.concatenate([[0.0], np.cumsum(weights)])
    costs = []
    for cost, segments in zip(problem.costs, problem.usages or (), strict=True):
        held = np.where(np.isfinite(cost), cost, 0.0) * share
        for usage in segments:
            held = held + (until[usage.hi] - until[usage.lo]) * usage.bytes
        costs.append(np.where(np.isfinite(cost), held, np.inf))
    finite = (np.where(np.isfinite(edge.cost), edge.cost, 0.0) * share for edge in problem.edges)
    edges = (
        Edge(edge.u, edge.v, np.where(np.isfinite(edge.cost), scaled, np.inf))
        for edge, scaled in zip(problem.edges, finite, strict=True)
    )
    return Problem(tuple(costs), tuple(edges))

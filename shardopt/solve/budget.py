"""Plans within a memory budget: exact accounting around a solver that sees a relaxation of it.

1. Solve without memory; most stages fit.
2. Else let copies that are shared over a long time be made anew where that is enough.
3. Else solve within the limit, with values that can be computed again. Where the plan exceeds the limit because of
   copies of operands, count these in the problem and solve again; where it does for other reasons (scratch space),
   lower the limit of the problem by the excess. The number of rounds is limited.
4. If nothing fits: the least peak, by `shardopt.solve.least_peak`, which may still be a plan that does.

The problem of step 3 only leaves out memory, so its bound holds for every plan within the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from shardopt.solve.budget_model import BudgetModel, Operand
from shardopt.solve.intra_op import IntraOpProblem
from shardopt.solve.intra_op_plan import IntraOpPlan
from shardopt.solve.least_peak import LeastPeak, find_least_peak
from shardopt.solve.operand_copies import copies_at_excess, split_copies
from shardopt.solve.problem import Solution, relative_gap
from shardopt.solve.rematerialization import find_candidates
from shardopt.solve.sharding_ilp import solve

_MOST_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Fit:
    """A plan within the budget, or None and how much is needed. `rounds` counts solves within a limit."""

    solution: Solution
    plan: IntraOpPlan | None
    least: LeastPeak | None = None
    rounds: int = 0


def fit(
    problem: IntraOpProblem, limit: int | None, *, time_limit_seconds: float | None = None, gap_tolerance: float = 0.0
) -> Fit:
    """The cheapest plan that holds at most `limit` bytes on a device at any time. Raises UserError when there is none
    without any limit."""
    deadline = None if time_limit_seconds is None else monotonic() + time_limit_seconds
    relaxed = problem.solve(time_limit_seconds, gap_tolerance)
    plan = problem.decode(relaxed)
    if limit is None or plan.peak_bytes <= limit:
        return Fit(relaxed, plan)
    plan = split_copies(BudgetModel(problem, ()), relaxed, limit)
    if plan.peak_bytes <= limit:
        return Fit(relaxed, plan)
    return _Search(problem, limit, deadline, gap_tolerance, relaxed.bound).run()


@dataclass(eq=False)
class _Search:
    problem: IntraOpProblem
    limit: int
    deadline: float | None
    gap_tolerance: float
    bound: float

    def run(self) -> Fit:
        model = BudgetModel(self.problem, find_candidates(self.problem))
        copies: dict[Operand, None] = {}
        inner = self.limit
        proven = False
        for number in range(_MOST_ROUNDS):
            solution = solve(
                model.problem(inner, copies), time_limit_seconds=self._left(), gap_tolerance=self.gap_tolerance
            )
            if inner == self.limit:
                self.bound = max(self.bound, solution.bound if solution.choice else self.bound)
                proven = solution.status == "infeasible"
            if not solution.choice:
                break
            plan = split_copies(model, solution, self.limit)
            if plan.peak_bytes <= self.limit:
                return Fit(self._judged(solution), plan, rounds=number + 1)
            missing = copies_at_excess(self.problem, plan, self.limit).keys() - copies.keys()
            copies |= dict.fromkeys(sorted(missing))
            if not missing:
                inner -= plan.peak_bytes - self.limit
            if inner <= 0:
                break
        least = find_least_peak(model, self.limit if proven else None)
        if least.peak_bytes <= self.limit:
            return Fit(self._judged(replace(least.solution, objective=least.objective)), least.plan, least, number + 1)
        return Fit(Solution((), inf, inf, 0.0, "infeasible"), None, least, number + 1)

    def _left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - monotonic(), 1.0)

    def _judged(self, solution: Solution) -> Solution:
        """Choices of the plain problem, with the bound that holds for all plans within the budget."""
        bound = min(self.bound, solution.objective)
        gap = relative_gap(solution.objective, bound)
        status = solution.status if gap <= solution.gap else "feasible"
        own = solution.choice[: len(self.problem.problem.costs)]
        return replace(solution, choice=own, bound=bound, gap=gap, status=status)

"""Plans within a memory budget: exact accounting around a solver that sees a relaxation of it.

1. Solve without memory; most stages fit.
2. Else let copies that are shared over a long time be made anew where that is enough, and not
   dearer than the gap allows.
3. Else put prices on memory (`priced_memory`): a Lagrangian relaxation with equal layers tied, from
   which fast and small plans alike come, with a bound for all within the limit.
4. Solve within the limit, with values that can be recomputed, for plans faster than the best known.
   Where the plan exceeds the limit because of copies of operands, count these in the problem and
   solve again; where it does for other reasons (scratch space, another order of the finished
   program), exclude that assignment from a small problem (`exceeding`) and those with the same
   programs, or lower the limit of the problem by the excess. The number of rounds is limited. Steps
   that readers share are paid for once in a small problem (an integer program, `shared_model`),
   where copies that outlive their first reader or are made again as their value is recomputed count
   too (`held_copies`), and by prices that move in a larger one.
5. If nothing fits: the least peak, by `shardopt.solve.sharding.budget.least_peak`.

The problems of steps 3 and 4 only leave out memory and assignments of which no plan is better than
the best, so their bounds hold for every plan within the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, Status, relative_gap
from shardopt.solve.assignment.search.repeated_layers import is_large
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.assignment.sharing.held_copies import with_held
from shardopt.solve.assignment.sharing.price_rounds import moved_shares, stalls
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.shared_model import Excluded, is_small, solve_exactly
from shardopt.solve.sharding.budget.exceeding import excluding, ways_to_share
from shardopt.solve.sharding.budget.fewer_bytes import FewerBytes
from shardopt.solve.sharding.budget.kept_copies import (
    Overlooked,
    fresh_of,
    held_copy,
    kept_at_excess,
    made_twice,
)
from shardopt.solve.sharding.budget.least_peak import LeastPeak, find_least_peak
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.budget.operand_copies import copies_at_excess, counted, split_copies
from shardopt.solve.sharding.budget.priced_memory import PricedSearch
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.start import greedy_start
from shardopt.solve.sharding.intra_op.finished import finished, recounted
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem

_MOST_ROUNDS, _MOST_EXACT_ROUNDS = 8, 48
# Work of the first exact rounds, as a share of the budget, and how much more the next one has after
# one that was too short.
_FIRST_SHARE, _MORE_WORK = 1 / 16, 4
# Assignments are excluded one by one as long as this share of the work lasts; then the limit is
# lowered instead.
_EXCLUDING_SHARE = 1 / 4
# Work of a solve within the limit, as a share of the budget. For a GPT with 39
# billion parameters, twice this share makes the step 0.001 % shorter; ten times as much again made
# the plans of eight stages 0.03 % shorter in all.
_WORK_SHARE = 0.05
# Rounds in which only prices change: each of a large problem takes seconds. They begin from the
# best plan, and need less work.
_FEW_PRICES, _MANY_PRICES, _WORK_SHARE_OF_PRICES = 2, 24, 0.0125
# Rounds of a large problem end with one that gains less than this share.
_LITTLE = 1e-3
# A gap this small is rounding.
OPTIMAL_GAP = 1e-7


@dataclass(frozen=True, eq=False)
class Fit:
    """A plan within the budget, or None and how much is needed: the solution is "infeasible" where
    that is proven, else "timeout". `rounds` counts solves within a limit."""

    solution: Solution
    plan: IntraOpPlan | None
    least: LeastPeak | None = None
    rounds: int = 0


def fit(
    problem: IntraOpProblem,
    limit: int | None,
    *,
    limits: SearchLimits = NO_LIMITS,
    relaxed: Solution | None = None,
    start: Sequence[int] = (),
    overlooked: Overlooked | None = None,
) -> Fit:
    """The cheapest plan that holds at most `limit` bytes on a device at any time. Raises UserError
    when there is none without any limit.

    `relaxed` is the solution of the problem without memory, where that is known, and `start` an
    assignment of its nodes to begin with within the limit, such as that of a plan which holds more.

    What the search of a small problem has to count is added to `overlooked`; from a search within
    another budget it saves rounds.

    The work of `limits` is for the problem without memory; the search within the limit may
    take about as much work again, and so may the search for the least peak and the one for faster
    plans than its. A clock ends none."""
    # Without the limit first: most stages fit, and where one does not, the bound holds within it
    # too.
    if relaxed is None:
        relaxed = problem.solve(limits)
    plan = finished(problem, problem.decode(relaxed))
    if limit is None or plan.peak_bytes <= limit:
        return Fit(relaxed, plan)
    plan = split_copies(BudgetModel(problem, ()), relaxed, limit)
    dearer = _dearer(relaxed, problem.plan_seconds(plan))
    if plan.peak_bytes <= limit and dearer.gap <= max(limits.gap_tolerance, OPTIMAL_GAP):
        return Fit(dearer, plan)
    found = _Search(
        problem,
        limit,
        limits,
        relaxed,
        tuple(start) or relaxed.choice,
        overlooked or Overlooked(),
    ).run()
    return found if found.plan is None else replace(found, plan=finished(problem, found.plan))


def is_as_short(fit: Fit, other: Fit, gap: float) -> bool:
    """Whether both have plans, and the first takes no longer than the other, but for this share."""
    if fit.plan is None or other.plan is None:
        return False
    return fit.solution.objective <= other.solution.objective * (1 + max(gap, OPTIMAL_GAP))


def taken_over(problem: IntraOpProblem, larger: Fit, smaller: Fit) -> Fit:
    """The plan of `larger`, which holds more microbatches at once than this problem wants, as a
    plan of this one; what bounds `smaller`, which holds fewer, bounds it."""
    assert larger.plan is not None, "of the larger fit a plan is known"
    bound = min(smaller.solution.bound, larger.solution.objective)
    gap = relative_gap(larger.solution.objective, bound)
    status: Status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    solution = replace(larger.solution, bound=bound, gap=gap, status=status)
    return replace(larger, solution=solution, plan=recounted(problem, larger.plan))


def _dearer(solution: Solution, objective: float) -> Solution:
    """The solution of a plan that costs more, as copies are made anew."""
    gap = relative_gap(objective, solution.bound)
    status: Status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    return replace(solution, objective=objective, gap=gap, status=status)


@dataclass(eq=False)
class _Search:
    problem: IntraOpProblem
    limit: int
    limits: SearchLimits
    relaxed: Solution
    start: tuple[int, ...]
    overlooked: Overlooked
    best: Fit | None = None
    # No plan of the assignments that are excluded is faster.
    excluded_bound: float = inf

    def run(self) -> Fit:
        whole = BudgetModel(self.problem, find_candidates(self.problem))
        priced = PricedSearch(
            whole, self.limit, self.limits, lambda choice: self._offer(whole, choice, 0)
        )
        bound = max(self.relaxed.bound, priced.run((self.relaxed.choice, self.start)))
        if is_small(self.problem.sharing, within_memory=True):
            return self._exactly(whole, bound)
        if self.best is not None:
            self.start = self.best.solution.choice
            if self._is_close(bound):
                return self._ended(whole, False, bound)
        elif is_large(self.problem.problem):
            # Where memory was all that counted, nothing fitted.
            return self._least(whole, False, bound)
        return self._within(whole, bound)

    def _within(self, whole: BudgetModel, bound: float) -> Fit:
        """Solve within the limit with every node free, beginning with the best plan known."""
        sharing = self.problem.sharing
        # Shared steps are paid for as in the plan to begin with.
        shares = sharing.fair_shares(sharing.used(self.start))
        model = whole.priced(sharing.priced(shares))
        many = not is_large(self.problem.problem)
        price_rounds = _MANY_PRICES if many else _FEW_PRICES
        limits = replace(self.limits, work=int(_WORK_SHARE * self.limits.budget))
        copies: dict[Operand, None] = {}
        fewer = FewerBytes(model)
        inner, proven, shardings = self.limit, False, self.start
        number, left_rounds, gaps = 0, _MOST_ROUNDS, list[float]()
        while left_rounds:
            number += 1
            problem = model.problem(inner, copies)
            start = greedy_start(model, problem, copies, shardings)
            # The start may fit as it is, and is there even where the solver finds nothing.
            self._offer(model, start, number)
            solution = solve(
                problem,
                limits,
                start=start,
                store=self.problem.tables.strategies.store,
                does_not_fit=True,
            )
            # A lowered limit forbids plans that fit: what it proves is not for the budget.
            if inner == self.limit:
                bound = max(bound, solution.bound if solution.choice else bound)
                proven = solution.status == "infeasible"
            if not solution.choice:
                break
            shardings, before = solution.choice, self._least_seconds
            plan = self._offer(model, solution.choice, number)
            if plan.peak_bytes <= self.limit:
                moved = self._moved(sharing, shares, solution, bound)
                gaps.append(relative_gap(self._least_seconds, bound))
                if moved is None or inner < self.limit or not price_rounds or stalls(gaps):
                    break
                if not many and self._least_seconds > before * (1 - _LITTLE):
                    break
                price_rounds, shares = price_rounds - 1, moved
                limits = replace(limits, work=int(_WORK_SHARE_OF_PRICES * self.limits.budget))
                model = whole.priced(sharing.priced(shares))
                continue
            left_rounds -= 1
            # First count the copies that were overlooked, which is exact; only what no copy
            # explains lowers the limit, which may cut off plans that fit.
            missing = copies_at_excess(self.problem, plan, self.limit).keys() - copies.keys()
            copies |= dict.fromkeys(sorted(missing))
            if not missing:
                self._mend(fewer, problem, solution.choice, plan, number)
            inner -= 0 if missing else plan.peak_bytes - self.limit
            if inner <= 0:
                break
        return self._ended(model, proven, bound)

    def _exactly(self, model: BudgetModel, bound: float) -> Fit:
        """A small problem with shared steps as they are, and copies that outlive their first reader
        as far as they matter.

        What a plan shows to matter is counted from the next round on, so that no round is worth
        much work until a plan shows nothing new."""
        sharing, work = self.problem.sharing, self.limits.budget
        copies, kept, fewer = self.overlooked.copies, self.overlooked.kept, FewerBytes(model)
        excluded, excluding_work = list[Excluded](), int(_EXCLUDING_SHARE * work)
        inner, proven, shardings = self.limit, False, self.start
        if self.best is not None:
            shardings = self.best.solution.choice[: model.first_choice]
        most, known = int(_FIRST_SHARE * work), bound
        for number in range(1, _MOST_EXACT_ROUNDS + 1):
            problem = model.problem(inner, copies)
            held = [held_copy(model, each) for each in kept]
            limited = Sharing(with_held(problem, held), sharing.groups)
            start = greedy_start(model, problem, copies, shardings)
            self._offer(model, start, number)
            stretches = limited.problem.num_nodes - problem.num_nodes
            limits = replace(self.limits, work=min(most, work))
            solution = solve_exactly(
                limited, limits, start + (1,) * stretches, held, self._least_seconds, excluded
            )
            work -= int(solution.statistics["work"])
            if inner == self.limit:
                proven = solution.status == "infeasible"
                bound = max(bound, bound if proven else solution.bound)
            if proven or self._is_close(bound) or work <= 0:
                break
            closed = relative_gap(self._least_seconds, solution.bound)
            if solution.status == "infeasible" or self._is_within_tolerance(closed):
                break
            if not solution.choice:
                most *= _MORE_WORK
                continue
            shardings = solution.choice
            self._offer(model, shardings[: problem.num_nodes], number)
            fresh = fresh_of(self.problem, tuple(kept), held, shardings)
            plan = counted(self.problem, model.decode(solution, fresh), self.limit)
            self._keep(plan, shardings, number)
            if self._is_close(bound):
                break
            more = copies_at_excess(self.problem, plan, self.limit).keys() - copies.keys()
            longer = dict.fromkeys(kept_at_excess(self.problem, plan, self.limit))
            longer |= dict.fromkeys(made_twice(self.problem, plan))
            if more or longer.keys() - kept.keys():
                copies.update(dict.fromkeys(sorted(more)))
                kept.update(longer)
                continue
            is_proven = self._is_within_tolerance(solution.gap)
            if plan.peak_bytes > self.limit:
                # Whether or not it is the best: with more work it would be found again.
                self._mend(fewer, problem, shardings[: problem.num_nodes], plan, number)
                if inner == self.limit and excluding_work > 0:
                    excluding_work -= int(solution.statistics["work"])
                    exceeding = self._exceeding(model, solution, number)
                    if exceeding is not None:
                        excluded.append(exceeding)
                        continue
                if is_proven:
                    inner -= plan.peak_bytes - self.limit
                    if inner <= 0:
                        break
            elif is_proven:
                break
            if not is_proven:
                most *= _MORE_WORK
        if bound == known and self.best is not None and not proven:
            # Not even a linear program came to its end.
            return self._within(model, bound)
        return self._ended(model, proven, bound)

    def _exceeding(self, model: BudgetModel, solution: Solution, number: int) -> Excluded | None:
        """Assignments with the programs of this solution, of which the best within the limit is
        kept; None where these are too many."""
        plans = ways_to_share(model, self._of_choice(solution.choice), self.limit)
        if plans is None:
            return None
        for plan in plans:
            self._keep(plan, solution.choice, number)
        is_proven = self._is_within_tolerance(solution.gap)
        if is_proven:
            # Those of others are faster by no more than the best assignment may be.
            faster = solution.objective - solution.bound
            seconds = (self.problem.plan_seconds(plan) - faster for plan in plans)
            self.excluded_bound = min(self.excluded_bound, *seconds, inf)
        return excluding(model, solution.choice, alike=is_proven or not plans)

    def _ended(self, model: BudgetModel, proven: bool, bound: float) -> Fit:
        """The best plan, or the least one where none fits; `proven` says that none can."""
        if self.best is not None:
            return replace(self.best, solution=self._judged(self.best.solution, bound))
        return self._least(model, proven, bound)

    @property
    def _least_seconds(self) -> float:
        return inf if self.best is None else self.best.solution.objective

    def _is_close(self, bound: float) -> bool:
        bound = min(bound, self.excluded_bound)
        return self._is_within_tolerance(relative_gap(self._least_seconds, bound))

    def _is_within_tolerance(self, gap: float) -> bool:
        return gap <= max(self.limits.gap_tolerance, OPTIMAL_GAP)

    def _moved(
        self, sharing: Sharing, shares: list[np.ndarray], solution: Solution, bound: float
    ) -> list[np.ndarray] | None:
        """Prices under which the bound may be closer to the best plan; None if it is close
        enough."""
        if self._is_close(bound):
            return None
        used = sharing.used(solution.choice[: self.problem.problem.num_nodes])
        return moved_shares(sharing, shares, used, self._least_seconds - solution.bound)

    def _offer(self, model: BudgetModel, choice: tuple[int, ...], number: int) -> IntraOpPlan:
        """The plan of a choice, which is kept if it fits and is cheaper than what was found
        before."""
        plan = split_copies(model, self._of_choice(choice), self.limit)
        self._keep(plan, choice, number)
        return plan

    def _mend(
        self,
        fewer: FewerBytes,
        problem: Problem,
        choice: tuple[int, ...],
        plan: IntraOpPlan,
        number: int,
    ) -> None:
        """Where only the finished program exceeds the limit, perhaps one that recomputes other
        values does not."""
        if plan.rematerialized:
            mended, less = fewer.within(problem, self._of_choice(choice), plan, self.limit)
            self._keep(less, mended.choice, number)

    def _keep(self, plan: IntraOpPlan, choice: tuple[int, ...], number: int) -> None:
        objective = self.problem.plan_seconds(plan)
        if plan.peak_bytes <= self.limit and objective < self._least_seconds:
            solution = replace(self._of_choice(choice), objective=objective)
            self.best = Fit(solution, plan, rounds=number)

    def _of_choice(self, choice: tuple[int, ...]) -> Solution:
        return Solution(
            choice=choice,
            objective=inf,
            bound=0.0,
            gap=1.0,
            status="feasible",
            statistics=self.relaxed.statistics,
        )

    def _least(self, model: BudgetModel, proven: bool, bound: float) -> Fit:
        """The plan of least peak, or what is needed where not even that fits."""
        least = find_least_peak(
            model, self.relaxed.choice, self.limit if proven else None, self.limits
        )
        if least.plan is None or least.peak_bytes > self.limit:
            if least.bound_bytes > self.limit:
                return Fit(Solution((), inf, inf, 0.0, "infeasible"), None, least)
            return Fit(Solution((), inf, bound, inf, "timeout"), None, least)
        self._keep(least.plan, least.solution.choice, 0)
        assert self.best is not None
        best = self.best.solution
        return replace(self.best, solution=self._judged(best, bound), least=least)

    def _judged(self, solution: Solution, bound: float) -> Solution:
        """Choices of the plain problem, with the bound that holds for all plans within the
        budget."""
        bound = min(bound, self.excluded_bound, solution.objective)
        gap = relative_gap(solution.objective, bound)
        choice = solution.choice[: len(self.problem.problem.costs)]
        status: Status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
        return Solution(choice, solution.objective, bound, gap, status, self.relaxed.statistics)

"""One component of a presolved problem, by the cheapest method that suits its size.

1. Enumeration or dynamic programming, where a component is tiny, or narrow and without memory:
   proven at once.
2. A small component: an integer program, to its proof.
3. A component of middle size: messages and forests (`large_problem`) for a moment, as they often
   close the gap, then the integer program, and with what is left messages and forests again.
4. A large component: messages and forests, within a budget of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from time import monotonic

from shardopt.solve.assignment.exact.bucket_elimination import eliminate_all, elimination_order
from shardopt.solve.assignment.exact.enumeration import enumerate_all, is_tiny
from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP, solve_marginal
from shardopt.solve.assignment.large.compilation import compiled_by
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import (
    Problem,
    Solution,
    Status,
    evaluate,
    relative_gap,
    trivial_bound,
)

# Allowed pairs of a component. An integer program proves a small one within a second; of a middle
# one it takes from seconds to minutes; beyond that its first LP alone takes longer than messages
# and forests in all.
_SMALL_PAIRS = 6_000
_MIDDLE_PAIRS = 100_000

# Share of the remaining time or of the work for the integer program of a middle component before
# forests take over: it either proves a problem soon or, with many nodes that use memory, finds
# nothing for minutes.
_INTEGER_PROGRAM_SHARE = 0.5

_GLANCE_SHARE = 0.05  # of the budget, for messages and forests before an integer program

# Called with (objective, bound), as known so far: inf and -inf where nothing is.
Progress = Callable[[float, float], None]


@dataclass(eq=False)
class ComponentSolver:
    """Limits of one solve, and counts of what its components took. `deadline` is in seconds of
    `monotonic`. `counts_programs` says that integer programs have a budget of work, too."""

    deadline: float | None
    gap_tolerance: float
    only_local: bool = False
    only_bound: bool = False
    counts_programs: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def solve(
        self, part: Problem, *, start: tuple[int, ...] | None, work: int, progress: Progress | None
    ) -> Solution:
        """`start` keeps the limit; the answer is no worse."""
        if (method := self.direct_method(part)) is not None:
            return method()
        pairs = pairs_of(part)
        if not _is_compiled() or (pairs <= _SMALL_PAIRS and not self.only_local):
            return self._integer_program(part, start, work)
        if pairs > _MIDDLE_PAIRS or self.only_local:
            return self._large(part, start, work, progress)
        # A glance first: it often closes the gap, and otherwise gives the program a start.
        solution = self._large(part, start, int(_GLANCE_SHARE * work), progress)
        if self._good_enough(solution):
            return solution
        program = self._integer_program(part, solution.choice or None, work, _INTEGER_PROGRAM_SHARE)
        solution = _better(solution, program)
        if solution.status == "infeasible" or self._good_enough(solution):
            return solution
        return _better(solution, self._large(part, solution.choice or None, work, progress))

    def _good_enough(self, solution: Solution) -> bool:
        return solution.gap <= max(self.gap_tolerance, OPTIMAL_GAP)

    def direct_method(self, part: Problem) -> Callable[[], Solution] | None:
        """How to solve a tiny or narrow component; None for others."""
        if is_tiny(part):
            return lambda: self._proven("enumerated", part, enumerate_all(part))
        # The order alone takes long on a graph that presolve had no time to shrink.
        order = None if part.has_memory or self._seconds_left == 0 else elimination_order(part)
        if order is None:
            return None
        return lambda: self._proven("eliminated", part, eliminate_all(part, order))

    def _proven(self, method: str, part: Problem, choice: tuple[int, ...] | None) -> Solution:
        self._count(method)
        if choice is None:
            return Solution((), inf, inf, 0.0, "infeasible")
        objective = evaluate(part, choice).objective
        return Solution(choice, objective, objective, 0.0, "optimal")

    def _integer_program(
        self, part: Problem, start: tuple[int, ...] | None, work: int, share: float = 1.0
    ) -> Solution:
        """`share` is that of the time left and of the work."""
        self._count("integer_programs")
        left = self._seconds_left
        limits = SearchLimits(
            None if left is None else share * left,
            self.gap_tolerance,
            self._program_work(share, work),
        )
        solution = solve_marginal(part, limits, start=start)
        for name in ("columns", "rounds", "memory_rows", "cover_rows"):
            self._count(name, int(solution.statistics[name]))
        if solution.statistics["late"] and not self._good_enough(solution):
            self.counts["time_limit_struck"] = 1
        return solution

    def _program_work(self, share: float, work: int) -> int | None:
        if not self.counts_programs:
            return None
        # Without compiled kernels nothing else is tried, and budgets for messages are too small.
        return int(share * work) if _is_compiled() else max(work, NO_LIMITS.budget)

    def _large(
        self, part: Problem, start: tuple[int, ...] | None, work: int, progress: Progress | None
    ) -> Solution:
        self._count("large_components")
        if not compiled_by(self.deadline):
            self.counts["time_limit_struck"] = 1
            objective = inf if start is None else evaluate(part, start).objective
            status: Status = "timeout" if start is None else "feasible"
            bound = min(trivial_bound(part), objective)
            return Solution(start or (), objective, bound, relative_gap(objective, bound), status)
        from shardopt.solve.assignment.large.large_problem import solve_large

        solution = solve_large(
            part,
            work=work,
            deadline=self.deadline,
            gap_tolerance=self.gap_tolerance,
            start=start,
            progress=progress,
            only_bound=self.only_bound,
        )
        for name in ("ascent_steps", "starts", "work"):
            self._count(name, int(solution.statistics[name]))
        if solution.statistics["late"]:
            self.counts["time_limit_struck"] = 1
        return solution

    def _count(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    @property
    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - monotonic(), 0.0)


def _is_compiled() -> bool:
    """numba follows new Pythons late; all but large problems do without."""
    return find_spec("numba") is not None


def pairs_of(part: Problem) -> int:
    """Entries of all edge tables."""
    return sum(edge.cost.size for edge in part.edges)


def _better(first: Solution, second: Solution) -> Solution:
    """The cheaper of two answers to one problem with the better of the two bounds."""
    # A proof that nothing is allowed holds whichever method found it.
    if "infeasible" in (first.status, second.status):
        return first if first.status == "infeasible" else second
    best = first if first.objective <= second.objective else second
    # Both bounds hold, so the larger does; rounding may have lifted it above the cost.
    bound = min(max(first.bound, second.bound), best.objective)
    gap = relative_gap(best.objective, bound)
    status: Status = (
        "timeout" if not best.choice else "optimal" if gap <= OPTIMAL_GAP else "feasible"
    )
    return Solution(
        choice=best.choice,
        objective=best.objective,
        bound=bound,
        gap=gap,
        status=status,
        statistics=best.statistics,
    )

"""Search in two steps for a problem with many equal parts: solve them once for all, then free them and improve.

1. Tie what looks alike (`shardopt.solve.symmetry`) and solve the small problem. Its solution is an assignment of the
   whole.
2. Solve the whole problem from there in the time that is left. The better assignment stays, so freeing never harms.

The bound is that of the whole problem: what ties cost is part of the gap.
"""

from __future__ import annotations

from time import monotonic

from shardopt.solve.problem import Problem, Solution, Statistic, Status, evaluate, relative_gap
from shardopt.solve.sharding_ilp import solve
from shardopt.solve.symmetry import TiedProblem, tie_repeated

# Table entries of a problem that is solved at once: about a second of the integer program.
_MAX_DIRECT_ENTRIES = 300_000

# Share of the time for the tied problem; it rarely takes it.
_TIED_SHARE = 0.5


def solve_repeated(
    problem: Problem, *, time_limit_seconds: float | None = None, gap_tolerance: float = 0.0
) -> Solution:
    """Least cost within memory, as `shardopt.solve.sharding_ilp.solve` with the same limits.

    Where parts repeat, the statistics have the rounds and nodes of the tied problem (`tied_rounds`, `tied_nodes`), what
    its solution costs (`tied_objective`) and what remains after freeing (`freed_objective`).
    """
    tied = tie_repeated(problem) if table_entries(problem) > _MAX_DIRECT_ENTRIES else None
    if tied is None:
        return _solve_memory_last(problem, time_limit_seconds, gap_tolerance)
    started = monotonic()
    share = None if time_limit_seconds is None else _TIED_SHARE * time_limit_seconds
    first = _solve_memory_last(tied.problem, share, gap_tolerance)
    left = None if time_limit_seconds is None else max(time_limit_seconds - (monotonic() - started), 0.0)
    freed = _solve_memory_last(problem, left, gap_tolerance)
    return _better(problem, tied, first, freed)


def table_entries(problem: Problem) -> int:
    return sum(edge.cost.size for edge in problem.edges)


def _solve_memory_last(problem: Problem, time_limit_seconds: float | None, gap_tolerance: float) -> Solution:
    """Most stages fit without looking at memory, which is far cheaper to solve."""
    relaxed = solve(problem.without_memory(), time_limit_seconds=time_limit_seconds, gap_tolerance=gap_tolerance)
    if not problem.has_memory or not relaxed.choice or evaluate(problem, relaxed.choice).feasible:
        return relaxed
    return solve(problem, time_limit_seconds=time_limit_seconds, gap_tolerance=gap_tolerance)


def _better(problem: Problem, tied: TiedProblem, first: Solution, freed: Solution) -> Solution:
    """The better of the two assignments, with the bound of the whole problem."""
    statistics: dict[str, Statistic] = {"tied_rounds": tied.rounds, "tied_nodes": tied.problem.num_nodes}
    if not first.choice:
        return Solution(freed.choice, freed.objective, freed.bound, freed.gap, freed.status, freed.statistics)
    choice = tied.spread(first.choice)
    objective = evaluate(problem, choice).objective
    statistics |= {"tied_objective": objective, "freed_objective": min(objective, freed.objective)}
    if freed.choice and freed.objective <= objective:
        choice, objective = freed.choice, freed.objective
    bound = min(freed.bound, objective)
    gap = relative_gap(objective, bound)
    status: Status = freed.status if freed.choice == choice else "feasible"
    kept = {name: value for name, value in freed.statistics.items() if name != "reason"}
    return Solution(choice, objective, bound, gap, status, kept | statistics)

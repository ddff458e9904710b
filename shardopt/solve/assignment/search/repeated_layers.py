"""Search a problem with many equal parts in two steps: solve equal parts once for all, then free
them and improve.

1. Tie what looks alike (`symmetry`) and solve the small problem within a small share of the work.
   Its solution is an assignment of the whole.
2. Search from there with every node free. The better assignment stays, so freeing never harms.

The bound is that of the whole problem: what ties cost is part of the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic

from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, evaluate
from shardopt.solve.assignment.search.sharding_ilp import improve, solve
from shardopt.solve.assignment.search.symmetry import tie_repeated
from shardopt.solve.assignment.table_store import TableStore

# Table entries of a problem that is solved at once, without a detour: what presolve leaves of it
# takes a second or two.
_MAX_DIRECT_ENTRIES = 1_000_000

# Work for the tied problem, as a share of that for the whole and on top of it, so that freeing has
# no less than it would have alone. Ties make long circles, on which bounds are loose: more work
# gains little.
_TIED_SHARE = 0.05


def solve_repeated(
    problem: Problem,
    limits: SearchLimits = NO_LIMITS,
    *,
    start: Sequence[int] | None = None,
    store: TableStore | None = None,
) -> Solution:
    """Least cost within memory, as `sharding_ilp.solve` with the same limits; no worse than
    `start`, if that is allowed.

    Where parts repeat, the statistics have the rounds and nodes of the tied problem (`tied_rounds`,
    `tied_nodes`), what its solution costs (`tied_objective`, unless none was found) and what
    remains after freeing (`freed_objective`)."""
    tied = tie_repeated(problem) if is_large(problem) else None
    if tied is None:
        return _solve_memory_last(problem, limits, start, store)
    begin = monotonic()
    # Without integer programs: where the clock cuts one short, the answer depends on the load of
    # the machine. The first strategy of every node, which runs it in full everywhere, is as good a
    # beginning as any.
    first = improve(
        tied.problem,
        (0,) * tied.problem.num_nodes,
        replace(limits, work=int(_TIED_SHARE * limits.budget)),
        store=store,
    )
    spread = tied.spread(first.choice) if first.choice else None
    start = cheapest(problem, spread, start)
    freed = _solve_memory_last(problem, limits.since(begin), start, store)
    statistics = dict(freed.statistics) | {
        "tied_rounds": tied.rounds,
        "tied_nodes": tied.problem.num_nodes,
    }
    if spread is not None:
        statistics |= {
            "tied_objective": evaluate(problem, spread).objective,
            "freed_objective": freed.objective,
        }
    return replace(freed, statistics=statistics)


def cheapest(problem: Problem, *choices: Sequence[int] | None) -> Sequence[int] | None:
    """The cheapest of the assignments that are allowed, or one that is not if there is no other."""
    evaluations = {
        tuple(choice): evaluate(problem, choice) for choice in choices if choice is not None
    }
    return min(
        evaluations,
        key=lambda choice: (not evaluations[choice].feasible, evaluations[choice].objective),
        default=None,
    )


def is_large(problem: Problem) -> bool:
    """Whether equal parts are worth a search of their own."""
    return table_entries(problem) > _MAX_DIRECT_ENTRIES


def table_entries(problem: Problem) -> int:
    return sum(edge.cost.size for edge in problem.edges)


def _solve_memory_last(
    problem: Problem,
    limits: SearchLimits,
    start: Sequence[int] | None,
    store: TableStore | None,
) -> Solution:
    """Most stages fit without looking at memory, which is far cheaper to solve."""
    run = partial(solve, limits=limits, start=start, store=store)
    relaxed = run(problem.without_memory())
    if not problem.has_memory or not relaxed.choice or evaluate(problem, relaxed.choice).feasible:
        return relaxed
    return run(problem)

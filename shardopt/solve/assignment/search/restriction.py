"""Search in steps for a problem too large to be searched well at once: some of its strategies
first, then all.

A *mask* says which strategies each node may take. The problem with these alone is smaller, so that
the same solver finds a better assignment of it in the same time, and whatever it finds is an
assignment of the whole. Masks come from who knows what the strategies mean; they are tried in turn,
each from the best assignment so far, within a share of the work. The search over everything begins
from the best of all and is never worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

import numpy as np

from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution, Usage, evaluate
from shardopt.solve.assignment.search.repeated_layers import (
    cheapest,
    is_large,
    solve_repeated,
    table_entries,
)
from shardopt.solve.assignment.search.sharding_ilp import improve, solve_directly
from shardopt.solve.assignment.table_store import TableStore

# For all restrictions together: of the work, and of the time, which loading the kernels takes its
# part of. Most are proven with a hundredth of the work.
_WORK_SHARE, _TIME_SHARE = 0.25, 0.5

# Table entries of a problem that is solved at once: an integer program proves what presolve leaves
# of it.
_MAX_DIRECT_ENTRIES = 100_000


@dataclass(frozen=True, eq=False)
class Mask:
    """Strategies that may be taken: bool `[k]` for each node, under a `name` for statistics."""

    name: str
    allowed: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Restricted:
    """`problem` has the strategies `kept[v]` (int64, ascending) of node v alone."""

    problem: Problem
    kept: tuple[np.ndarray, ...]

    def spread(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the whole problem that belongs to one of the restricted problem."""
        return tuple(int(kept[strategy]) for kept, strategy in zip(self.kept, choice, strict=True))

    def project(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """The inverse of `spread`; None for a choice that is not among those kept."""
        places = [int(np.searchsorted(kept, s)) for kept, s in zip(self.kept, choice, strict=True)]
        is_kept = all(
            place < len(kept) and kept[place] == s
            for kept, place, s in zip(self.kept, places, choice, strict=True)
        )
        return tuple(places) if is_kept else None


def restrict(problem: Problem, mask: Mask) -> Restricted:
    """The problem with what the mask allows. A node of which it leaves nothing that is possible
    keeps all."""
    rows: dict[tuple[int, int], np.ndarray] = {}
    equal: dict[tuple[int, bytes], np.ndarray] = {}

    def kept_of(cost: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        key = id(cost), id(allowed)
        if key not in rows:  # equal nodes share their arrays, and so do the parts of them
            possible = allowed & (cost < np.inf)
            kept = np.flatnonzero(possible if possible.any() else np.ones(len(cost), dtype=bool))
            rows[key] = equal.setdefault((len(cost), kept.tobytes()), kept)
        return rows[key]

    kept = tuple(map(kept_of, problem.costs, mask.allowed))
    tables: dict[tuple[int, int, int], np.ndarray] = {}

    def part(table: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        key = id(table), id(u), id(v)
        if key not in tables:
            whole = table.shape == (len(u), len(v))
            tables[key] = table if whole else table.take(v, axis=1).take(u, axis=0)
        return tables[key]

    edges = tuple(Edge(e.u, e.v, part(e.cost, kept[e.u], kept[e.v])) for e in problem.edges)
    costs = tuple(cost[some] for cost, some in zip(problem.costs, kept, strict=True))
    usages = None
    if problem.usages is not None:
        usages = tuple(
            tuple(Usage(usage.lo, usage.hi, usage.bytes[some]) for usage in segments)
            for segments, some in zip(problem.usages, kept, strict=True)
        )
    return Restricted(Problem(costs, edges, usages, problem.memory_limit, problem.num_times), kept)


def without_forbidden(problem: Problem) -> Restricted:
    """The problem without the strategies whose costs forbid them."""
    every: dict[int, np.ndarray] = {}
    for cost in problem.costs:
        every.setdefault(len(cost), np.ones(len(cost), dtype=bool))
    distinct = {id(cost): cost for cost in problem.costs}.values()
    if all((cost < np.inf).all() for cost in distinct):
        numbers = {size: np.arange(size) for size in every}
        return Restricted(problem, tuple(numbers[len(cost)] for cost in problem.costs))
    return restrict(problem, Mask("possible", tuple(every[len(cost)] for cost in problem.costs)))


def solve_in_steps(
    problem: Problem,
    masks: Sequence[Mask],
    limits: SearchLimits = NO_LIMITS,
    *,
    start: Sequence[int] | None = None,
    store: TableStore | None = None,
) -> Solution:
    """Least cost within memory, as `solve_repeated` with the same limits; no worse than `start`, if
    that is allowed, nor than what was found for any of the masks. None is tried where presolve
    leaves what dynamic programming solves.

    The statistics `restricted_NAME` say what the best assignment of each mask that was tried costs.
    """
    begin = monotonic()
    best, objectives = start, {}
    if table_entries(problem) > _MAX_DIRECT_ENTRIES:
        if not is_large(problem):
            direct = solve_directly(problem, limits, store=store)
            if direct is not None:
                return direct
        until = None if limits.seconds is None else begin + _TIME_SHARE * limits.seconds
        for mask in masks:
            share = replace(limits, work=int(_WORK_SHARE * limits.budget / len(masks)))
            part = _solve_part(problem, mask, until, share, best, store)
            if part:
                objectives[f"restricted_{mask.name}"] = evaluate(problem, part).objective
                best = cheapest(problem, part, best)
    solution = solve_repeated(problem, limits.since(begin), start=best, store=store)
    statistics = dict(solution.statistics) | objectives
    return replace(solution, statistics=statistics)


def _solve_part(
    problem: Problem,
    mask: Mask,
    until: float | None,
    limits: SearchLimits,
    start: Sequence[int] | None,
    store: TableStore | None,
) -> tuple[int, ...]:
    """The best assignment that was found with what the mask allows; empty if there is none."""
    left = None if until is None else max(until - monotonic(), 0.0)
    if left == 0.0:
        return ()
    restricted = restrict(problem, mask)
    begin = None if start is None else restricted.project(start)
    # Without integer programs: where the clock cuts one short, the answer depends on the load of
    # the machine.
    choice = begin or (0,) * problem.num_nodes
    run = partial(improve, choice=choice, limits=replace(limits, seconds=left), store=store)
    solution = run(restricted.problem.without_memory())
    if solution.choice and not evaluate(restricted.problem, solution.choice).feasible:
        solution = run(restricted.problem)
    return restricted.spread(solution.choice) if solution.choice else ()

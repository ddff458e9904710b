"""Least cost of a problem with shared edges: prices that the readers of a value split.

Lagrangian decomposition. For given shares the problem is one of pairs; its bound is one for the
true costs, and its solution an assignment whose true cost is known. Where a reader uses an arc that
others pay for, its share grows, and it shrinks where the reader is charged for what it does not
use: a supergradient step of Polyak's length (Minimization of unsmooth functionals, 1969), each arc
weighted by its cost, and a projection back to shares that add up to 1. The first shares are those
that make the best assignment known cost what it truly does, so one more solve often proves it.

An assignment for shares that are far off lets each reader use arcs for a small part of their price.
So better assignments are sought near it with other prices, which no bound follows from: who joins
the users of an arc pays as much as they do, who opens another pays all of it.

A gap that is left is closed by an integer program (`shared_model`) unless the problem is too large.
That is for few tables: where there are more, messages and shares move together (`large_sharing`),
which takes a third to a sixth of the time for a smaller gap."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.assignment.large.compilation import compiled_by
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution
from shardopt.solve.assignment.search.repeated_layers import table_entries
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.sharing.arcs import Arcs, SharedEdges
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.table_store import TableStore

if TYPE_CHECKING:
    from shardopt.solve.assignment.sharing.share_ascent import ShareAscent

# Of the models tried, the hardest small one takes 13 rounds.
_ROUNDS = 32
# Work of each solve, as a share of the whole budget.
_SHARE = 1 / 32
# Table entries of a problem whose rounds take less time than loading the kernels for more.
_FEW_ENTRIES = 10_000
# The same where as many problems are solved as a plan has stages on meshes, and nodes of those that
# presolve all but solves.
_FEW_FOR_MANY, _FEW_NODES = 2_000, 100
# Rounds for a bound alone, of which the first gain most, and for an assignment.
_BOUND_ROUNDS, _BRIEF_ROUNDS = 16, 40


def solve_shared(
    sharing: Sharing,
    solve: Solve,
    limits: SearchLimits,
    start: Sequence[int] | None = None,
) -> Solution:
    """Least true cost, memory aside. `solve` may be as good as it likes: its bounds are kept. A
    limit of seconds is one for the first solve, in which each reader pays all of its way, and once
    more for all others.

    Objective, bound, gap and status are those of the true costs. The statistics are those of the
    first solve with its objective (`pair_objective`), the numbers of `price_rounds` and of
    `shared_integer_programs`, and for large problems of rounds of messages and shares
    (`tied_share_rounds`, `share_rounds`); `time_limit_struck` is 1 when a clock ended one of
    them. Large problems may do without that solve: then it is what the answer costs so."""
    if _is_large(sharing) and _compiled(limits):
        from shardopt.solve.assignment.sharing.large_sharing import solve_large_shared

        return solve_large_shared(sharing, solve, limits, start)
    first = solve(sharing.problem, start, limits)
    if not sharing.groups or not first.choice:
        return first
    rounds = PriceRounds(sharing, solve, limits, monotonic(), _SHARE)
    rounds.run(sharing.fair_shares(rounds.offer(first)), _ROUNDS)
    rounds.prove_rest()
    return rounds.judged(first, dict(first.statistics) | {"pair_objective": first.objective})


def bound_shared(
    sharing: Sharing, limits: SearchLimits, start: Sequence[int]
) -> tuple[float, tuple[int, ...]]:
    """A bound of the least true cost of a problem in which layers repeat, from rounds of messages
    and shares alone, and the best assignment that was met; -inf and `start` for other problems."""
    if _is_large(sharing) and _compiled(limits):
        from shardopt.solve.assignment.sharing.large_sharing import bound_large_shared

        return bound_large_shared(sharing, limits, start)
    return -inf, tuple(start)


def solve_briefly(
    sharing: Sharing, limits: SearchLimits, start: Sequence[int], store: TableStore
) -> Solution:
    """An assignment of little true cost, memory aside, where hundreds of problems are solved:
    messages and shares decide, and solves follow where they leave a gap. Where tables are few, that
    of least cost where each reader pays for itself."""
    first = tuple(start)
    ascent = _ascended(sharing, limits, first, _BRIEF_ROUNDS)
    if ascent is None:
        return improve(sharing.problem, first, limits, store=store)

    def run(problem: Problem, start: Sequence[int] | None, limits: SearchLimits) -> Solution:
        return improve(problem, start or first, limits, store=store)

    rounds = PriceRounds(sharing, run, limits, monotonic(), 1.0, bound=ascent.bound)
    rounds.offer_choice(first)
    rounds.offer_choice(ascent.decide())
    if not rounds.is_close:
        priced = sharing.priced(rounds.affordable(ascent.shares))
        rounds.offer(rounds.solved(priced, rounds.choice))
    if not rounds.is_close:
        rounds.offer(rounds.solved(sharing.problem, rounds.choice))
        rounds.seek(rounds.choice)
    rounds.forget()
    none = Solution((), inf, -inf, inf, "feasible")
    return rounds.judged(none, {"share_rounds": ascent.rounds})


def bound_alone(sharing: Sharing, limits: SearchLimits, store: TableStore | None = None) -> float:
    """A bound of the least true cost where no assignment is asked for: from a few rounds of
    messages and shares, or for equal shares where tables are few."""
    start = (0,) * sharing.problem.num_nodes
    ascent = _ascended(sharing, limits, start, _BOUND_ROUNDS)
    if ascent is not None:
        return ascent.bound
    problem = sharing.priced(sharing.equal_shares())
    return improve(problem, start, limits, store=store, only_bound=True).bound


def _ascended(
    sharing: Sharing, limits: SearchLimits, start: Sequence[int], most_rounds: int
) -> ShareAscent | None:
    """Messages and shares after some rounds; None where tables are few, or `start` is forbidden."""
    problem, cost = sharing.problem, sharing.seconds(start)
    is_small = problem.num_nodes <= _FEW_NODES or table_entries(problem) <= _FEW_FOR_MANY
    if is_small or cost == inf or not sharing.groups or not _compiled(limits):
        return None
    from shardopt.solve.assignment.sharing.share_ascent import ShareAscent

    ascent = ShareAscent(sharing, sharing.equal_shares(), cost)
    ascent.aim()
    ascent.run(most_rounds, limits.gap_tolerance, None)
    return ascent


def _is_large(sharing: Sharing) -> bool:
    return bool(sharing.groups) and table_entries(sharing.problem) > _FEW_ENTRIES


def _compiled(limits: SearchLimits) -> bool:
    seconds = limits.seconds
    deadline = None if seconds is None else monotonic() + seconds
    return find_spec("numba") is not None and compiled_by(deadline, use_kernels_for_sharing)


def use_kernels_for_sharing() -> None:
    """Share a step among two readers: that calls every kernel."""
    from shardopt.solve.assignment.sharing.share_ascent import ShareAscent, SpreadMessages

    tied = _two_readers().tied(np.arange(3))
    ascent = ShareAscent(tied.sharing, tied.sharing.equal_shares(), 4.0)
    ascent.run(2, 0.0, None)
    ascent.decide()
    SpreadMessages(ascent, tied, 4.0)


def _two_readers() -> Sharing:
    """Both need the same step where they take the second strategy and their value the first."""
    each, path = np.arange(2), np.array([[[1], [0]], [[1], [1]]])
    missing = np.zeros((2, 2), dtype=bool)
    arcs = Arcs(np.array([2.0]), (path,) * 2, (missing,) * 2, (each,) * 2, (each,) * 2)
    costs = np.array([0.0, 3.0]), np.array([3.0, 0.0]), np.array([1.0, 0.0])
    edges = tuple(map(Edge, (0, 0), (1, 2), arcs.tables(arcs.usable.astype(float))))
    return Sharing(Problem(costs, edges), (SharedEdges(arcs, (0, 0), (1, 2), (0, 1)),))

"""Assignments that a problem within a limit allows and no program of which keeps it.

The problem counts the order without copies. What a copy waits for, and what is recomputed earlier
than it is read, holds more in the finished program, by rules that no row of an integer program
states. Such an assignment, which says what is recomputed too, is excluded once each of its programs
has been counted: one for each set of readers that make a copy anew which an earlier one has made
(`later_reads`). These are all that a plan can be (`FreshCopies`). A barrier before the first reader
of a copy makes no copy, and would only ask the compiler for another order; no plan has one, and no
bound is meant for it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.assignment.sharing.shared_model import Excluded
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.operand_copies import counted
from shardopt.solve.sharding.intra_op.copies import later_reads
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies
from shardopt.solve.sharding.strategies.strategies import Strategy

# Readers that may make a copy anew, each way of which is a program to count.
_MOST_READERS = 5


def ways_to_share(
    model: BudgetModel, solution: Solution, limit: int
) -> tuple[IntraOpPlan, ...] | None:
    """The plans of a solution within the limit, of all ways to share its copies; None where these
    are too many."""
    plan = model.decode(solution)
    fixed = {remat.tensor for remat in plan.rematerialized}
    later = [each for each in later_reads(plan) if each[0] not in fixed and each not in plan.fresh]
    if len(later) > _MOST_READERS:
        return None
    plans = (counted(model.base, model.decode(solution, fresh), limit) for fresh in _subsets(later))
    return tuple(plan for plan in plans if plan.peak_bytes <= limit)


def _subsets(readers: Sequence[tuple[int, Sharding, int]]) -> Iterator[FreshCopies]:
    for size in range(len(readers) + 1):
        yield from map(frozenset, combinations(readers, size))


def excluding(model: BudgetModel, choice: Sequence[int], *, alike: bool) -> Excluded:
    """The assignments with the strategies of `choice`; with `alike` all whose programs hold the
    same, and cost as much more or less than those of `choice` as the assignments do."""
    nodes = enumerate(choice[: model.first_choice + len(model.choices)])
    return tuple(
        (node, _alike(model.base, node, chosen) if alike else np.array([chosen]))
        for node, chosen in nodes
    )


def _alike(problem: IntraOpProblem, node: int, chosen: int) -> np.ndarray:
    """The strategies of a node with which a program holds the same."""
    if node >= len(problem.ops):
        return np.array([chosen])
    index = problem.ops[node]
    made_by_readers = problem.cheap_to_clone.issuperset(problem.tables.graph.ops[index].results)
    kinds = [_kind(each, made_by_readers) for each in problem.tables.ops[index].strategies]
    return np.array([number for number, kind in enumerate(kinds) if kind == kinds[chosen]])


def _kind(strategy: Strategy, made_by_readers: bool) -> Hashable:
    """What a program tells of a strategy; readers that make a result themselves have it as they
    want it."""
    whole = strategy.unscattered == strategy.results
    made = None if made_by_readers and whole else (strategy.results, strategy.unscattered)
    return strategy.operands, strategy.reduced, made

"""Plans that are held against a limit, and copies of operands that exceed it: which they are, and
which need not be shared between readers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.intra_op.copies import TensorCopy, find_copies, hands_on
from shardopt.solve.sharding.intra_op.finished import finished
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies

_MOST_SPLITS = 4


def counted(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> IntraOpPlan:
    """The plan with the bytes of its finished program, where those in the order without copies
    are within the limit. So a plan fits if both are, and no plan fits that the problem within the
    limit, which knows that order alone, does not allow."""
    return finished(problem, plan) if plan.peak_bytes <= limit else plan


def split_copies(
    model: BudgetModel, solution: Solution, limit: int, fresh: FreshCopies = frozenset()
) -> IntraOpPlan:
    """The plan of a solution, `counted`; where it exceeds the limit, copies held there between two
    readers are made twice."""
    plan = counted(model.base, model.decode(solution, fresh), limit)
    for _ in range(_MOST_SPLITS):
        more = fresh | _later_readers(model.base, plan, limit)
        if plan.peak_bytes <= limit or more == fresh:
            break
        fresh = more
        plan = counted(model.base, model.decode(solution, fresh), limit)
    return plan


def _later_readers(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> FreshCopies:
    """For every copy that is held over a time above the limit, the later in the program of the
    two readers around it."""
    above = np.flatnonzero(plan.live_bytes > limit)
    fresh = set()
    for copy, sharding, reads in copies_of(problem, plan):
        # Readers that follow each other leave no time in which the copy could be gone.
        if copy.stop - copy.start < 3:
            continue
        for at in above[(above > copy.start) & (above < copy.stop - 1)].tolist():
            before = [problem.order[p] for p in reads if p < at]
            after = [problem.order[p] for p in reads if p > at]
            if at not in reads and before and after:
                fresh.add((copy.tensor, sharding, max(before[-1], after[0])))
    return frozenset(fresh)


def copies_of(
    problem: IntraOpProblem, plan: IntraOpPlan
) -> Iterator[tuple[TensorCopy, Sharding, tuple[int, ...]]]:
    """The copies of operands, each with its sharding and the positions of its readers."""
    graph = plan.graph
    position = {op: at for at, op in enumerate(problem.order)}
    consumers = graph.consumers()
    for copy in find_copies(plan, enumerate(problem.order)):
        if copy.sharding is None:
            continue
        scope = graph.ops[copy.op].scope
        reads = sorted(
            position[op]
            for op in consumers[copy.tensor]
            if op in position
            and graph.ops[op].scope == scope
            and not hands_on(graph, op, copy.tensor)
            and (copy.tensor, copy.sharding)
            in zip(graph.ops[op].operands, plan.strategies[op].operands, strict=True)
        )
        yield copy, copy.sharding, tuple(at for at in reads if copy.start <= at < copy.stop)


def copies_at_excess(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> dict[Operand, None]:
    """Operands whose copies are read at a time above the limit, by whoever reads them there."""
    above = set(np.flatnonzero(plan.live_bytes > limit).tolist())
    return {
        (problem.order[at], copy.tensor): None
        for copy, _, reads in copies_of(problem, plan)
        for at in reads
        if at in above
    }

"""Copies of operands that exceed a limit: which they are, and which need not be shared between
readers."""

from __future__ import annotations

import numpy as np

from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.intra_op.copies import TensorCopy, find_copies
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies

_MOST_SPLITS = 4


def split_copies(model: BudgetModel, solution: Solution, limit: int) -> IntraOpPlan:
    """The plan of a solution; where it exceeds the limit, copies held there between two readers are
    made twice."""
    fresh: FreshCopies = frozenset()
    plan = model.decode(solution, fresh)
    for _ in range(_MOST_SPLITS):
        more = fresh | _later_readers(model.base, plan, limit)
        if plan.peak_bytes <= limit or more == fresh:
            break
        fresh = more
        plan = model.decode(solution, fresh)
    return plan


def _later_readers(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> FreshCopies:
    """For every copy that is held over a time above the limit, its next reader."""
    above = np.flatnonzero(plan.live_bytes > limit)
    position = {op: at for at, op in enumerate(problem.order)}
    graph, fresh = problem.tables.graph, set()
    consumers = graph.consumers()
    for copy in _copies(problem, plan):
        # Readers that follow each other leave no time in which the copy could be gone.
        if copy.sharding is None or copy.stop - copy.start < 3:
            continue
        scope = graph.ops[copy.op].scope
        wants = sorted(
            position[op]
            for op in consumers[copy.tensor]
            if op in position
            and graph.ops[op].scope == scope
            and (copy.tensor, copy.sharding)
            in zip(graph.ops[op].operands, plan.strategies[op].operands, strict=True)
        )
        for at in above[(above > copy.start) & (above < copy.stop - 1)].tolist():
            after = next((p for p in wants if p >= at), None)
            if after is not None and after > at:
                fresh.add((copy.tensor, copy.sharding, problem.order[after]))
    return frozenset(fresh)


def _copies(problem: IntraOpProblem, plan: IntraOpPlan) -> tuple[TensorCopy, ...]:
    return find_copies(plan, enumerate(problem.order))


def copies_at_excess(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> dict[Operand, None]:
    """Operands whose copies are held at a time above the limit."""
    above = np.flatnonzero(plan.live_bytes > limit)
    operands: dict[Operand, None] = {}
    for copy in _copies(problem, plan):
        if copy.sharding is not None and ((above >= copy.start) & (above < copy.stop)).any():
            operands[copy.op, copy.tensor] = None
    return operands

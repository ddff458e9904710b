"""Copies of operands that outlive their first reader, where they exceed a limit: as held copies of
the problem, and as copies made anew in its plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.sharing.held_copies import HeldCopy, Recomputed
from shardopt.solve.assignment.sharing.shared_model import made_again
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.budget.operand_copies import copies_of
from shardopt.solve.sharding.intra_op.copies import is_sliced_by_readers
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies, local_bytes


class KeptCopy(NamedTuple):
    """A copy in `sharding` of what the readers of a group of shared edges read."""

    group: int
    sharding: Sharding


@dataclass(frozen=True, eq=False)
class Overlooked:
    """What plans have shown that the problem within a limit has to count."""

    copies: dict[Operand, None] = field(default_factory=dict)
    kept: dict[KeptCopy, None] = field(default_factory=dict)


def kept_at_excess(problem: IntraOpProblem, plan: IntraOpPlan, limit: int) -> tuple[KeptCopy, ...]:
    """The copies that are held between their readers at a time above the limit."""
    above = np.flatnonzero(plan.live_bytes > limit)
    group_of = _groups_of_values(problem)
    kept = dict[KeptCopy, None]()
    for copy, sharding, _ in copies_of(problem, plan):
        number = group_of.get((copy.op, copy.tensor))
        held = (copy.start < above) & (above < copy.stop - 1)
        if number is not None and held.any():
            kept[KeptCopy(number, sharding)] = None
    return tuple(kept)


def made_twice(problem: IntraOpProblem, plan: IntraOpPlan) -> Iterator[KeptCopy]:
    """The copies that are made again because their value is recomputed between two readers."""
    group_of, ops = _groups_of_values(problem), plan.graph.ops
    for remat in plan.rematerialized:
        wanted = {
            op: [
                target
                for tensor, target in zip(ops[op].operands, strategy.operands, strict=True)
                if tensor == remat.tensor
            ]
            for op, strategy in plan.strategies.items()
            if remat.tensor in ops[op].operands
        }
        early = {sharding for op in wanted.keys() - set(remat.readers) for sharding in wanted[op]}
        for op in remat.readers:
            number = group_of.get((op, remat.tensor))
            for sharding in wanted[op]:
                is_fresh = (remat.tensor, sharding, op) in plan.fresh
                if number is not None and is_fresh and sharding in early:
                    yield KeptCopy(number, sharding)


def held_copy(model: BudgetModel, kept: KeptCopy) -> HeldCopy:
    problem = model.base
    group, reads = problem.groups[kept.group], problem.shared_reads[kept.group]
    graph, mesh = problem.tables.graph, problem.tables.mesh
    position = {op: at for at, op in enumerate(problem.order)}
    value, fused, pairs = reads.tensors[0], problem.tables.fusion.fused, []
    for reader, (source, column) in enumerate(zip(reads.sources, reads.columns, strict=True)):
        ends = ((sharding, kept.sharding) for sharding in source.distinct)
        moves = np.array(
            [
                end[0] != end[1] and not is_sliced_by_readers(graph, mesh, fused, value, end)
                for end in ends
            ]
        )
        reaches = np.array([sharding == kept.sharding for sharding in column.distinct])
        pairs.append(moves[:, None] & reaches[None, :] & ~group.arcs.missing[reader])
    size = local_bytes(graph, mesh, value, kept.sharding)
    times = tuple(position[op] for op in reads.ops)
    return HeldCopy(group, tuple(pairs), times, size, _recomputed(model, kept.group))


def _recomputed(model: BudgetModel, number: int) -> Recomputed | None:
    reads = model.base.shared_reads[number]
    for node, choice in enumerate(model.choices, model.first_choice):
        if choice.candidate.tensor == reads.tensors[0]:
            late = (r for r, op in enumerate(reads.ops) if op in choice.candidate.readers)
            # Every other strategy of a candidate recomputes it.
            return Recomputed(node, np.arange(2 * len(choice.recipes)) % 2 == 1, frozenset(late))
    return None


def fresh_of(
    problem: IntraOpProblem,
    kept: Sequence[KeptCopy],
    held: Sequence[HeldCopy],
    choice: Sequence[int],
) -> FreshCopies:
    """The copies that an assignment of the problem with these held copies makes anew: of readers
    that another one stands before in the program."""
    fresh = set()
    for each, (copy, readers) in zip(kept, made_again(held, choice), strict=True):
        reads = problem.shared_reads[each.group]
        first = min((op for r, op in enumerate(reads.ops) if copy.is_read(choice, r)), default=0)
        again = (r for r in readers if reads.ops[r] > first)
        fresh |= {(reads.tensors[r], each.sharding, reads.ops[r]) for r in again}
    return frozenset(fresh)


def _groups_of_values(problem: IntraOpProblem) -> dict[Operand, int]:
    """The groups of shared edges whose readers all read one value."""
    return {
        (op, tensor): number
        for number, reads in enumerate(problem.shared_reads)
        if _is_one_value(problem, number)
        for op, tensor in zip(reads.ops, reads.tensors, strict=True)
    }


def _is_one_value(problem: IntraOpProblem, number: int) -> bool:
    """Whether all readers read one tensor, which no marker among them hands on."""
    reads, graph = problem.shared_reads[number], problem.tables.graph
    results = (result for op in reads.ops for result in graph.ops[op].results)
    return len(set(reads.tensors)) == 1 and not any(r in graph.handed_on for r in results)

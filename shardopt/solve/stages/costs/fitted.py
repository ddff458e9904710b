"""Shard a stage within a limit of memory, as the shard phase does: reshard twice instead of keeping
a copy, and recompute values instead of keeping them.

This takes as long as the shard phase takes for the stage. It is the last resort of a search in
which no plan of faster shardings fits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shardopt.cost.host_link import host_seconds
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharders import GAP, Memory, Method, split_peak, with_sums
from shardopt.solve.stages.costs.stage_part import StagePart


@dataclass(frozen=True)
class Fitted:
    """Seconds of a step in each fragment, and what a device holds; no seconds where no plan was
    found within the limit."""

    fragment_seconds: tuple[float, ...]
    memory: Memory


def fitted(
    part: StagePart,
    facts: PartFacts,
    tables: StrategyTables,
    method: Method,
    limit: int,
    in_flight: int,
) -> Fitted:
    """The plan of a part that holds at most `limit` bytes on a device with so many microbatches in
    flight. Raises UserError where the method does not apply."""
    problem = method.problem(part, tables).with_residency(part.residency(in_flight))
    plan = fit(problem, limit, limits=SearchLimits(gap_tolerance=GAP)).plan
    if plan is None:
        return Fitted((), Memory(0, 0, 0))
    each = sum(live.count * _size(part, plan, live.tensor) for live in facts.further)
    groups: list[list[int]] = [[] for _ in part.kinds]
    for op, row in enumerate(part.graph.ops):
        groups[row.group].append(op)
    seconds = [plan.summary(ops).seconds for ops in groups]
    size_of = partial(_size, part, plan)
    link = tables.cluster.group_of(tables.mesh).host_link
    for group, tensor, times in part.moves:
        seconds[group] += times * host_seconds(link, size_of(tensor))
    held = split_peak(facts, plan.live_bytes, in_flight, each)
    return Fitted(tuple(seconds), with_sums(held, part, lambda some: sum(map(size_of, some))))


def _size(part: StagePart, plan: IntraOpPlan, tensor: int) -> int:
    """Bytes of a device."""
    return local_bytes(part.graph, plan.mesh, tensor, plan.shardings[tensor])

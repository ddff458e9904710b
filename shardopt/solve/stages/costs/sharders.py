"""The cost of one stage on one mesh: seconds of its fragments, and what a device holds.

A sharding comes from the problem of the stage's classes (`class_problem`). Seconds and bytes are
those of the plan in which every operation does as its class, by the account of the shard phase
(`sharded_part`), with what the forward keeps for the backward counted apart, as the schedule
decides how many microbatches of it are held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.intra_op.sharded_ops import Transient
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import ClassProblem
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.stage_part import StagePart

# Stage costs are this close to the optimum of what they are the cost of; differences below it are
# noise of the cost model.
GAP = 0.002


@dataclass(frozen=True)
class PartSharding:
    """How a stage is sharded: seconds of a step in each fragment, and the choice of every operation
    and input of the part. Without choices no sharding exists; `refusal` says why, where a method
    knows. Copies of `transient` tensors are dropped after use."""

    fragment_seconds: tuple[float, ...]
    choice: tuple[int, ...]
    refusal: str = ""
    transient: Transient = ()


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: it holds fixed + n · activation with n microbatches in flight, and
    `outside_bytes` at most before and behind the loop; on top of both `weight_bytes` for every
    older version of its weights. Its host holds `host_bytes` + n · `waiting_bytes` for it."""

    fixed_bytes: int
    activation_bytes: int
    outside_bytes: int
    host_bytes: int = 0
    waiting_bytes: int = 0
    weight_bytes: int = 0

    def need(self, in_flight: int, versions: int = 0) -> int:
        """The most that is held."""
        inside = self.fixed_bytes + in_flight * self.activation_bytes
        return max(inside, self.outside_bytes) + versions * self.weight_bytes


class Sharder(Protocol):
    """How a stage is sharded."""

    def content(self, part: StagePart) -> str:
        """What the sharding depends on beside the graph of the part and the mesh."""

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> PartSharding:
        """`facts` may be those of an equal part. Raises UserError where the method does not apply
        to the part."""


class Method(Sharder, Protocol):
    """What a stage config says about how a stage is sharded."""

    def problem(self, part: StagePart, tables: StrategyTables) -> IntraOpProblem:
        """The problem of the shard phase, with one microbatch in flight. Raises as `shard`."""


@dataclass(frozen=True)
class OptimalSharder:
    """The intra-operator solver, with equal layers tied."""

    gap_tolerance: float = GAP

    def content(self, part: StagePart) -> str:
        return f"ilp {self.gap_tolerance}"

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> PartSharding:
        problem = ClassProblem(facts.classes, tables)
        solution = problem.solve(self.gap_tolerance)
        if not solution.choice:
            return PartSharding((), ())
        return sharding_of(facts, tables, problem.spread(solution.choice))

    def problem(self, part: StagePart, tables: StrategyTables) -> IntraOpProblem:
        return tables_of(part, tables).problem(tied=part.tied, residency=part.residency())


def tables_of(part: StagePart, tables: StrategyTables) -> IntraOpTables:
    """Every operation of a part with its strategies."""
    return IntraOpTables(
        part.graph,
        tables.mesh,
        tables.cluster,
        linear=part.linear,
        strategies=tables,
        kernels=part.kernels,
    )


def sharding_of(
    facts: PartFacts,
    tables: StrategyTables,
    choice: tuple[int, ...],
    transient: Transient = (),
) -> PartSharding:
    """With its seconds."""
    seconds = ShardedPart(facts, tables, choice, transient).seconds()
    return PartSharding(tuple(seconds.tolist()), choice, transient=transient)


def memory_of(facts: PartFacts, tables: StrategyTables, sharding: PartSharding) -> Memory:
    """What a device of the mesh of `tables` holds of a part that is sharded so."""
    sharded = ShardedPart(facts, tables, sharding.choice, sharding.transient)
    held = split_peak(facts, sharded.live_bytes(copies=True), 1, sharded.further_bytes())
    return with_sums(held, facts.part, sharded.sum_bytes)


def with_sums(held: Memory, part: StagePart, bytes_of: Callable[[Iterable[int]], int]) -> Memory:
    """With what lies on the host, and the weights, by the bytes of a device of some tensors."""
    return replace(
        held,
        host_bytes=bytes_of(part.on_host - part.waiting),
        waiting_bytes=bytes_of(part.waiting),
        weight_bytes=bytes_of(part.weights),
    )


def split_peak(facts: PartFacts, live_bytes: np.ndarray, in_flight: int, each: int) -> Memory:
    """Of what a device holds while each operation runs, `[positions]`, with so many microbatches in
    flight that keep `each` bytes all through the loop."""
    first, last = facts.loop
    inside = live_bytes[first:last].max(initial=0)
    outside = max(live_bytes[:first].max(initial=0), live_bytes[last:].max(initial=0))
    return Memory(max(int(inside) - in_flight * each, 0), each, int(outside))

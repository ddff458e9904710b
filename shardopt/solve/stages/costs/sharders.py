"""The cost of one stage on one mesh: seconds of its fragments, and what a device holds.

A sharding comes from the problem of the stage's classes (`class_problem`). Seconds and bytes are
those of the plan in which every operation does as its class, by the account of the shard phase
(`sharded_part`), with what the forward keeps for the backward counted apart, as the schedule
decides how many microbatches of it are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shardopt.solve.sharding.strategies_tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import ClassProblem
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.stage_part import StagePart

# Stage costs are this close to the optimum of what they are the cost of; differences below it are
# noise of the cost model.
GAP = 0.002


@dataclass(frozen=True)
class Sharding:
    """How a stage is sharded: seconds of a step in each fragment, and the choice of every operation
    and input of the part. Without choices no sharding exists; `refusal` says why, where a method
    knows."""

    fragment_seconds: tuple[float, ...]
    choice: tuple[int, ...]
    refusal: str = ""


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: need with n microbatches in flight = fixed + n · activation."""

    fixed_bytes: int
    activation_bytes: int


class Sharder(Protocol):
    """How a stage is sharded."""

    def content(self, part: StagePart) -> str:
        """What the sharding depends on beside the graph of the part and the mesh."""

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> Sharding:
        """`facts` may be those of an equal part. Raises UserError where the method does not apply
        to the part."""


@dataclass(frozen=True)
class OptimalSharder:
    """The intra-operator solver, with equal layers tied."""

    gap_tolerance: float = GAP

    def content(self, part: StagePart) -> str:
        return f"ilp {self.gap_tolerance}"

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> Sharding:
        problem = ClassProblem(facts.classes, tables)
        solution = problem.solve(self.gap_tolerance)
        if not solution.choice:
            return Sharding((), ())
        return sharding_of(facts, tables, problem.spread(solution.choice))


def sharding_of(facts: PartFacts, tables: StrategyTables, choice: tuple[int, ...]) -> Sharding:
    """With its seconds."""
    return Sharding(tuple(ShardedPart(facts, tables, choice).seconds().tolist()), choice)


def memory_of(facts: PartFacts, tables: StrategyTables, sharding: Sharding) -> Memory:
    """What a device of the mesh of `tables` holds of a part that is sharded so."""
    sharded = ShardedPart(facts, tables, sharding.choice)
    each = sum(live.count * sharded.bytes_of(live.tensor) for live in facts.further)
    return Memory(max(int(sharded.live_bytes(copies=True).max(initial=0)) - each, 0), each)

"""Shardings of a stage that trade seconds for memory: a Lagrangian multiplier of the memory limit.

The shortest sharding of a stage often keeps weights or optimizer state whole on several devices.
Where it does not fit, every byte held at the peak gets a cost in seconds, and the small problem of
the classes is solved once more. At a low cost only state is split that the update alone reads; at a
higher cost also weights that must then be gathered in every microbatch. The shard phase later
solves the same stage under the limit itself."""

from __future__ import annotations

from dataclasses import dataclass

from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import ClassProblem
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.sharders import GAP, PartSharding, sharding_of
from shardopt.solve.stages.costs.stage_part import StagePart

# What all the memory of a device is worth, in times of the shortest step of the stage, from mild to
# strict.
STRICTNESS = (1.0, 10.0)


@dataclass(frozen=True)
class LeanSharder:
    """Shortens a step plus `byte_seconds` times what a device holds where `plain`, the shortest
    sharding, holds most with `in_flight` microbatches, with older `versions` of its weights."""

    plain: PartSharding
    byte_seconds: float
    in_flight: int
    versions: int = 0

    def content(self, part: StagePart) -> str:
        older = f", {self.versions} older versions" * bool(self.versions)
        cost = f"{self.byte_seconds!r} seconds a byte"
        return f"ilp {GAP} with {cost}, {self.in_flight} in flight{older}"

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> PartSharding:
        classes = facts.classes
        problem = ClassProblem(classes, tables)
        # The shortest sharding is a solution of this problem, too, and often close to the best.
        start = tuple(int(self.plain.choice[node]) for node in classes.members.tolist())
        held = self._at_peak(facts, tables)
        solution = problem.solve(GAP, start, held, self.byte_seconds)
        if not solution.choice:
            return PartSharding((), ())
        return sharding_of(facts, tables, problem.spread(solution.choice))

    def _at_peak(self, facts: PartFacts, tables: StrategyTables) -> list[tuple[int, int]]:
        """What a device holds at the position where the shortest sharding, without copies of
        operands, holds most: tensors, and of how many microbatches."""
        live_bytes = ShardedPart(facts, tables, self.plain.choice, self.plain.transient).live_bytes(
            copies=False, in_flight=self.in_flight
        )
        peak = int(live_bytes.argmax()) if live_bytes.size else 0
        lives = [
            *((live, 1) for live in facts.lifetimes),
            *((live, self.in_flight - 1) for live in facts.further),
        ]
        held = [
            (live.tensor, count)
            for live, count in lives
            if count and live.start <= peak < live.stop
        ]
        older = [(tensor, self.versions) for tensor in sorted(facts.part.weights)]
        return held + older * bool(self.versions)

"""A known method (`shardopt.solve.presets`) as how a candidate stage is sharded.

The stage is looked at alone, as the shard phase will see its mesh: what other layers make arrives
as an input, which carries the batch where the whole step does, and the first product of the stage
begins a new pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.presets.flow import batch_dims
from shardopt.solve.presets.presets import restrict
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import WORK
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharders import GAP, PartSharding, sharding_of, tables_of
from shardopt.solve.stages.costs.stage_part import StagePart
from shardopt.solve.stages.step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class StepInputKinds:
    """The roles of the inputs of a step, and on which dimension each of its tensors carries the
    batch."""

    step: StepGraph
    input_kinds: InputKinds

    @cached_property
    def batch(self) -> tuple[int | None, ...]:
        return batch_dims(self.step.graph, self.input_kinds)

    def of_part(self, part: StagePart) -> InputKinds:
        """The roles of the inputs of a part."""
        sources = {tensor: part.source_tensors[tensor] for tensor in part.graph.inputs}
        made = {t for t, source in sources.items() if self.step.producers[source] >= 0}
        return replace(
            self.input_kinds,
            state=frozenset(t for t, source in sources.items() if source in self.input_kinds.state),
            batch={
                t: self.input_kinds.batch[source]
                for t, source in sources.items()
                if source in self.input_kinds.batch
            },
            received={t: dim for t in sorted(made) if (dim := self.batch[sources[t]]) is not None},
            tied=part.tied,
        )


@dataclass(frozen=True)
class PresetSharder:
    """What a preset leaves open is decided by the solver."""

    method: str
    input_kinds: StepInputKinds

    def content(self, part: StagePart) -> str:
        input_kinds = self.input_kinds.of_part(part)
        return (
            f"{self.method} {sorted(input_kinds.state)} {sorted(input_kinds.batch.items())} "
            f"{sorted(input_kinds.received.items())}"
        )

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> PartSharding:
        """Raises UserError where the preset does not apply."""
        whole = self.problem(part, tables)
        problem = whole.problem
        solution = improve(
            problem,
            (0,) * problem.num_nodes,
            SearchLimits(gap_tolerance=GAP, work=WORK),
            store=tables.store,
        )
        if not solution.choice:
            return PartSharding((), ())
        return sharding_of(facts, tables, solution.choice, whole.transient)

    def problem(self, part: StagePart, tables: StrategyTables) -> IntraOpProblem:
        """Raises UserError where the preset does not apply."""
        whole = tables_of(part, tables)
        restriction = restrict(self.method, whole, self.input_kinds.of_part(part))
        return whole.problem(
            fixed=restriction.fixed,
            allowed=restriction.allowed,
            tied=part.tied,
            transient=restriction.transient,
            residency=part.residency(),
        )

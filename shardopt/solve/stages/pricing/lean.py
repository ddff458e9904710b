"""Shardings of a stage for which memory matters: what a device holds at the peak has a price per byte.

The shortest sharding of a stage often keeps weights or optimizer state on several devices. Where it does not fit, a
byte is given a price in seconds, as the multiplier of a memory limit would, and the small problem of the classes is
solved again: first what costs next to nothing is split (state that only the update reads), with a higher price also
what has to be gathered in every microbatch. The shard phase solves the same stage under the limit itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardopt.solve.assignment.problem import Problem, Solution
from shardopt.solve.assignment.sharding_ilp import improve
from shardopt.solve.sharding.intra_op import IntraOpTables
from shardopt.solve.sharding.intra_op_memory import Lifetime, local_bytes
from shardopt.solve.sharding.strategies_tables import StrategyTables
from shardopt.solve.stages.pricing.class_problem import WORK, ClassProblem
from shardopt.solve.stages.pricing.classes import find_classes, places
from shardopt.solve.stages.pricing.prices import GAP, Sharding
from shardopt.solve.stages.pricing.stage_part import StagePart

# What all the memory of a device is worth, in times of the shortest step of the stage, from mild to strict.
STRICTNESS = (1.0, 10.0)


@dataclass(frozen=True)
class LeanSharder:
    """Shortens a step plus `byte_seconds` times what a device holds where `plain`, the shortest sharding, holds most
    with `in_flight` microbatches."""

    plain: Sharding
    byte_seconds: float
    in_flight: int

    def content(self, part: StagePart) -> str:
        return f"ilp {GAP} with {self.byte_seconds!r} seconds a byte, {self.in_flight} in flight"

    def shard(self, part: StagePart, tables: StrategyTables) -> Sharding:
        classes = find_classes(part)
        priced = ClassProblem(classes, tables)
        costs = [np.array(cost, dtype=float) for cost in priced.problem.costs]
        place = places(part.graph, classes.inputs)
        for live in self._at_peak(part, tables):
            if live.tensor in place:
                node, k = place[live.tensor]
                c = int(classes.of_node[node])
                held = tables.local_bytes(part.graph.tensors[live.tensor], priced.result(c, k))
                costs[c] += self.byte_seconds * live.count * held
        problem = Problem(tuple(costs), priced.problem.edges)
        start = tuple(int(self.plain.choice[node]) for node in classes.members.tolist())
        solution = improve(problem, start, gap_tolerance=GAP, work=WORK)
        if not solution.choice:
            return Sharding((), ())
        return Sharding(tuple(priced.seconds(solution.choice).tolist()), priced.spread(solution.choice))

    def _at_peak(self, part: StagePart, tables: StrategyTables) -> tuple[Lifetime, ...]:
        """What a device holds at the position where the shortest sharding holds most."""
        whole = IntraOpTables(part.graph, tables.mesh, tables.cluster, linear=part.linear, strategies=tables)
        problem = whole.problem(tied=part.tied, residency=part.residency(self.in_flight))
        plan = problem.decode(Solution(self.plain.choice, 0.0, 0.0, 0.0, "feasible"))
        change = np.zeros(len(problem.order) + 1, dtype=np.int64)
        for live in problem.lifetimes:
            size = live.count * local_bytes(part.graph, tables.mesh, live.tensor, plan.shardings[live.tensor])
            change[live.start] += size
            change[live.stop] -= size
        peak = int(np.cumsum(change[:-1]).argmax()) if len(problem.order) else 0
        return tuple(live for live in problem.lifetimes if live.start <= peak < live.stop)

"""Recompute the forward of stages in their backward, as was decided.

Needs the placed form. Afterwards no row of `shardopt.stages` has `recompute`: it is obeyed, and
stands as `shardopt.recompute` on the loop for whoever asks. Stages without it stay as they are.

    %h = stablehlo.tanh %x {shardopt.layer = 0}
    %d = stablehlo.multiply %g, %h {shardopt.layer = 0}
 =>
    %h = stablehlo.tanh %x {shardopt.layer = 0}
    %b:2 = stablehlo.optimization_barrier %x, %g {shardopt.layer = 0}
    %h2 = stablehlo.tanh %b#0 {shardopt.layer = 0}
    %d = stablehlo.multiply %b#1, %h2 {shardopt.layer = 0}

The barrier waits for the gradient `%g`, which comes from a later layer: so the copies belong to the
backward, are not merged with their originals where both stand in one fragment, and do not run
before they are needed. What is copied is found on the rows that stage costs are found on, too
(`shardopt.solve.stages.body.recomputation`). It runs before `shardopt-outline-fragments`, which
puts the copies into the backward fragment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import write_recompute
from shardopt.dialect.program import read_program
from shardopt.dialect.stages import read_stages, write_stages
from shardopt.graph.recomputed_units import units_of_stages
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.read_step import check_clustered
from shardopt.passes.stages.recomputation import recompute_forward
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class RecomputeStages(Pass):
    """See the head of the file."""

    name = "shardopt-recompute-stages"
    summary = "recompute the forward of stages in their backward, as was decided"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            check_clustered(program)
            stages = read_stages(program.main)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        units = units_of_stages((s.recompute, range(s.first, s.last + 1)) for s in stages)
        pm.statistic("operations recomputed", recompute_forward(program, units))
        write_recompute(program.loop, [stage.recompute for stage in stages])
        write_stages(program.main, [replace(stage, recompute="none") for stage in stages])

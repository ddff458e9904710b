"""Let a second pipeline run over the meshes in the other direction, as Chimera does.

Needs the placed form with an even number of stages, each on a mesh of its own, and an even number
of microbatches. Afterwards the loop runs half as often, and each iteration is two microbatches: one
goes through the meshes forwards, one backwards. Layer L + k, of L layers, is layer k again, and
stage p + s on mesh p - 1 - s is stage s again, with accumulators of its own. `shardopt.streams` on
the loop says so.

    %r = mpmd.for (%z) {iterations = 4} (%a, %i) {    %x0, %x1 = slice %x     rows 0, 1 and 2, 3
      call @microbatch(%w, %x, %a, %i) }              %r:2 = mpmd.for (%z, %y) {iterations = 2,
    @microbatch(%w, %x, %a, %i) {                         shardopt.streams = 2} (%a, %b, %i) {
      %b = dynamic_slice %x, %i                 =>      call @microbatch(%w, %x0, %x1, %a, %b, %i) }
      %g = dot_general %b, %w {layer = 0}             %s = add %r#0, %r#1 {layer = 0}
      return add %a, %g {layer = 0} }

The weights stay on the mesh of stage s, where they are updated; the mesh of its copy gets them
before the loop, and sends its sums behind it. That is as much traffic as summing the gradients on
both meshes and updating twice, without the optimizer's state twice.

It stands before fragments are outlined: there every operation goes to the mesh of its layer, and
what crosses meshes becomes a transfer."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.dialect.stages import read_stages
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.mirroring import Unmirrored, mirror
from shardopt.passes.stages.read_step import check_clustered
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class MirrorStages(Pass):
    """See the head of the file."""

    name = "shardopt-mirror-stages"
    summary = "add a pipeline over the same meshes in the other direction, for half of the batch"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            check_clustered(program)
            pm.statistic("operations copied", mirror(program, read_stages(program.main)))
        except Unmirrored as error:
            raise pm.error(error.at, str(error)) from error
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error

"""Outline the program onto the meshes of its stages, as was decided.

Needs the placed form without `recompute` in `shardopt.stages`. Afterwards `@main` and `@microbatch`
consist of `mpmd.fragment`s on the meshes of the `topology`, joined by bare `mpmd.transfer`s; all
values are `!mpmd.mesh_tensor`s. `shardopt.stages` and `shardopt.layer` are gone. A stage has a
forward fragment and, where it needs values of later stages, a backward fragment.

    %3 = stablehlo.dot_general … {shardopt.layer = 0}
    %4 = stablehlo.dot_general %3, … {shardopt.layer = 1}
    %9 = stablehlo.dot_general %4, … {shardopt.layer = 0}
 =>
    %f = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> … {shardopt.kind = "fwd"}
    %t = mpmd.transfer %f : … "m0" … -> … "m1" …
    %g = mpmd.fragment<mesh="m1", …, stage=1> (%t, …) {shardopt.backward, shardopt.kind = "fwd"}
    %u = mpmd.transfer %g : … "m1" … -> … "m0" …
    %h = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%u, …) {shardopt.kind = "bwd"}

How a body is cut is in `shardopt.passes.stages.staging`, how a group of operations becomes a
fragment in `shardopt.passes.stages.outlining`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.staging import outline_fragments, read_placement
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class OutlineFragments(Pass):
    """See the head of the file."""

    name = "shardopt-outline-fragments"
    summary = "outline the program into fragments on the meshes of its stages"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            placement = read_placement(program)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        outline_fragments(program, placement)

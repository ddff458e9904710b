"""Split the backward of every stage into an input half, which other stages wait for, and a weight
half.

Needs the staged form. Afterwards a backward fragment is a `bwd_input` and a `bwd_weight` fragment,
as schedules such as zero-bubble order them; the fragment of the last stage, which is forward and
backward in one, keeps its kind and gives its weight half off. What the weight half reads of the
other is kept between the two.

    %dx, %dw = mpmd.fragment<mesh="m0", …> (%g, %x, %w, %acc) {shardopt.kind = "bwd"} …
      =>
    %dx = mpmd.fragment<mesh="m0", …> (%g, %w) {shardopt.kind = "bwd_input"} …
    %dw = mpmd.fragment<mesh="m0", …> (%x, %g, %acc) {shardopt.kind = "bwd_weight"} …

It stands before the shard phase, so that what is kept has a sharding and counts as memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.backward_split import split_backwards


@dataclass(frozen=True)
class SplitBackward(Pass):
    """See the head of the file."""

    name = "shardopt-split-backward"
    summary = "split backward fragments into an input and a weight half"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        if not any(op.name == "mpmd.fragment" for op in program.body_ops):
            raise pm.error(
                program.body,
                "expected fragments in the loop body (run the stage phase first), found none",
            )
        counts = split_backwards(program)
        pm.statistic("backwards split", counts.fragments)
        pm.statistic("values kept between halves", counts.kept_values)

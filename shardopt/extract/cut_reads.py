"""What the operations of a body read once stages are cut: what is computed again in an early stage
does not go on to a later one, which has been given the original in the forward pass.

    %h = stablehlo.tanh %x {layer = 0}
    %b:2 = stablehlo.optimization_barrier %x, %g {layer = 1}
    %h2 = stablehlo.tanh %b#0 {layer = 0}                  reads %x
    %y2 = stablehlo.dot_general %h2, %w {layer = 1}        reads %h"""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import reads
from shardopt.extract.repeated_ops import repeated_ops
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import BARRIER, defining

# The stage of a layer, SHARED for operations of no layer.
StageOfLayer = Callable[[int], int]


class CutReads:
    """What the operations of a body read once stages are cut."""

    def __init__(self, program: StepProgram, stage_of_layer: StageOfLayer) -> None:
        self.stage_of_layer = stage_of_layer
        self.repeated = repeated_ops(program.body_ops)
        self.original: dict[ir.Value, ir.Value] = {
            again: first
            for op, known in self.repeated.items()
            for again, first in zip(op.results, known.results, strict=True)
        }

    def stage(self, op: ir.Operation) -> int:
        return self.stage_of_layer(ir.IntegerAttr(op.attributes[LAYER]).value)

    def of(self, op: ir.Operation) -> dict[ir.Value, ir.Value]:
        """value that `op` reads -> what it reads instead."""
        stage = self.stage(op)
        if stage == SHARED:
            return {}
        changed = ((value, self._seen_from(stage, value)) for value in reads(op))
        return {value: seen for value, seen in changed if seen != value}

    def _seen_from(self, stage: int, value: ir.Value) -> ir.Value:
        while (maker := defining(value)) is not None:
            home = self.stage(maker)
            if maker.name == BARRIER and home != stage:
                value = maker.operands[ir.OpResult(value).result_number]
            # Of earlier stages only: what its own stage computes again is there when it is needed.
            elif value in self.original and SHARED < home < stage:
                value = self.original[value]
            else:
                break
        return value

"""Whether stages that somebody gave by hand can be fragments: forwards by rising stage, then
backwards by falling."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.dialect.program import Program
from shardopt.extract.op_graph import reads
from shardopt.graph.op_graph import SHARED
from shardopt.passes.stages.cut_repeats import CutReads
from shardopt.passes.stages.staging import StagePlacement


def out_of_order(program: Program, placement: StagePlacement) -> tuple[ir.Operation, str] | None:
    """The first operation of the body that its stage cannot run in time, and what is wrong; None if
    all can.

    What depends on a later stage is backward; it must not go on to a later stage again. What is
    computed again never does (`shardopt.passes.stages.cut_repeats`).
    """
    cut = CutReads(program, placement.stage)
    latest: dict[ir.Value, int] = {}
    backward: dict[ir.Value, int] = {}
    for op in program.body_ops:
        stage = cut.stage(op)
        if stage == SHARED:
            continue
        values, instead = reads(op), cut.of(op)
        for value in (instead.get(value, value) for value in values):
            if backward.get(value, stage) < stage:
                return op, (
                    f"expected '{op.name}' of stage {stage} to read backward values of stages from "
                    f"{stage} on, "
                    f"found one of stage {backward[value]}"
                )
        reached = max((latest.get(value, SHARED) for value in values), default=SHARED)
        latest.update((result, max(reached, stage)) for result in op.results)
        if reached > stage:
            backward.update((result, stage) for result in op.results)
    return None

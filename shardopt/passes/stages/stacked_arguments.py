"""Arguments that have weights of several stages, as a scan over layers reads them.

An argument lies on one mesh, and so does the state of the optimizer that belongs to it. The rows
that other stages read are sent to them in every step, and gradients of these rows come back."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import read_tensor
from shardopt.extract.rows import source_of
from shardopt.ir.diagnostics import position_of
from shardopt.passes.base import PassContext
from shardopt.support.counts import counted
from shardopt.support.sizes import format_bytes

_NAMED = 2


def warn_of_stacked(program: StepProgram, stages: Sequence[range], pm: PassContext) -> None:
    """Say which state has rows that several stages read."""
    stage_of = {layer: stage for stage, layers in enumerate(stages) for layer in layers}
    readers: dict[ir.Value, set[int]] = {}
    for number, value in program.captured.items():
        source, rows = source_of(value)
        if rows is not None:
            uses = program.body_block.arguments[number].uses
            layers = (
                ir.IntegerAttr(use.owner.attributes[LAYER]).value
                for use in uses
                if LAYER in use.owner.attributes  # what ends the body has none
            )
            readers.setdefault(source, set()).update(
                stage_of[layer] for layer in layers if layer in stage_of
            )
    state = [program.main_block.arguments[number] for number in read_donation(program.main)]
    stacked = [argument for argument in state if len(readers.get(argument, ())) > 1]
    if stacked:
        names = [
            position_of(argument).name or f"argument {argument.arg_number}" for argument in stacked
        ]
        more = ", …" * (len(names) > _NAMED)
        size = format_bytes(sum(read_tensor(argument.type).size_bytes for argument in stacked))
        pm.warning(
            stacked[0],
            f"several stages read rows of {counted(len(stacked), 'argument')} "
            f"({', '.join(names[:_NAMED])}{more}), {size} in all: each lies, with its state of the "
            "optimizer, on the first of these stages alone; give every layer weights of its own, "
            "and stack them in the step (docs/guide/python.md)",
        )

"""Which values of a microbatch wait in the memory of the hosts for the backward that reads them.

Stages say what they offload (`shardopt.offload` on the loop); which values that are, everybody who
counts, prices or moves them finds out here, in the staged form and in those behind it."""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import KIND, STAGE, STAGE_ID, parse_mesh_tensor, read_offload
from shardopt.extract.op_graph import read_tensor
from shardopt.graph.offloading import has_activations, is_worth_a_message

_CALLS = ("mpmd.fragment", "mpmd.fragment_call")
_BACKWARD = ("bwd", "bwd_input", "bwd_weight")


def waiting_values(loop: ir.Operation, body: Iterable[ir.Operation]) -> dict[ir.Value, int]:
    """Those of the operations of the body of a loop, each with its stage: what a forward makes,
    only backwards of its stage read, and is worth a message."""
    modes = read_offload(loop)
    stages = {stage for stage, mode in enumerate(modes) if has_activations(mode)}
    waiting: dict[ir.Value, int] = {}
    for op in body if stages else ():
        stage, kind = _task(op)
        if kind == "fwd" and stage in stages:
            waiting.update((value, stage) for value in op.results if _waits(value, stage))
    return waiting


def _waits(value: ir.Value, stage: int) -> bool:
    readers = [_task(use.owner.operation) for use in value.uses]
    return (
        bool(readers)
        and all(reader == stage and kind in _BACKWARD for reader, kind in readers)
        and is_worth_a_message(read_tensor(parse_mesh_tensor(value.type).tensor).size_bytes)
    )


def _task(op: ir.Operation) -> tuple[int, str]:
    """Stage and kind of a fragment or of a call of one; of anything else none."""
    if op.name not in _CALLS or KIND not in op.attributes:
        return -1, ""
    stage = op.attributes[STAGE if op.name == "mpmd.fragment_call" else STAGE_ID]
    return ir.IntegerAttr(stage).value, ir.StringAttr(op.attributes[KIND]).value

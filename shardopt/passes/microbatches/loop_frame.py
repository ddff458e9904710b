"""The frame of a microbatch loop: the function of its body, and the loop in `@main` that calls
it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, mpmd

from shardopt.forms.microbatched_form import MICROBATCH


def write_function(
    module: ir.Module, captured: Sequence[ir.Value], initial: Sequence[ir.Value], loc: ir.Location
) -> ir.Block:
    """The empty block of a new `@microbatch`: what it captures, accumulators, and the index."""
    results = [value.type for value in initial]
    types = [*(value.type for value in captured), *results, _index()]
    signature = ir.FunctionType.get(types, results)
    point = ir.InsertionPoint(module.body)
    function = func.FuncOp(MICROBATCH, signature, ip=point, loc=loc).operation
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    return function.regions[0].blocks.append(*types, arg_locs=[loc] * len(types))


def write_for(
    captured: Sequence[ir.Value], initial: Sequence[ir.Value], count: int, loc: ir.Location
) -> ir.Operation:
    """A loop of `count` calls of `@microbatch` at the current insertion point."""
    types = [value.type for value in initial]
    loop = mpmd.ForOp(types, initial, _counter(count)).operation
    block = loop.regions[0].blocks.append(*types, _index(), arg_locs=[loc] * (len(types) + 1))
    with ir.InsertionPoint(block):
        call = mpmd.CallOp(types, [*captured, *block.arguments], MICROBATCH).operation
        call.attributes["call_counter"] = _counter(0)
        mpmd.ReturnOp(list(call.results))
    return loop


def _index() -> ir.RankedTensorType:
    return ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))


def _counter(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_unsigned(32), value)

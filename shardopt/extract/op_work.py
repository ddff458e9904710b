"""Read out of the IR what an operation computes: the work of its regions, and of a loop that of all
iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.manual import MANUAL
from shardopt.extract.fused_attention import attention_work, is_attention
from shardopt.extract.windows import convolution_windows
from shardopt.graph.op_flops import Shape, Work, op_work
from shardopt.ir.loops import CONTROL_FLOW, MAX_COUNTED, UNKNOWN_TRIPS, WHILE, trip_count
from shardopt.ir.rewriting import shape_of


def read_work(op: ir.Operation) -> Work:
    """The work of one execution: of a loop that of all its iterations, of a branch that of all its
    regions, as the shard phase counts them (`shardopt.extract.control_flow`)."""
    if op.name == MANUAL:
        return _region_work(op.regions[0])
    if op.name in CONTROL_FLOW:
        inside = reduce(add, map(_region_work, op.regions), Work())
        return inside.times(_planned_trips(op) if op.name == WHILE else 1)
    operands = tuple(shape_of(v) for v in op.operands if isinstance(v.type, ir.RankedTensorType))
    results = tuple(shape_of(v) for v in op.results if isinstance(v.type, ir.RankedTensorType))
    return work_of(op, operands, results)


def work_of(op: ir.Operation, operands: Sequence[Shape], results: Sequence[Shape]) -> Work:
    """That of an operation other than loops and branches, given the shapes of its tensors."""
    attention = attention_work(op) if is_attention(op) else None
    if attention is not None:
        return Work(attention[0])
    regions = [_region_work(region) for region in op.regions]
    return op_work(op.name, operands, results, _attributes(op, regions), *regions[-1:])


def _region_work(region: ir.Region) -> Work:
    return reduce(add, (read_work(view.operation) for view in region.blocks[0].operations), Work())


def _planned_trips(loop: ir.Operation) -> int:
    count = trip_count(loop, MAX_COUNTED)
    return UNKNOWN_TRIPS if count is None else count


def _attributes(op: ir.Operation, regions: list[Work]) -> Mapping[str, object]:
    """What `op_work` wants to know beside shapes."""
    if op.name == "stablehlo.dot_general":
        dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return {"lhs_contracting_dimensions": tuple(dims.lhs_contracting_dimensions)}
    if op.name == "stablehlo.convolution":
        conv = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        return {
            "input_batch_dimension": conv.input_batch_dimension,
            "batch_group_count": ir.IntegerAttr(op.attributes["batch_group_count"]).value,
            "kernel_spatial_dimensions": tuple(conv.kernel_spatial_dimensions),
            "windows": convolution_windows(op),
        }
    if op.name == "stablehlo.fft":
        return {"fft_length": tuple(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))}
    if op.name in ("stablehlo.reduce_window", "stablehlo.select_and_scatter"):
        has_window = "window_dimensions" in op.attributes
        window = (
            tuple(ir.DenseI64ArrayAttr(op.attributes["window_dimensions"])) if has_window else ()
        )
        return {"window_dimensions": window, "select": regions[0]}
    return {}

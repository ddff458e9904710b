"""Manual regions as operations of the op graph: how they lie, what they exchange, and the work of
one device."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.manual import MANUAL, ManualRegion, read_region
from shardopt.extract.element_bits import element_bits
from shardopt.graph.op_graph import Island
from shardopt.ir.loops import MAX_COUNTED, UNKNOWN_TRIPS, WHILE, trip_count
from shardopt.ir.rewriting import operations, shape_of

_KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_permute": "permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}


def read_island(op: ir.Operation) -> Island | None:
    """None for any other operation."""
    if op.name != MANUAL:
        return None
    region = read_region(op)
    steps: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    for inner in operations(op, tuple(_KINDS)):
        steps[_step(inner, region)] += _executions(inner)
    return Island(
        region.axes,
        tuple(sharding.dims for sharding in region.operands),
        tuple(sharding.dims for sharding in region.results),
        tuple((*step, count) for step, count in sorted(steps.items())),
    )


def _step(op: ir.Operation, region: ManualRegion) -> tuple[str, tuple[str, ...], int]:
    """Kind, axes, and bytes as `shardopt.cost.collectives` counts them."""
    kind = _KINDS[op.name]
    axes = _axes(op, region)
    sizes = dict(region.axes)
    held = sum(map(_bytes, op.results if kind == "all_gather" else op.operands))
    if kind == "all_to_all":
        held *= prod(sizes[axis] for axis in axes)
    return kind, axes, held


def _bytes(value: ir.Value) -> int:
    bits = element_bits(str(ir.RankedTensorType(value.type).element_type))
    return prod(shape_of(value)) * bits // 8


def _axes(op: ir.Operation, region: ManualRegion) -> tuple[str, ...]:
    """The axes along which the devices of a group differ."""
    shape = [size for _, size in region.axes]
    permutes = "source_target_pairs" in op.attributes
    elements = ir.DenseIntElementsAttr(
        op.attributes["source_target_pairs" if permutes else "replica_groups"]
    )
    rows = np.array([elements[k] for k in range(len(elements))], dtype=np.int64)
    rows = rows.reshape(ir.RankedTensorType(elements.type).shape)
    coordinates = np.indices(shape).reshape(len(shape), -1).T
    differ = np.zeros(len(shape), dtype=bool)
    for row in rows:
        members = row[row >= 0]
        differ |= (coordinates[members] != coordinates[members[:1]]).any(axis=0)
    names = (name for name, _ in region.axes)
    return tuple(name for name, does in zip(names, differ.tolist(), strict=True) if does)


def _executions(op: ir.Operation) -> int:
    """How often an operation runs in one execution of its region."""
    count, parent = 1, op.parent
    while parent is not None and parent.operation.name != MANUAL:
        if parent.operation.name == WHILE:
            trips = trip_count(parent.operation, MAX_COUNTED)
            count *= UNKNOWN_TRIPS if trips is None else trips
        parent = parent.operation.parent
    return count

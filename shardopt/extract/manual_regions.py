"""Manual regions as operations of the op graph: how they lie, what they exchange, and the work of
one device; and of the collectives inside of them which dimensions they leave alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.manual import MANUAL, ManualRegion, read_region
from shardopt.extract.element_bits import element_bits
from shardopt.graph.op_graph import FactorRule, Island
from shardopt.ir.loops import MAX_COUNTED, UNKNOWN_TRIPS, WHILE, trip_count
from shardopt.ir.rewriting import operations, shape_of
from shardopt.ir.splats import read_splat

# As the op graph names them.
_KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_permute": "permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}


# Of counts: what is done to the number of a device to get its coordinates.
_ARITHMETIC: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "stablehlo.add": np.add,
    "stablehlo.divide": np.floor_divide,
    "stablehlo.multiply": np.multiply,
    "stablehlo.remainder": np.remainder,
}
_SAME = frozenset({"stablehlo.convert", "stablehlo.reshape"})
# The dimensions along which they change what a device holds.
_CHANGED = {
    "stablehlo.all_gather": ("all_gather_dim",),
    "stablehlo.all_to_all": ("split_dimension", "concat_dimension"),
    "stablehlo.reduce_scatter": ("scatter_dimension",),
}


def read_island(op: ir.Operation) -> Island | None:
    """Of a region, or of a collective inside of one, which has its one step and no layout of its
    own. None for any other operation."""
    if op.name in _KINDS:
        around = _around(op)
        if around is None:
            return None
        region = read_region(around)
        return Island(region.axes, (), (), ((*_step(op, region), 1),))
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


def collective_rule(op: ir.Operation) -> FactorRule | None:
    """Of a collective of one value inside a region: dimensions that it leaves alone pass through.
    None for any other operation."""
    if op.name not in _KINDS or len(op.operands) != 1 or _around(op) is None:
        return None
    changed = {ir.IntegerAttr(op.attributes[name]).value for name in _CHANGED.get(op.name, ())}
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    results = [len(before) + k if k in changed else k for k in range(len(before))]
    sizes = (*before, *after)
    return FactorRule(
        sizes,
        (tuple((k,) for k in range(len(before))),),
        (tuple((k,) for k in results),),
    )


def _around(op: ir.Operation) -> ir.Operation | None:
    """The region that an operation stands in."""
    parent = op.parent
    while parent is not None and parent.operation.name != MANUAL:
        parent = parent.operation.parent
    return None if parent is None else parent.operation


def device_numbers(op: ir.Operation) -> dict[ir.Value, frozenset[str]]:
    """The integers that a region makes of the number of its device, with the axes along which they
    differ: of `jax.lax.axis_index`, that axis alone."""
    axes = read_region(op).axes
    known: dict[ir.Value, np.ndarray] = {}
    differ: dict[ir.Value, frozenset[str]] = {}
    devices = np.arange(prod(size for _, size in axes), dtype=np.int64)
    for view in op.regions[0].blocks[0].operations:
        inner = view.operation
        value = _evaluated(inner, known, devices)
        if value is None:
            continue
        known[inner.results[0]] = value
        along = _differs_along(value.reshape([size for _, size in axes]))
        if inner.name != "stablehlo.constant":
            differ[inner.results[0]] = frozenset(axes[k][0] for k in along)
    return differ


def _evaluated(
    op: ir.Operation, known: Mapping[ir.Value, np.ndarray], devices: np.ndarray
) -> np.ndarray | None:
    """What an operation makes on each device, int64 `[devices]`; None for anything but integers
    that `known` has, or that are constant."""
    if op.name == "stablehlo.partition_id":
        return devices
    if op.name == "stablehlo.constant":
        number = read_splat(op)
        is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 0
        return np.full_like(devices, number) if is_count else None
    if op.name in _SAME and op.operands[0] in known:
        return known[op.operands[0]]
    if op.name in _ARITHMETIC and all(operand in known for operand in op.operands):
        first, second = (known[operand] for operand in op.operands)
        is_defined = op.name.endswith(("add", "multiply")) or bool(second.all())
        return _ARITHMETIC[op.name](first, second) if is_defined else None
    return None


def _differs_along(values: np.ndarray) -> list[int]:
    return [k for k in range(values.ndim) if (values != np.take(values, [0], axis=k)).any()]


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

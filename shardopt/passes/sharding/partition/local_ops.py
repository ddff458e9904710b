"""One operation on the tiles of a device.

Most operations do to a tile what they do to the whole. What is left stands here: attributes that
name extents, values that depend on where the tile lies, windows that reach over its border
(`borders`), and tables that are split where they are looked up (`lookups`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.dialect.strategy import CLONE, STRATEGY
from shardopt.extract.op_graph import free_values, is_zero
from shardopt.extract.shardy_rules import RULE
from shardopt.graph.op_graph import FactorRule
from shardopt.graph.windows import Window
from shardopt.ir.rewriting import shape_of
from shardopt.ir.splats import is_splat, resized, splat_constant
from shardopt.mesh.device_groups import is_first_along
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.partition.borders import Span, mirrored, spread, with_borders
from shardopt.passes.sharding.partition.builder import DeviceBuilder, converted, dense, make
from shardopt.passes.sharding.partition.lookups import (
    first_rows,
    gather_indices,
    only_found,
    scatter_indices,
)
from shardopt.passes.sharding.partition.splits import CannotSplit, OpSplit


@dataclass(frozen=True, eq=False)
class LocalOp:
    """An operation `op` of the whole program with what it needs on a device: its operands there,
    how operands and results lie, and how that splits it. `results` may have open sums."""

    op: ir.Operation
    values: tuple[ir.Value, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    split: OpSplit
    rule: FactorRule | None
    windows: tuple[Window, ...]

    def result_types(self, builder: DeviceBuilder) -> list[ir.Type]:
        pairs = zip(self.op.results, self.results, strict=True)
        return [local_type(builder, result.type, sharding) for result, sharding in pairs]


def local_type(builder: DeviceBuilder, type_: ir.Type, sharding: Sharding) -> ir.Type:
    tensor = ir.RankedTensorType(type_)
    shape = sharding.local_shape(builder.mesh, tuple(tensor.shape))
    return ir.RankedTensorType.get(list(shape), tensor.element_type)


def build_local(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    """The results on the device. Raises CannotSplit where the operation has no such form."""
    if local.op.name in _SPECIAL:
        return _SPECIAL[local.op.name](builder, local)
    _check_still(local)
    return list(_cloned(builder, local, local.values).results)


# ---- the general case ----


def _cloned(
    builder: DeviceBuilder,
    local: LocalOp,
    operands: Sequence[ir.Value],
    changes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Operation:
    """The operation on other operands, with the types of the device and some other attributes.
    Raises CannotSplit where StableHLO's verifier finds that they do not fit."""
    new = clone_with(local.op, operands)
    for result, type_ in zip(new.results, local.result_types(builder), strict=True):
        result.set_type(type_)
    for name, attribute in {**_adapted(local, operands), **(changes or {})}.items():
        new.attributes[name] = attribute
    try:
        new.verify()
    except ir.MLIRError as error:
        new.erase()
        raise CannotSplit("it does not fit the tiles of a device") from error
    return new


def clone_with(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Operation:
    """A clone that reads `operands`; behind its own those that its regions capture."""
    new = op.clone(ip=ir.InsertionPoint.current)
    count = len(op.operands)
    captured = dict(zip(free_values(op) if len(op.regions) else (), operands[count:], strict=True))
    for position, value in enumerate(operands[:count]):
        new.operands[position] = value
    for region in new.regions:
        for block in region.blocks:
            _replace_captured(block, captured)
    for name in (STRATEGY, CLONE, RULE):
        if name in new.attributes:
            del new.attributes[name]
    return new


def _replace_captured(block: ir.Block, captured: dict[ir.Value, ir.Value]) -> None:
    for view in block.operations:
        op = view.operation
        for position, operand in enumerate(op.operands):
            if operand in captured:
                op.operands[position] = captured[operand]
        for region in op.regions:
            for inner in region.blocks:
                _replace_captured(inner, captured)


def _adapted(local: LocalOp, operands: Sequence[ir.Value]) -> dict[str, ir.Attribute]:
    """Attributes that name extents of the tile."""
    op, name = local.op, local.op.name
    if name == "stablehlo.dynamic_slice":
        types = [sharding.dims[dim] for sharding in local.results for dim in range(sharding.rank)]
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        whole = shape_of(operands[0])
        return {
            "slice_sizes": ir.DenseI64ArrayAttr.get(
                [whole[d] if axes else sizes[d] for d, axes in enumerate(types)]
            )
        }
    if name == "stablehlo.convolution":
        return _groups(op, operands)
    return {}


def _groups(op: ir.Operation, operands: Sequence[ir.Value]) -> dict[str, ir.Attribute]:
    """Feature groups that are split: as many as are left of the input's features."""
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    if ir.IntegerAttr(op.attributes["feature_group_count"]).value == 1:
        return {}
    source, kernel = (shape_of(value) for value in operands[:2])
    count = source[dims.input_feature_dimension] // kernel[dims.kernel_input_feature_dimension]
    return {"feature_group_count": i64(count)}


# ---- windows ----


def _check_still(local: LocalOp, known: frozenset[int] = frozenset()) -> None:
    """Raises CannotSplit where data moves along a factor that is split, other than `known` ones."""
    moving = local.rule.permutation if local.rule is not None else frozenset()
    if local.split.axes.keys() & (moving - known):
        raise CannotSplit("data moves along a dimension that is split")


def _bordered(
    builder: DeviceBuilder, local: LocalOp, padding: ir.Value | None
) -> tuple[ir.Value, dict[int, Span]]:
    """Operand 0 with the borders of all windows that are split, and what they cover along each
    dimension."""
    value, spans = local.values[0], {}
    _check_still(local, frozenset(window.factor for window in local.windows))
    for window in local.windows:
        axes = local.split.axes.get(window.factor, ())
        if axes and window.mirrored:
            value = mirrored(builder, value, axes)
        elif axes:
            value, spans[window.dim] = with_borders(builder, value, window, axes, padding)
    return value, spans


def _slice(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    value, spans = _bordered(builder, local, None)
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (
        list(ir.DenseI64ArrayAttr(local.op.attributes[name])) for name in names
    )
    whole = shape_of(value)
    for dim, axes in enumerate(local.operands[0].dims):
        if dim in spans:
            starts[dim], limits[dim] = 0, whole[dim]
        elif axes:
            limits[dim] = whole[dim]
    changes = dict(
        zip(names, map(ir.DenseI64ArrayAttr.get, (starts, limits, strides)), strict=True)
    )
    return list(_cloned(builder, local, [value], changes).results)


def _pad(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    value, spans = _bordered(builder, local, local.values[1])
    changes = {}
    for name, side in (("edge_padding_low", "low"), ("edge_padding_high", "high")):
        amounts = list(ir.DenseI64ArrayAttr(local.op.attributes[name]))
        for dim, span in spans.items():
            amounts[dim] = getattr(span, side)
        changes[name] = ir.DenseI64ArrayAttr.get(amounts)
    return list(_cloned(builder, local, [value, local.values[1]], changes).results)


def _reverse(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    value, _ = _bordered(builder, local, None)
    return list(_cloned(builder, local, [value]).results)


def _reduce_window(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    if len(local.op.results) != 1:
        _check_still(local)
        return list(_cloned(builder, local, local.values).results)
    value, spans = _bordered(builder, local, local.values[1])
    changes = _repadded(local.op, len(shape_of(value)), spans)
    return list(_cloned(builder, local, [value, *local.values[1:]], changes).results)


def _convolution(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    from jaxlib.mlir.dialects import stablehlo

    if ir.IntegerAttr(local.op.attributes["batch_group_count"]).value != 1 and local.split.axes:
        raise CannotSplit("a convolution of batch groups is split")
    value, spans = _bordered(builder, local, None)
    numbers = stablehlo.ConvDimensionNumbers(local.op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    changes = _repadded(
        local.op, len(spatial), {spatial.index(dim): span for dim, span in spans.items()}
    )
    return list(_cloned(builder, local, [value, *local.values[1:]], changes).results)


def _repadded(op: ir.Operation, rows: int, spans: Mapping[int, Span]) -> dict[str, ir.Attribute]:
    """No padding in some of the `rows` but that between the elements of a dilated operand: what
    windows need beside it has come with the borders."""
    if not spans:
        return {}
    padding = np.zeros((rows, 2), dtype=np.int64)
    if "padding" in op.attributes:
        elements = ir.DenseIntElementsAttr(op.attributes["padding"])
        padding = np.array([elements[k] for k in range(len(elements))]).reshape(rows, 2)
    for row, span in spans.items():
        padding[row] = span.low, span.high
    return {"padding": dense(padding)}


# ---- values that depend on where the tile lies ----


def _constant(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    [sharding], [type_] = local.results, local.result_types(builder)
    if sharding.unreduced and not is_zero(local.op):
        raise CannotSplit("a constant other than zero is a term of a sum")
    if is_splat(local.op):
        return [resized(local.op, type_)]
    whole = clone_with(local.op, ()).results[0]
    if not sharding.axes:
        return [whole]
    starts = first_rows(builder.mesh, shape_of(whole), sharding)
    return [builder.part(whole, starts, shape_of_type(type_))]


def shape_of_type(type_: ir.Type) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(type_).shape)


def _iota(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    [sharding], [type_] = local.results, local.result_types(builder)
    if sharding.unreduced:
        raise CannotSplit("its numbers are a term of a sum")
    made = _cloned(builder, local, ()).results[0]
    dim = ir.IntegerAttr(local.op.attributes["iota_dimension"]).value
    if not sharding.dims[dim]:
        return [made]
    starts = first_rows(builder.mesh, shape_of(local.op.results[0]), sharding)[:, dim]
    element = ir.RankedTensorType(type_).element_type
    offset = spread(builder.scalar(starts, element), shape_of_type(type_))
    return [make("add", [type_], [made, offset]).result]


# ---- tables ----


def _gather(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    table = local.operands[0]
    sizes = list(ir.DenseI64ArrayAttr(local.op.attributes["slice_sizes"]))
    whole = shape_of(local.op.operands[0])
    tile = shape_of(local.values[0])
    changes = {
        "slice_sizes": ir.DenseI64ArrayAttr.get(
            [
                tile[d] if table.dims[d] and sizes[d] == whole[d] else sizes[d]
                for d in range(len(sizes))
            ]
        )
    }
    indices, is_there = gather_indices(builder, local.op, local.values[1], table)
    found = _cloned(builder, local, [local.values[0], indices], changes).results[0]
    return [only_found(local.op, found, is_there)]


def _scatter(builder: DeviceBuilder, local: LocalOp) -> list[ir.Value]:
    """Where updates are split, the first device of each group has the table and all others begin
    with the neutral element, so that their sum counts it once."""
    count = len(local.op.results)
    indices = scatter_indices(builder, local.op, local.values[count], local.operands[0])
    tables = list(local.values[:count])
    if local.split.reduced:
        if count != 1:
            raise CannotSplit("several tables are updated at once, and the updates are split")
        tables = [_on_first(builder, tables[0], local)]
    operands = [*tables, indices, *local.values[count + 1 :]]
    return list(_cloned(builder, local, operands).results)


def _on_first(builder: DeviceBuilder, table: ir.Value, local: LocalOp) -> ir.Value:
    body = [view.operation.name for view in local.op.regions[0].blocks[0].operations]
    neutral = {"stablehlo.add": 0, "stablehlo.multiply": 1}.get(body[0])
    if len(body) != 2 or neutral is None:
        raise CannotSplit("updates that are split neither add nor multiply")
    flag = ir.IntegerType.get_signless(1)
    is_first = is_first_along(builder.mesh, local.split.reduced)
    chosen = converted(
        builder.scalar(is_first.astype(np.int64), ir.IntegerType.get_signless(64)), flag
    )
    scalar = ir.RankedTensorType.get([], flag)
    assert chosen.type == scalar
    others = splat_constant(table.type, neutral)
    return make("select", [table.type], [chosen, table, others]).result


_SPECIAL: dict[str, Callable[[DeviceBuilder, LocalOp], list[ir.Value]]] = {
    "stablehlo.constant": _constant,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reverse": _reverse,
    "stablehlo.scatter": _scatter,
    "stablehlo.slice": _slice,
}

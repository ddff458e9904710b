"""Gathers and scatters whose table is split where it is looked up: each device serves the rows that
it holds.

A gather first limits its indices to the whole table, as StableHLO asks for, then takes what it
finds in its own rows and zeros for others: the results of all devices add up to the whole. A
scatter leaves out updates of rows that it does not hold, as StableHLO does with indices outside of
the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.rewriting import shape_of
from shardopt.ir.splats import splat_constant
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.passes.sharding.partition.borders import compared, spread
from shardopt.passes.sharding.partition.builder import DeviceBuilder, converted, dense, make
from shardopt.passes.sharding.partition.splits import CannotSplit

_FAR = 2**62  # beyond all indices


def gather_indices(
    builder: DeviceBuilder, op: ir.Operation, indices: ir.Value, table: Sharding
) -> tuple[ir.Value, ir.Value | None]:
    """Indices into the device's own rows, and for each result of a lookup whether it is there, or
    None where all are."""
    dims = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    mapped, vector = list(dims.start_index_map), dims.index_vector_dim
    shape = shape_of(op.operands[0])
    split = _split_components(mapped, table)
    if not split:
        return indices, None
    if any(sizes[mapped[k]] != 1 for k in split):
        raise CannotSplit("it looks up several rows at once in a table that is split there")
    limits = [shape[mapped[k]] - sizes[mapped[k]] for k in range(len(mapped))]
    indices = converted(indices, ir.IntegerType.get_signless(64))
    low, high = (
        _along(indices, _constant(numbers), vector) for numbers in ([0] * len(limits), limits)
    )
    limited = make("clamp", [indices.type], [low, indices, high]).result
    own = _shifted(builder, limited, shape, table, mapped, vector)
    rows = [
        table.local_shape(builder.mesh, shape)[dim] if k in split else _FAR
        for k, dim in enumerate(mapped)
    ]
    is_there = make(
        "and",
        [_flags(shape_of(own))],
        [
            compared(own, splat_constant(own.type, 0), "GE"),
            compared(own, _along(own, _constant(rows), vector), "LT"),
        ],
    ).result
    return own, _all_components(is_there, vector)


def scatter_indices(
    builder: DeviceBuilder, op: ir.Operation, indices: ir.Value, table: Sharding
) -> ir.Value:
    """Indices into the device's own rows; those of other devices are outside of it."""
    dims = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    mapped, vector = list(dims.scattered_dims_to_operand_dims), dims.index_vector_dim
    split = _split_components(mapped, table)
    if not split:
        return indices
    if any(mapped[k] not in dims.inserted_window_dims for k in split):
        raise CannotSplit("it updates several rows at once in a table that is split there")
    indices = converted(indices, ir.IntegerType.get_signless(64))
    return _shifted(builder, indices, shape_of(op.operands[0]), table, mapped, vector)


def only_found(op: ir.Operation, result: ir.Value, is_there: ir.Value | None) -> ir.Value:
    """What a gather has found, and zeros elsewhere."""
    if is_there is None:
        return result
    dims = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    shape = shape_of(result)
    batch = [d for d in range(len(shape)) if d not in dims.offset_dims]
    zeros = splat_constant(result.type, 0)
    return make("select", [result.type], [spread(is_there, shape, batch), result, zeros]).result


def _split_components(mapped: Sequence[int], table: Sharding) -> list[int]:
    return [k for k, dim in enumerate(mapped) if table.dims[dim]]


def _shifted(
    builder: DeviceBuilder,
    indices: ir.Value,
    shape: tuple[int, ...],
    table: Sharding,
    mapped: Sequence[int],
    vector: int,
) -> ir.Value:
    """Without the rows that lie on the devices before."""
    starts = first_rows(builder.mesh, shape, table)[:, list(mapped)]
    row = builder.row(starts, ir.IntegerType.get_signless(64))
    return make("subtract", [indices.type], [indices, _along(indices, row, vector)]).result


def first_rows(mesh: Mesh, shape: tuple[int, ...], table: Sharding) -> np.ndarray:
    """Where the tile of each device begins: int64 `[devices, rank]`."""
    return table.tile_numbers(mesh) * np.array(table.local_shape(mesh, shape), dtype=np.int64)


def _along(indices: ir.Value, row: ir.Value, vector: int) -> ir.Value:
    """One figure for each component of an index, at the shape of all indices."""
    shape = shape_of(indices)
    if vector == len(shape):  # the components are scalars
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(row.type).element_type)
        return spread(make("reshape", [scalar], [row]).result, shape)
    return spread(row, shape, [vector])


def _all_components(flags: ir.Value, vector: int) -> ir.Value:
    shape = list(shape_of(flags))
    if vector == len(shape):
        return flags
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    del shape[vector]
    op = make(
        "reduce",
        [_flags(shape)],
        [flags, splat_constant(scalar, True)],
        regions=1,
        dimensions=ir.DenseI64ArrayAttr.get([vector]),
    )
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        make("return", [], [make("and", [scalar], list(block.arguments)).result])
    return op.results[0]


def _constant(numbers: Sequence[int]) -> ir.Value:
    value = dense(np.array(numbers, dtype=np.int64))
    return make("constant", [value.type], value=value).result


def _flags(shape: Sequence[int]) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), ir.IntegerType.get_signless(1))

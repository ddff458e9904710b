"""StableHLO operations of a program for one device: collectives, and what depends on the number of
the device.

Every device runs the same program as a replica; `stablehlo.replica_id` is its position in the mesh.
Figures that differ between devices are rows of a constant table:

    %id = stablehlo.replica_id : tensor<ui32>
    %t = stablehlo.constant dense<[[0], [0], [4], [4]]> : tensor<4x1xi64>
    %row = stablehlo.dynamic_slice %t, %id, %zero, sizes = [1, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.ir.splats import splat_constant
from shardopt.mesh.device_groups import groups_along, permutation_pairs
from shardopt.mesh.mesh import Mesh, Sharding


class DeviceBuilder:
    """Builds at the current insertion point and location; tables stand at the beginning of the
    program, so that each is there once."""

    def __init__(self, mesh: Mesh, entry: ir.Block) -> None:
        self.mesh = mesh
        with ir.InsertionPoint.at_block_begin(entry):
            scalar = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
            self._id = make("replica_id", [scalar]).result
            self._zero = splat_constant(scalar, 0)
        self._last = self._zero
        self._rows: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}

    # ---- figures that differ between devices ----

    def row(self, table: np.ndarray, element: ir.Type) -> ir.Value:
        """The row of this device, `tensor<columns x element>`; `table` is int64 `[devices,
        columns]`."""
        table = np.ascontiguousarray(table, dtype=np.int64)
        key = (str(element), table.tobytes(), table.shape)
        if key not in self._rows:
            with ir.InsertionPoint.after(ir.OpResult(self._last).owner):
                self._rows[key] = self._new_row(table, element)
            self._last = self._rows[key]
        return self._rows[key]

    def _new_row(self, table: np.ndarray, element: ir.Type) -> ir.Value:
        wide, columns = ir.IntegerType.get_signless(64), table.shape[1]
        type_ = ir.RankedTensorType.get(list(table.shape), wide)
        constant = make("constant", [type_], value=dense(table)).result
        line = make(
            "dynamic_slice",
            [ir.RankedTensorType.get([1, columns], wide)],
            [constant, self._id, self._zero],
            slice_sizes=ir.DenseI64ArrayAttr.get([1, columns]),
        ).result
        row = make("reshape", [ir.RankedTensorType.get([columns], wide)], [line]).result
        return converted(row, element)

    def scalar(self, column: np.ndarray, element: ir.Type) -> ir.Value:
        """The figure of this device; `column` is int64 `[devices]`."""
        if (column == column[0]).all():
            return splat_constant(ir.RankedTensorType.get([], element), int(column[0]))
        row = self.row(np.asarray(column).reshape(-1, 1), element)
        return make("reshape", [ir.RankedTensorType.get([], element)], [row]).result

    def part(self, value: ir.Value, starts: np.ndarray, shape: Sequence[int]) -> ir.Value:
        """The part of this device; `starts` is int64 `[devices, rank]`."""
        element = ir.RankedTensorType(value.type).element_type
        index = ir.IntegerType.get_signless(64)
        return make(
            "dynamic_slice",
            [ir.RankedTensorType.get(list(shape), element)],
            [value, *(self.scalar(starts[:, dim], index) for dim in range(starts.shape[1]))],
            slice_sizes=ir.DenseI64ArrayAttr.get(list(shape)),
        ).result

    # ---- collectives ----

    def all_gather(self, value: ir.Value, dim: int, axes: Sequence[str]) -> ir.Value:
        return self._collective(
            "all_gather", value, axes, {dim: self._count(axes)}, all_gather_dim=i64(dim)
        )

    def all_reduce(self, value: ir.Value, axes: Sequence[str], reducer: str = "add") -> ir.Value:
        return self._collective("all_reduce", value, axes, {}, reducer)

    def reduce_scatter(
        self, value: ir.Value, dim: int, axes: Sequence[str], reducer: str = "add"
    ) -> ir.Value:
        shrunk = {dim: 1 / self._count(axes)}
        return self._collective(
            "reduce_scatter", value, axes, shrunk, reducer, scatter_dimension=i64(dim)
        )

    def all_to_all(
        self, value: ir.Value, source: int, target: int, axes: Sequence[str]
    ) -> ir.Value:
        """Gather the dimension `source` and split `target`."""
        count = self._count(axes)
        return self._collective(
            "all_to_all",
            value,
            axes,
            {source: count, target: 1 / count},
            split_dimension=i64(target),
            concat_dimension=i64(source),
            split_count=i64(count),
        )

    def permute(self, value: ir.Value, before: Sharding, after: Sharding) -> ir.Value:
        """Devices that keep their tile send it to themselves: who receives nothing has zeros."""
        moved = permutation_pairs(self.mesh, before, after)
        stay = sorted(set(range(self.mesh.size)) - set(moved[:, 1].tolist()))
        pairs = np.concatenate([moved, np.array([[k, k] for k in stay], np.int64).reshape(-1, 2)])
        return make(
            "collective_permute", [value.type], [value], source_target_pairs=dense(pairs)
        ).result

    def _count(self, axes: Sequence[str]) -> int:
        return int(np.prod([self.mesh.axis_size(axis) for axis in axes], dtype=np.int64))

    def _collective(
        self,
        name: str,
        value: ir.Value,
        axes: Sequence[str],
        factors: dict[int, float],
        reducer: str = "",
        **attributes: ir.Attribute,
    ) -> ir.Value:
        """`factors` say by how much dimensions grow."""
        type_ = ir.RankedTensorType(value.type)
        shape = [round(extent * factors.get(dim, 1)) for dim, extent in enumerate(type_.shape)]
        groups = dense(groups_along(self.mesh, axes))
        op = make(
            name,
            [ir.RankedTensorType.get(shape, type_.element_type)],
            [value],
            regions=1 if reducer else 0,
            replica_groups=groups,
            **attributes,
        )
        if reducer:
            scalar = ir.RankedTensorType.get([], type_.element_type)
            block = op.regions[0].blocks.append(scalar, scalar)
            with ir.InsertionPoint(block):
                made = make(reducer, [scalar], list(block.arguments)).result
                make("return", [], [made])
        return op.results[0]


def make(
    name: str,
    types: Sequence[ir.Type],
    operands: Sequence[ir.Value] = (),
    *,
    regions: int = 0,
    **attributes: ir.Attribute,
) -> ir.Operation:
    """A StableHLO operation at the current insertion point."""
    return ir.Operation.create(
        f"stablehlo.{name}", list(types), list(operands), attributes, regions=regions
    )


def converted(value: ir.Value, element: ir.Type) -> ir.Value:
    type_ = ir.RankedTensorType(value.type)
    if type_.element_type == element:
        return value
    return make("convert", [ir.RankedTensorType.get(type_.shape, element)], [value]).result


def dense(numbers: np.ndarray) -> ir.DenseElementsAttr:
    """An attribute of elements `i64`."""
    wide = ir.RankedTensorType.get(list(numbers.shape), ir.IntegerType.get_signless(64))
    values = [ir.IntegerAttr.get(wide.element_type, int(number)) for number in numbers.ravel()]
    return ir.DenseElementsAttr.get(values, wide)

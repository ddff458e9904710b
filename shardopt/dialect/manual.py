"""Manual regions: code for one device of a mesh inside a program for all, as `jax.shard_map` writes
it (`sdy.manual_computation`).

    %2 = sdy.manual_computation(%0, %1) in_shardings=[<mesh<["x"=2]>, [{"x"}, {}]>, …]
           out_shardings=[<mesh<["x"=2]>, [{}, {}]>] manual_axes={"x"} (%a: tensor<4x8xf32>, …) {
      %3 = "stablehlo.all_reduce"(%a) … ; sdy.return %3 }

Between import and the words of a partitioner the region has its mesh in its own attributes, so that
no symbol has to survive, and names no axes but manual ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.mesh.mesh import Mesh, Sharding, matching_axes

MANUAL = "sdy.manual_computation"
_SIDES = ("in_shardings", "out_shardings")
_NAME = re.compile(r'"([^"]+)"')


@dataclass(frozen=True)
class ManualRegion:
    """The axes of the user's mesh, which of them are manual, and how operands and results lie."""

    axes: tuple[tuple[str, int], ...]
    manual: tuple[str, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def on(self, mesh: Mesh) -> ManualRegion | None:
        """The same in the words of another mesh of the same devices, or None where that has other
        axes."""
        names = matching_axes(self.axes, mesh)
        if names is None:
            return None
        manual = tuple(own for axis in self.manual for own in names.get(axis, ()))
        operands, results = (
            tuple(_renamed(sharding, names) for sharding in side)
            for side in (self.operands, self.results)
        )
        return ManualRegion(mesh.axes, manual, operands, results)


def _renamed(sharding: Sharding, names: dict[str, tuple[str, ...]]) -> Sharding:
    """With other axes; those without one have a single device."""
    return Sharding(
        tuple(tuple(own for a in dim for own in names.get(a, ())) for dim in sharding.dims)
    )


def read_region(op: ir.Operation) -> ManualRegion:
    """Of a region with its mesh in its attributes."""
    sides = [_shardings(op, side) for side in _SIDES]
    attributes = [sdy.TensorShardingAttr(each) for side in sides for each in side]
    axes = _mesh_axes(attributes[0].mesh_or_ref) if attributes else ()
    manual = tuple(_NAME.findall(str(op.attributes["manual_axes"])))
    operands, results = (tuple(map(_read, side)) for side in sides)
    return ManualRegion(axes, manual, operands, results)


def create_region(
    region: ManualRegion, operands: Sequence[ir.Value], results: Sequence[ir.Type]
) -> ir.Operation:
    """A region without a block, at the current insertion point, with its mesh in its attributes."""
    # written anew below; the C++ of the operation wants them from the start
    attributes: dict[str, ir.Attribute] = {
        side: sdy.TensorShardingPerValueAttr.get([]) for side in _SIDES
    }
    attributes["manual_axes"] = ir.Attribute.parse("#sdy<manual_axes{}>")
    op = ir.Operation.create(MANUAL, results, operands, attributes, regions=1)
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in region.axes]
    write_region(op, sdy.MeshAttr.get(axes), region)
    return op


def write_region(op: ir.Operation, mesh: ir.Attribute | str, region: ManualRegion) -> None:
    """`mesh` is the mesh itself, or the name of one."""
    for side, shardings in zip(_SIDES, (region.operands, region.results), strict=True):
        values = [
            sdy.TensorShardingAttr.get(
                mesh,
                [
                    sdy.DimensionShardingAttr.get(
                        [sdy.AxisRefAttr.get(axis) for axis in dim], is_closed=True
                    )
                    for dim in sharding.dims
                ],
            )
            for sharding in shardings
        ]
        op.attributes[side] = sdy.TensorShardingPerValueAttr.get(values)
    names = ", ".join(f'"{axis}"' for axis in region.manual)
    op.attributes["manual_axes"] = ir.Attribute.parse(f"#sdy<manual_axes{{{names}}}>")


def mesh_names(op: ir.Operation) -> list[ir.Attribute]:
    """What the shardings of a region say of their mesh: the name, or the mesh itself."""
    sides = [each for side in _SIDES for each in _shardings(op, side)]
    return [sdy.TensorShardingAttr(each).mesh_or_ref for each in sides]


def manual_shardings(op: ir.Operation) -> tuple[list[Sharding], list[Sharding]]:
    """Of operands and results, as they stand there, but for axes that are not manual. Raises
    ValueError for parts of axes."""
    manual = set(_NAME.findall(str(op.attributes["manual_axes"])))
    sides = []
    for side in _SIDES:
        shardings = [_read(each) for each in _shardings(op, side)]
        sides.append(
            [
                Sharding(tuple(tuple(a for a in dim if a in manual) for dim in sharding.dims))
                for sharding in shardings
            ]
        )
    return sides[0], sides[1]


def is_inside(op: ir.Operation) -> bool:
    """Whether an operation belongs to a manual region, or is one."""
    while op.name != MANUAL:
        parent = op.parent
        if parent is None:
            return False
        op = parent.operation
    return True


def _shardings(op: ir.Operation, side: str) -> Sequence[ir.Attribute]:
    return list(sdy.TensorShardingPerValueAttr(op.attributes[side]).shardings)


def _read(attribute: ir.Attribute) -> Sharding:
    dims = []
    for dim in sdy.TensorShardingAttr(attribute).dimension_shardings:
        references = [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dim).axes]
        if any(reference.sub_axis_info is not None for reference in references):
            raise ValueError(f"expected whole axes, found {attribute}")
        dims.append(tuple(reference.name for reference in references))
    return Sharding(tuple(dims))


def _mesh_axes(mesh: ir.Attribute) -> tuple[tuple[str, int], ...]:
    return tuple((a.name, a.size) for a in map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh).axes))

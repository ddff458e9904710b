"""Bring regions that are written for one device (`jax.shard_map`) into the form in which they pass
through planning as fixed islands. Those in the words of GSPMD become regions first
(`gspmd_regions.py`).

Runs before the annotations are read, which erases meshes. Afterwards each region has its mesh in
its own attributes, closed shardings along manual axes only, and constraints inside of it are gone:
along axes that are not manual it is computed in full on every device.

    sdy.mesh @mesh = <["x"=2, "y"=2]>
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x", ?}, {?}]>] … manual_axes={"x"} …
 =>
    %0 = sdy.manual_computation(%a) in_shardings=[<mesh<["x"=2, "y"=2]>, [{"x"}, {}]>] …

Since jax 0.12, collectives name a mesh and the axes that they go over; the devices of their groups
are written out, as earlier versions have them:

    replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [<name = "x">]>
 =>
    replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.manual import MANUAL, ManualRegion, manual_shardings, mesh_names, write_region
from shardopt.extract.op_graph import free_values
from shardopt.ir.rewriting import op_name, operations
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.importing.gspmd_regions import regions_from_gspmd

_CONSTRAINT = "sdy.sharding_constraint"
_GROUPS = "replica_groups"
_GROUPS_BY_AXES = re.compile(
    r"#stablehlo\.replica_group_mesh_axes"
    r'<mesh = @"?(?P<mesh>[^",>]+)"?, axes = \[(?P<axes>.*)\]>'
)
_AXIS = re.compile(r'axis_ref<name = "([^"]+)">')


@dataclass(frozen=True)
class ReadManualRegions(Pass):
    """See the head of the file."""

    name = "shardopt-read-manual-regions"
    summary = "let code that is written for one device pass through planning as it is"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        meshes = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.attributes["mesh"]
            for op in module.body.operations
            if op_name(op) == "sdy.mesh"
        }
        regions_from_gspmd(module.operation, pm)
        regions = operations(module.operation, (MANUAL,))
        for op in regions:
            _write_out_groups(op, meshes, pm)
            _read(op, meshes, pm)
        pm.statistic("manual regions", len(regions))
        if not regions:
            pm.preserve()


def _write_out_groups(
    region: ir.Operation, meshes: Mapping[str, ir.Attribute], pm: PassContext
) -> None:
    for op in operations(region):
        written = op.attributes.get(_GROUPS, None)
        if written is None or isinstance(written, ir.DenseElementsAttr):
            continue
        match = _GROUPS_BY_AXES.fullmatch(str(written))
        axes = _AXIS.findall(match["axes"]) if match else []
        if match is None or match["mesh"] not in meshes or len(axes) != match["axes"].count("<"):
            raise pm.error(op, f"expected groups of devices or of whole mesh axes, found {written}")
        mesh = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(meshes[match["mesh"]]).axes]
        sizes = {axis.name: axis.size for axis in mesh}
        groups = _devices_along(sizes, axes)
        number = ir.IntegerType.get_signless(64)
        numbers = [ir.IntegerAttr.get(number, int(device)) for device in groups.flat]
        op.attributes[_GROUPS] = ir.DenseElementsAttr.get(
            numbers, ir.RankedTensorType.get(groups.shape, number)
        )


def _devices_along(sizes: Mapping[str, int], axes: Sequence[str]) -> np.ndarray:
    """int64 `[groups, devices of a group]`: devices are numbered row by row of the mesh."""
    numbers = np.arange(prod(sizes.values()), dtype=np.int64).reshape(tuple(sizes.values()))
    names = list(sizes)
    inside = [names.index(axis) for axis in axes]
    outside = [k for k in range(len(names)) if k not in inside]
    count = prod(sizes[axis] for axis in axes)
    return numbers.transpose(*outside, *inside).reshape(-1, count)


def _read(op: ir.Operation, meshes: dict[str, ir.Attribute], pm: PassContext) -> None:
    if free_values(op):
        raise pm.error(op, f"expected '{MANUAL}' to read nothing but its operands")
    if operations(op, (MANUAL,))[1:]:
        raise pm.error(op, f"expected no '{MANUAL}' inside of another one")
    named = {str(each): each for each in mesh_names(op)}
    if len(named) != 1:
        raise pm.error(
            op, f"expected '{MANUAL}' to name one mesh, found {', '.join(named) or 'none'}"
        )
    [(text, mesh)] = named.items()
    if text.startswith("@"):
        name = ir.FlatSymbolRefAttr(mesh).value
        if name not in meshes:
            raise pm.error(op, f"mesh '@{name}' of '{MANUAL}' does not exist")
        mesh = meshes[name]
    if list(sdy.MeshAttr(mesh).device_ids):
        raise pm.error(op, f"expected the devices of the mesh of '{MANUAL}' in order, found {mesh}")
    try:
        operands, results = manual_shardings(op)
    except ValueError as error:
        raise pm.error(op, str(error)) from error
    axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(mesh).axes]
    manual_text = str(op.attributes["manual_axes"])
    manual = tuple(axis.name for axis in axes if f'"{axis.name}"' in manual_text)
    sizes = tuple((axis.name, axis.size) for axis in axes)
    for inner in operations(op, (_CONSTRAINT,)):
        inner.results[0].replace_all_uses_with(inner.operands[0])
        inner.erase()
    write_region(op, mesh, ManualRegion(sizes, manual, tuple(operands), tuple(results)))

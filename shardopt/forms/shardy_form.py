"""Shardy's form of a sharded plain module: a mesh, shardings on the signature, and a constraint on
every value.

    sdy.mesh @mesh = <["x"=2]>
    func.func public @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) …
      %0 = stablehlo.add %a, %a : tensor<8x4xf32>
      %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>

Scalars, and what every reader makes for itself, have no constraint. Arguments and results are
divided by their tiles, as Shardy would replicate them otherwise; inside, tiles may be uneven.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.sharding import from_sdy
from shardopt.extract.control_flow import planned_operations
from shardopt.mesh.mesh import Mesh, Sharding, numbered_devices

SDY_SHARDING = "sdy.sharding"
CONSTRAINT = "sdy.sharding_constraint"


def read_mesh(module: ir.Module) -> Mesh | None:
    """The one mesh of a module in this form, or None. Its devices are 0, 1, 2, …"""
    meshes = [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]
    if len(meshes) != 1:
        return None
    axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(meshes[0].attributes["mesh"]).axes]
    sizes = tuple((axis.name, axis.size) for axis in axes)
    name = ir.StringAttr(meshes[0].attributes["sym_name"]).value
    return Mesh(name, sizes, numbered_devices(sizes))


def declare_axes(module: ir.Module, axes: tuple[tuple[str, int], ...]) -> None:
    """Have the one mesh of a module in this form name these axes (name, size), which are those it
    has and others of extent one."""
    [mesh] = [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]
    with module.context:
        named = [sdy.MeshAxisAttr.get(name, size) for name, size in axes]
        mesh.attributes["mesh"] = sdy.MeshAttr.get(named)


def signature_shardings(main: ir.Operation, which: str) -> tuple[Sharding, ...]:
    """Those of all arguments ("arg_attrs") or all results ("res_attrs"). Raises ValueError where
    one is missing."""
    if which not in main.attributes:
        return ()
    shardings = []
    for number, row in enumerate(ir.ArrayAttr(main.attributes[which])):
        attributes = ir.DictAttr(row)
        if SDY_SHARDING not in attributes:
            what = "argument" if which == "arg_attrs" else "result"
            raise ValueError(f"expected '{SDY_SHARDING}' on {what} {number} of '@main', found none")
        shardings.append(from_sdy(str(attributes[SDY_SHARDING]))[1])
    return tuple(shardings)


def needs_no_constraint(op: ir.Operation) -> bool:
    """Made anew wherever it is read: without a constraint Shardy gives each reader the part that it
    needs."""
    if op.name == "stablehlo.broadcast_in_dim":
        return not ir.RankedTensorType(op.operands[0].type).rank
    return op.name in ("stablehlo.constant", "stablehlo.iota")


def errors(main: ir.Operation, mesh: Mesh) -> Iterator[tuple[ir.Operation, str]]:
    """All departures from the form in program order: the operation and what was expected of it."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    for which, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
        try:
            shardings = signature_shardings(main, which)
            for sharding, tensor in zip(shardings, types, strict=len(shardings) > 0):
                shape = tuple(ir.RankedTensorType(tensor).shape)
                sharding.check(mesh, shape)
                if not sharding.is_even(mesh, shape):
                    raise ValueError(
                        f"expected tiles without padding, found sharding {sharding} of {tensor}"
                    )
            if len(types) and not shardings:
                raise ValueError(
                    f"expected '{SDY_SHARDING}' on the arguments and results of '@main', found none"
                )
        except ValueError as error:
            yield main, str(error)
    for op in planned_operations(main.regions[0].blocks[0]):
        yield from _of_op(op, mesh)


def _of_op(op: ir.Operation, mesh: Mesh) -> Iterator[tuple[ir.Operation, str]]:
    if op.name == CONSTRAINT:
        try:
            sharding = from_sdy(str(op.attributes["sharding"]))[1]
            shape = tuple(ir.RankedTensorType(op.results[0].type).shape)
            sharding.check(mesh, shape)
            if sharding.pads_terms(mesh, shape):
                raise ValueError(
                    "expected tiles without padding of a sum that is still open, found sharding "
                    f"{sharding} of {op.results[0].type}"
                )
        except ValueError as error:
            yield op, f"'{op.name}': {error}"
        return
    for result in op.results if not needs_no_constraint(op) else ():
        ranked = (
            isinstance(result.type, ir.RankedTensorType)
            and ir.RankedTensorType(result.type).rank > 0
        )
        if ranked and not any(use.owner.operation.name == CONSTRAINT for use in result.uses):
            yield op, f"expected a sharding constraint on every result of '{op.name}', found none"
            return

"""A sharded plain module as the program of one device: tiles, and collectives between replicas.

    module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32}
    func.func public @main(%a: tensor<4x4xf32> {shardopt.tile = {type = tensor<8x4xf32>, sharding =
          "[{x}, {}]"}}) -> … attributes {shardopt.mesh = #sdy.mesh<["x"=2]>}
      %0 = stablehlo.all_gather %a … replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>

Replica k is device k of the mesh, in row-major order of its axes. No operation has a sharding."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.plain_mesh import read_plain_mesh
from shardopt.dialect.sharding import MHLO_SHARDING
from shardopt.dialect.tiles import TILE, read_tile
from shardopt.ir.rewriting import operations
from shardopt.mesh.mesh import Mesh

_GROUPS = "replica_groups"
_REPLICAS = "mhlo.num_replicas"


def errors(module: ir.Module, main: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """All departures from the form in program order: the operation and what was expected of it."""
    mesh = read_plain_mesh(main)
    attributes = module.operation.attributes
    count = ir.IntegerAttr(attributes[_REPLICAS]).value if _REPLICAS in attributes else 0
    if count != mesh.size:
        yield module.operation, f"expected {_REPLICAS} = {mesh.size} of mesh {mesh}, found {count}"
    signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    for which, name, types in (
        ("arg_attrs", "argument", signature.inputs),
        ("res_attrs", "result", signature.results),
    ):
        rows = list(ir.ArrayAttr(main.attributes[which])) if which in main.attributes else []
        for number, type_ in enumerate(types):
            row = entries(ir.DictAttr(rows[number])) if number < len(rows) else {}
            if TILE not in row:
                yield main, f"expected '{TILE}' on {name} {number} of '@main', found none"
            elif message := _tile_error(row[TILE], type_, mesh):
                yield main, f"'{TILE}' on {name} {number} of '@main': {message}"
    for op in operations(main):
        message = _op_error(op, mesh)
        if message:
            yield op, message


def _tile_error(attribute: ir.Attribute, type_: ir.Type, mesh: Mesh) -> str:
    try:
        whole, sharding = read_tile(attribute)
        shape = tuple(ir.RankedTensorType(whole).shape)
        sharding.check(mesh, shape)
    except ValueError as error:
        return str(error)
    extents = list(sharding.local_shape(mesh, shape))
    expected = ir.RankedTensorType.get(extents, ir.RankedTensorType(whole).element_type)
    return "" if expected == type_ else f"expected a value of type {expected}, found {type_}"


def _op_error(op: ir.Operation, mesh: Mesh) -> str:
    if MHLO_SHARDING in op.attributes:
        return f"expected no '{MHLO_SHARDING}' on '{op.name}' of a program for one device"
    if _GROUPS in op.attributes:
        groups = ir.DenseIntElementsAttr(op.attributes[_GROUPS])
        members = sorted(groups[k] for k in range(len(groups)))
        if members != list(range(mesh.size)):
            return f"expected groups of all {mesh.size} devices on '{op.name}', found {members}"
    return ""

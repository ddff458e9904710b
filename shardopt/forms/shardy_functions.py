"""Stage functions as Shardy's own MPMD export leaves them, made into modules of their own.

    sdy.mesh @mesh = <["x"=2]>
    func.func @p0_f1_fwd.main(%a: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x4xf32>
          attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64}

There are no `mhlo.sharding` annotations: what the boundary of a function is sharded like stands in
the mesh tensors of its calls, and may also stand on the function as `sdy.sharding`; inside there
may be `sdy.sharding_constraint`s and calls of other functions. Values without a constraint are
sharded as Shardy's partitioner likes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.mpmd import mesh_shape_attr
from shardopt.dialect.sharding import from_sdy
from shardopt.forms.shardy import sharding_attribute
from shardopt.forms.shardy_form import SDY_SHARDING
from shardopt.mesh.mesh import Mesh, Sharding

_MESH = "mesh"
_MESH_OP = "sdy.mesh"
_CALL = "func.call"


def stated_sharding(attributes: dict[str, ir.Attribute]) -> Sharding | None:
    """The `sdy.sharding` of an argument or result. Raises ValueError for sub-axes."""
    if SDY_SHARDING not in attributes:
        return None
    return from_sdy(str(attributes[SDY_SHARDING]), final=True)[1]


def complete_module(
    module: ir.Module,
    function: ir.Operation,
    origin: ir.SymbolTable,
    mesh: Mesh,
    arguments: Sequence[Sharding],
    results: Sequence[Sharding],
) -> None:
    """Give the signature of `function`, the `@main` of `module`, these shardings on `mesh`, and
    bring along from `origin` the meshes and functions that it names. Raises ValueError where a
    called function does not exist."""
    # Functions first, as they may name further meshes.
    _bring_functions(module, function, origin)
    declared = _bring_meshes(module, origin)
    axes = mesh_shape_attr(mesh)
    name = _MESH
    while declared.get(name, axes) != axes:
        name += "_"
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
        if name not in declared:
            sdy.MeshOp(ir.StringAttr.get(name), axes)
    named = Mesh(name, mesh.axes, mesh.devices)
    _sign(function, "arg_attrs", arguments, named)
    _sign(function, "res_attrs", results, named)


def _sign(function: ir.Operation, which: str, shardings: Sequence[Sharding], mesh: Mesh) -> None:
    if not shardings:
        return
    dictionaries: list[dict[str, ir.Attribute]] = [{} for _ in shardings]
    if which in function.attributes:
        rows = (ir.DictAttr(row) for row in ir.ArrayAttr(function.attributes[which]))
        dictionaries = [{row[k].name: row[k].attr for k in range(len(row))} for row in rows]
    function.attributes[which] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get({**attributes, SDY_SHARDING: sharding_attribute(sharding, mesh)})
            for attributes, sharding in zip(dictionaries, shardings, strict=True)
        ]
    )


def _bring_meshes(module: ir.Module, origin: ir.SymbolTable) -> dict[str, ir.Attribute]:
    """Every mesh that the module names, with its axes."""
    named: dict[str, ir.Attribute] = {}
    text = str(module.operation.get_asm(enable_debug_info=False))
    block = module.body
    for op in _top_level(origin):
        if op.name == _MESH_OP:
            name = ir.StringAttr(op.attributes["sym_name"]).value
            # In the text: attributes name meshes, where no walk over operations finds them.
            if f"@{name}" in text:
                op.clone(ip=ir.InsertionPoint.at_block_begin(block))
                named[name] = op.attributes["mesh"]
    return named


def _bring_functions(module: ir.Module, function: ir.Operation, origin: ir.SymbolTable) -> None:
    """Those that are called, and those that these call."""
    known: set[str] = set()
    waiting = [function]
    while waiting:
        for op in _nested(waiting.pop()):
            if op.name != _CALL:
                continue
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if name in known:
                continue
            if name not in origin:
                raise ValueError(f"function @{name} does not exist")
            known.add(name)
            waiting.append(origin[name].operation.clone(ip=ir.InsertionPoint(module.body)))


def _top_level(origin: ir.SymbolTable) -> Iterator[ir.Operation]:
    return (view.operation for view in _block_of(origin).operations)


def _block_of(origin: ir.SymbolTable) -> ir.Block:
    parent = origin["main"].operation.parent
    assert parent is not None, "functions stand in a module"
    return parent.regions[0].blocks[0]


def _nested(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _nested(inner.operation)

"""Write chosen shardings into the IR: `mhlo.sharding` on operations, axis shardings in mesh tensor
types.

Loops and branches carry no annotation of their own: the compiler may drop carried values before it
reads a tuple of shardings, which then no longer fits. The identities at what enters them and what
their regions return say the same (`shardopt.extract.control_flow`). The scalar operations of
reducers are left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i32
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import is_mesh_tensor, mesh_tensor_type, parse_mesh_tensor
from shardopt.dialect.sharding import MHLO_SHARDING, to_mhlo, tuple_to_mhlo
from shardopt.forms.sharded_form import CONTROL_FLOW, regions_of
from shardopt.ir.rewriting import terminator
from shardopt.mesh.mesh import Mesh, Sharding

NUM_PARTITIONS = "mhlo.num_partitions"
NUM_REPLICAS = "mhlo.num_replicas"


def annotate_block(block: ir.Block, shardings: Mapping[ir.Value, Sharding], mesh: Mesh) -> None:
    """Every operation of the block gets the shardings of its results, as a tuple when it has
    several."""
    texts: dict[tuple[Sharding, ...], ir.StringAttr] = {}
    for view in block.operations:
        op = view.operation
        for inner in regions_of(op):
            annotate_block(inner, shardings, mesh)
        if not len(op.results) or op.name in CONTROL_FLOW:
            continue
        chosen = tuple([shardings[result] for result in op.results])
        text = texts.get(chosen)
        if text is None:
            text = texts[chosen] = ir.StringAttr.get(tuple_to_mhlo(list(chosen), mesh))
        op.attributes[MHLO_SHARDING] = text


def retype(shardings: Mapping[ir.Value, Sharding], mesh: Mesh) -> None:
    """Put the axis sharding into the type of every value that is a mesh tensor, and the padding of
    its tiles where they are uneven (`padded_borders`)."""
    for value, sharding in shardings.items():
        if is_mesh_tensor(value.type):
            tensor = parse_mesh_tensor(value.type).tensor
            padded = sharding.padded_shape(mesh, tuple(tensor.shape))
            if list(padded) != tensor.shape:
                tensor = ir.RankedTensorType.get(padded, tensor.element_type)
            value.set_type(mesh_tensor_type(mesh.name, tensor, sharding))


def refresh_function_type(function: ir.Operation) -> None:
    """Make the function's type agree with its block after `retype`."""
    block = function.regions[0].blocks[0]
    inputs = [argument.type for argument in block.arguments]
    results = [value.type for value in terminator(block).operands]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def annotate_signature(
    main: ir.Operation, arguments: Sequence[Sharding], results: Sequence[Sharding], mesh: Mesh
) -> None:
    """`mhlo.sharding` on the arguments and results of a plain `@main`."""
    main.attributes["arg_attrs"] = _with_shardings(argument_attributes(main), arguments, mesh)
    existing = (
        [ir.DictAttr(attr) for attr in ir.ArrayAttr(main.attributes["res_attrs"])]
        if "res_attrs" in main.attributes
        else [ir.DictAttr.get({})] * len(results)
    )
    main.attributes["res_attrs"] = _with_shardings(existing, results, mesh)


def _with_shardings(
    existing: Sequence[ir.DictAttr], shardings: Sequence[Sharding], mesh: Mesh
) -> ir.ArrayAttr:
    return ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                entries(attributes) | {MHLO_SHARDING: ir.StringAttr.get(to_mhlo(s, mesh))}
            )
            for attributes, s in zip(existing, shardings, strict=True)
        ]
    )


def write_partitions(module: ir.Module, mesh: Mesh) -> None:
    """Say for how many devices a plain module is meant."""
    module.operation.attributes[NUM_PARTITIONS] = i32(mesh.size)
    module.operation.attributes[NUM_REPLICAS] = i32(1)

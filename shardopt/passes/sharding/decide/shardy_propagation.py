"""What Shardy itself would choose: its propagation pass, run on a copy of a plain module, read back
for every tensor.

    // the copy
    func.func public @main(%a: … {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, …)
      %0 = stablehlo.add %a, %a {shardopt.number = 0 : i32}
 =>   %0 = stablehlo.add %a, %a {…, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}

The copy carries the shardings to start from and no others; operations are known by their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.attributes import entries, i32
from shardopt.dialect.donation import argument_attributes
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.forms.shardy import SDY_SHARDING, sharding_attribute
from shardopt.ir.rewriting import operations, symbol_name
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.support.errors import UserError

_NUMBER = "shardopt.number"
_PIPELINE = "builtin.module(sdy-propagation-pipeline)"


def propagate(graph: MeshGraph, fixed: Mapping[int, Sharding]) -> dict[int, Sharding]:
    """The sharding of every tensor, from given ones of arguments and results of operations.

    A sharding that cuts an axis into parts is taken up to that axis. Raises UserError when the
    graph is not that of the whole module or nothing is given."""
    if len(graph.fragments) != 1 or symbol_name(graph.fragments[0]) != "main":
        raise UserError(
            "preset 'shardy' propagates through a plain module: expected one without stages"
        )
    if not fixed:
        raise UserError(
            "preset 'shardy' starts from given shardings: expected at least one, found none"
        )
    module = graph.fragments[0].parent
    assert module is not None  # a function stands in a module
    with module.context, ir.Location.unknown():
        # On a copy: the native pass rewrites the module, and frees what handles of the graph point
        # to.
        copy = _numbered_copy(module.operation, graph)
        _annotate(copy, graph, fixed)
        passmanager.PassManager.parse(_PIPELINE).run(copy)
        return _read(copy, graph)


def _numbered_copy(module: ir.Operation, graph: MeshGraph) -> ir.Operation:
    for number, handle in enumerate(graph.reader.handles):
        handle.attributes[_NUMBER] = i32(number)
    try:
        return module.clone()
    finally:
        for handle in graph.reader.handles:
            del handle.attributes[_NUMBER]


def _annotate(copy: ir.Operation, graph: MeshGraph, seeds: Mapping[int, Sharding]) -> None:
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in graph.mesh.axes]
    with ir.InsertionPoint.at_block_begin(copy.regions[0].blocks[0]):
        sdy.MeshOp(ir.StringAttr.get(graph.mesh.name), sdy.MeshAttr.get(axes))
    main = _main(copy)
    rows = [entries(row) for row in argument_attributes(main)]
    for number, tensor in graph.arguments.items():
        if tensor in seeds:
            rows[number][SDY_SHARDING] = sharding_attribute(seeds[tensor], graph.mesh)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])
    for op, results in _numbered(main, graph):
        if any(tensor in seeds for tensor in results):
            ranks = [len(graph.graph.tensors[tensor].shape) for tensor in results]
            shardings = [
                seeds.get(tensor, Sharding.replicated(rank))
                for tensor, rank in zip(results, ranks, strict=True)
            ]
            per_value = [sharding_attribute(sharding, graph.mesh) for sharding in shardings]
            op.attributes[SDY_SHARDING] = sdy.TensorShardingPerValueAttr.get(per_value)


def _numbered(
    main: ir.Operation, graph: MeshGraph
) -> Iterator[tuple[ir.Operation, tuple[int, ...]]]:
    """The operations of the copy, and the tensors of the graph that they make."""
    for op in operations(main):
        if _NUMBER in op.attributes:
            yield op, graph.reader.ops[ir.IntegerAttr(op.attributes[_NUMBER]).value].results


def _main(copy: ir.Operation) -> ir.Operation:
    blocks = copy.regions[0].blocks[0].operations
    return next(view.operation for view in blocks if symbol_name(view.operation) == "main")


def _read(copy: ir.Operation, graph: MeshGraph) -> dict[int, Sharding]:
    """What propagation does not reach is replicated: the partitioner would leave it so."""
    main, tensors = _main(copy), graph.graph.tensors
    shardings: dict[int, Sharding] = {}
    for number, row in enumerate(map(entries, argument_attributes(main))):
        if number in graph.arguments:
            tensor = graph.arguments[number]
            shardings[tensor] = _sharding(
                row.get(SDY_SHARDING), graph.mesh, len(tensors[tensor].shape)
            )
    for op, results in _numbered(main, graph):
        chosen: Sequence[ir.Attribute | None] = [None] * len(results)
        if SDY_SHARDING in op.attributes:
            chosen = sdy.TensorShardingPerValueAttr(op.attributes[SDY_SHARDING]).shardings
        for tensor, sharding in zip(results, chosen, strict=True):
            shardings[tensor] = _sharding(sharding, graph.mesh, len(tensors[tensor].shape))
    return shardings


def _sharding(attribute: ir.Attribute | None, mesh: Mesh, rank: int) -> Sharding:
    if attribute is None:
        return Sharding.replicated(rank)
    return Sharding(
        tuple(_axes(dim, mesh) for dim in sdy.TensorShardingAttr(attribute).dimension_shardings)
    )


def _axes(dim: ir.Attribute, mesh: Mesh) -> tuple[str, ...]:
    taken: list[str] = []
    for reference in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dim).axes):
        # Our shardings name whole axes, and what lies minor to a part has no place without it.
        if reference.sub_axis_info is not None:
            break
        if mesh.axis_size(reference.name) > 1:
            taken.append(reference.name)
    return tuple(taken)

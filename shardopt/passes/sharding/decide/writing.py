"""A plan becomes attributes: what was decided about every operation and fragment, which later
passes obey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxlib.mlir import ir

from shardopt.cost.host_link import host_seconds
from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.dialect.padding import Shape, write_shapes
from shardopt.dialect.plain_mesh import write_plain_mesh
from shardopt.dialect.rematerialization import Recompute, SeparateCopy, write_rematerialization
from shardopt.dialect.strategy import CLONE, STRATEGY, OpStrategy, strategy_attr, write_strategy
from shardopt.extract.mesh_graphs import MeshGraph, is_staged
from shardopt.forms.sharded_form import write_cost
from shardopt.graph.residency import host_moves
from shardopt.hardware.cluster import Cluster
from shardopt.ir.rewriting import functions, terminator
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.apply.padded_borders import pad_borders
from shardopt.passes.sharding.apply.sharding_writer import refresh_function_type, retype
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.rewritten import made_anew
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.solve.sharding.strategies.strategies import Strategy
from shardopt.support.spans import timed


@timed("sharding program: write")
def write_plans(
    module: ir.Module,
    main: ir.Operation,
    graphs: Sequence[MeshGraph],
    plans: Sequence[IntraOpPlan],
    cluster: Cluster,
) -> None:
    """Write the plan of each mesh into the module that its graph was read from: the chosen form."""
    whole = _border_shapes(main) if is_staged(main) else None
    for graph, plan in zip(graphs, plans, strict=True):
        _write(graph, plan, cluster)
    if whole is not None:
        for function in functions(module):
            refresh_function_type(function)
        write_shapes(main, *map(_changed, whole, _border_shapes(main)))
    else:
        [graph], [plan] = graphs, plans
        sides = (
            [plan.shardings[t] for t in tensors]
            for tensors in (graph.arguments.values(), graph.outputs)
        )
        write_strategy(main, OpStrategy.plain(*sides))
        write_plain_mesh(main, graph.mesh)


def _border_shapes(main: ir.Operation) -> tuple[list[Shape], list[Shape]]:
    """Of the mesh tensors that a staged `@main` takes and returns."""
    block = main.regions[0].blocks[0]
    taken, returned = (
        [tuple(parse_mesh_tensor(value.type).tensor.shape) for value in values]
        for values in (block.arguments, terminator(block).operands)
    )
    return taken, returned


def _changed(before: Sequence[Shape], after: Sequence[Shape]) -> dict[int, Shape]:
    """By number, what is not as it was."""
    pairs = enumerate(zip(before, after, strict=True))
    return {number: old for number, (old, new) in pairs if old != new}


def _write(graph: MeshGraph, plan: IntraOpPlan, cluster: Cluster) -> None:
    lies = {value: plan.shardings[tensor] for value, tensor in graph.reader.index.items()}
    retype(lies, graph.mesh)
    # Layers repeat, and so do strategies; those of one table are one object.
    texts: dict[tuple[int, tuple[Sharding, ...]], ir.Attribute] = {}
    for number, (op, handle) in enumerate(zip(graph.reader.ops, graph.reader.handles, strict=True)):
        results = tuple([plan.shardings[tensor] for tensor in op.results])
        strategy = plan.strategies[number]
        key = id(strategy), results
        if key not in texts:
            texts[key] = strategy_attr(_chosen(strategy, results), handle.context)
        handle.attributes[STRATEGY] = texts[key]
        if op.results and op.results[0] in plan.cheap_to_clone:
            handle.attributes[CLONE] = ir.UnitAttr.get(handle.context)
    link = cluster.group_of(graph.mesh).host_link
    replaced = {b: a for a, b in graph.tied}
    moves = host_moves(graph.reader.ops, graph.on_host, replaced)
    remats, groups = list(_remats(plan)), [op.group for op in graph.reader.ops]
    for number, fragment in enumerate(graph.fragments):
        ops = [op for op, group in enumerate(groups) if group == number]
        rows = [row for row in remats if groups[row.readers[0]] == number]
        before = pad_borders(fragment, lies) if graph.is_staged else 0
        write_rematerialization(fragment, [_numbered_from(min(ops) - before, row) for row in rows])
        # Of one run: how often a fragment runs is for the schedule to say.
        cost = plan.summary(ops, repeated=False)
        moved = sum(
            host_seconds(link, local_bytes(plan.graph, graph.mesh, tensor, plan.shardings[tensor]))
            for group, tensor, _ in moves
            if group == number
        )
        write_cost(fragment, replace(cost, host_seconds=moved))


def _chosen(strategy: Strategy, results: tuple[Sharding, ...]) -> OpStrategy:
    """A value that is cheap to clone lies as its first reader wants it, whatever its strategy says:
    `results`."""
    made = results if strategy.unscattered == strategy.results else strategy.unscattered
    return OpStrategy(strategy.operands, results, made)


def _remats(plan: IntraOpPlan) -> Iterator[Recompute | SeparateCopy]:
    """Rows with operations numbered as in the whole graph."""
    for remat in plan.rematerialized:
        strategies = tuple(OpStrategy.plain(s.operands, s.results) for s in remat.strategies)
        yield Recompute(remat.chain, strategies, remat.readers)
    for anew in made_anew(plan, plan.rematerialized):
        first = plan.graph.ops[anew.readers[0]]
        yield SeparateCopy(first.operands.index(anew.tensor), anew.readers)


def _numbered_from(first: int, row: Recompute | SeparateCopy) -> Recompute | SeparateCopy:
    """The row with operations numbered as in their fragment: from number `first` of the whole
    graph."""
    readers = tuple(op - first for op in row.readers)
    if isinstance(row, SeparateCopy):
        return SeparateCopy(row.operand, readers)
    return Recompute(tuple(op - first for op in row.chain), row.strategies, readers)

"""A plan becomes IR: annotations on operations and signatures, stops, copies made anew, values computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.extract.control_flow import pin_values
from shardopt.extract.mesh_graphs import MeshGraph, is_staged
from shardopt.forms.sharded_form import write_cost
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.accumulators import drop_idle_sum_points
from shardopt.passes.sharding.remaking import make_for_readers
from shardopt.passes.sharding.rematerializing import Rematerializer, later_readers
from shardopt.passes.sharding.resharding_stops import insert_scatters, insert_stops
from shardopt.passes.sharding.sharding_writer import (
    annotate_block,
    annotate_signature,
    refresh_function_type,
    retype,
    write_partitions,
)
from shardopt.solve.sharding.intra_op_plan import IntraOpPlan
from shardopt.support.spans import timed


@timed("sharding program: write")
def write_plans(
    module: ir.Module, main: ir.Operation, graphs: Sequence[MeshGraph], plans: Sequence[IntraOpPlan]
) -> None:
    """Write the plan of each mesh into the module that its graph was read from."""
    for graph, plan in zip(graphs, plans, strict=True):
        _apply(graph, plan)
    if is_staged(main):
        for function in functions(module):
            refresh_function_type(function)
    else:
        _apply_signature(module, main, graphs[0], plans[0])


def _apply(graph: MeshGraph, plan: IntraOpPlan) -> None:
    wanted = {op: strategy.operands for op, strategy in plan.strategies.items()}
    shardings = {value: plan.shardings[tensor] for value, tensor in graph.reader.index.items()}
    retype(shardings)
    shardings |= insert_scatters(graph.reader, _scattered(plan))
    _rematerialize(graph, plan, wanted, shardings)
    shardings |= make_for_readers(graph.reader, plan.made_anywhere, plan.shardings, wanted)
    shardings |= insert_stops(graph.reader, graph.mesh, plan.shardings, wanted, plan.made_anywhere)
    drop_idle_sum_points(graph.reader, shardings)
    groups = [op.group for op in graph.reader.ops]
    for number, fragment in enumerate(graph.fragments):
        shardings |= pin_values(fragment, shardings)
        annotate_block(fragment.regions[0].blocks[0], shardings, graph.mesh)
        ops = [k for k, group in enumerate(groups) if group == number]
        write_cost(fragment, plan.summary(ops, repeated=False))


def _rematerialize(
    graph: MeshGraph,
    plan: IntraOpPlan,
    wanted: Mapping[int, Sequence[Sharding]],
    shardings: dict[ir.Value, Sharding],
) -> None:
    rematerializer = Rematerializer(graph.reader, shardings)
    for again in plan.rematerialized:
        operands, results = ([getattr(s, side) for s in again.strategies] for side in ("operands", "results"))
        rematerializer.compute_again(again.chain, again.readers, operands, [result[0] for result in results])
    separate = {again.tensor for again in plan.rematerialized}
    for tensor, sharding, op in sorted(plan.fresh, key=lambda copy: (copy[2], copy[0], str(copy[1]))):
        if tensor not in separate:
            rematerializer.read_again(tensor, later_readers(graph.reader, wanted, tensor, sharding, op))


def _scattered(plan: IntraOpPlan) -> dict[int, tuple[Sharding, Sharding]]:
    """Operations that end in a reduce-scatter, or in the sum of what partial operands give: before and after it."""
    return {
        op: (strategy.unscattered[0], strategy.results[0])
        for op, strategy in plan.strategies.items()
        if strategy.unscattered != strategy.results
    }


def _apply_signature(module: ir.Module, main: ir.Operation, graph: MeshGraph, plan: IntraOpPlan) -> None:
    arguments = [plan.shardings[tensor] for tensor in graph.arguments.values()]
    annotate_signature(main, arguments, [plan.shardings[tensor] for tensor in graph.outputs], graph.mesh)
    write_partitions(module, graph.mesh)

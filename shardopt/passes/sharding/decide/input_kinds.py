"""What presets have to know of a graph that is read from the IR: which inputs are state, and which
hold the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardopt.extract.batch_arguments import batch_of
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.decide.shardy_propagation import propagate
from shardopt.solve.presets.data import data_parallel
from shardopt.solve.presets.flow import follow_between
from shardopt.solve.presets.presets import InputKinds
from shardopt.solve.sharding.intra_op.problem import IntraOpTables


def find_input_kinds(
    preset: str,
    graph: MeshGraph,
    tables: IntraOpTables,
    batch_args: Sequence[str],
    annotated: Mapping[int, Sharding] | None = None,
    received: Mapping[int, int] | None = None,
) -> InputKinds:
    """What a preset has to know of a graph. Raises UserError and ValueError.

    Shardy propagates from shardings that the user demands or, for want of any, from `annotated`
    ones or from the batch. `received` is where the batch lies in values that other meshes send."""
    input_kinds = InputKinds(
        graph.state,
        batch_of(graph, batch_args),
        received or {},
        tuple(graph.tied),
        no_batch=graph.no_batch,
    )
    if preset != "shardy":
        return input_kinds
    demanded = {
        tensor: shardings[0]
        for tensor, shardings in tables.constraints.allowed.items()
        if len(shardings) == 1
    }
    seeds = demanded or annotated or data_parallel(tables, input_kinds, preset).inputs()
    return replace(input_kinds, propagated=propagate(graph, seeds))


def received_batches(
    presets: Sequence[str], graphs: Sequence[MeshGraph], batch_args: Sequence[str]
) -> list[Mapping[int, int]]:
    """For each mesh where the batch lies in what others send; only presets want to know."""
    if set(presets) == {"ilp"}:
        return [{} for _ in graphs]
    input_kinds = [InputKinds(graph.state, batch_of(graph, batch_args)) for graph in graphs]
    followed = follow_between(
        [graph.graph for graph in graphs], input_kinds, [graph.sources for graph in graphs]
    )
    return [known.received for known in followed]

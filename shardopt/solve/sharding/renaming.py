"""The plan of one graph as that of another with the same operations on tensors of other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardopt.cost.graph import OpGraph
from shardopt.cost.mesh import Mesh
from shardopt.solve.sharding.intra_op_memory import Rematerialized
from shardopt.solve.sharding.intra_op_plan import IntraOpPlan


def renamed(plan: IntraOpPlan, graph: OpGraph, mesh: Mesh, tensors: Mapping[int, int]) -> IntraOpPlan:
    """The plan for `graph` on `mesh`, where `tensors[t]` is what t is called there. Operations keep their numbers
    (`shardopt.cost.structure` says when that is so), and axes of the mesh their names."""

    def again(value: Rematerialized) -> Rematerialized:
        extended = tuple(tensors[tensor] for tensor in value.extended)
        return replace(value, tensor=tensors[value.tensor], extended=extended)

    return replace(
        plan,
        graph=graph,
        mesh=mesh,
        shardings={tensors[tensor]: sharding for tensor, sharding in plan.shardings.items()},
        made_anywhere=frozenset(tensors[tensor] for tensor in plan.made_anywhere),
        communication=tuple(replace(item, tensor=tensors[item.tensor]) for item in plan.communication),
        rematerialized=tuple(map(again, plan.rematerialized)),
        fresh=frozenset((tensors[tensor], sharding, op) for tensor, sharding, op in plan.fresh),
    )

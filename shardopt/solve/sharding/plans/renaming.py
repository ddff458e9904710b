"""The plan of one graph as that of another with the same operations on the same tensors, under
other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh
from shardopt.solve.sharding.intra_op.communication import Communication
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized


def renamed(
    plan: IntraOpPlan,
    graph: OpGraph,
    mesh: Mesh,
    tensors: Mapping[int, int],
    ops: Mapping[int, int],
) -> IntraOpPlan:
    """The plan for `graph` on `mesh`, where `tensors[t]` and `ops[k]` are what t and k are called
    there (`shardopt.graph.structure`); axes of the mesh keep their names."""

    def remat(value: Rematerialized) -> Rematerialized:
        # In the order of this program, which may be another one.
        renamed_chain = ((ops[op], s) for op, s in zip(value.chain, value.strategies, strict=True))
        chain = sorted(renamed_chain, key=lambda pair: pair[0])
        return replace(
            value,
            tensor=tensors[value.tensor],
            chain=tuple(op for op, _ in chain),
            strategies=tuple(strategy for _, strategy in chain),
            readers=tuple(sorted(ops[op] for op in value.readers)),
            extended=tuple(tensors[tensor] for tensor in value.extended),
        )

    def moved(item: Communication) -> Communication:
        return replace(item, op=ops[item.op], tensor=tensors[item.tensor])

    return replace(
        plan,
        graph=graph,
        mesh=mesh,
        shardings={tensors[tensor]: sharding for tensor, sharding in plan.shardings.items()},
        strategies=dict(sorted((ops[op], strategy) for op, strategy in plan.strategies.items())),
        cheap_to_clone=frozenset(tensors[tensor] for tensor in plan.cheap_to_clone),
        fused=frozenset(tensors[tensor] for tensor in plan.fused),
        communication=tuple(sorted(map(moved, plan.communication), key=lambda item: item.op)),
        order=tuple(ops[op] for op in plan.order),
        rematerialized=tuple(map(remat, plan.rematerialized)),
        fresh=frozenset(
            (tensors[tensor], sharding, ops[op]) for tensor, sharding, op in plan.fresh
        ),
    )

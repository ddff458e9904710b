"""The collectives of sharded operations: those of their strategies, and those that reshard what
they read."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod

from shardopt.cost.collectives import PERMUTE, Step
from shardopt.cost.resharding_chain import resharding_path
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.overlap import beside_computing
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps
from shardopt.solve.sharding.strategies.costs import communication_seconds, written_seconds


@dataclass(frozen=True)
class Communication:
    """One collective of the plan: a step before or after operation `op`, on `tensor`; seconds of
    one execution.

    `trips` counts its executions in one execution of the operation's group. `reduces` tells a
    collective that completes the operation's result from one that reshards an operand. `beside`
    ones run while the device computes, as far as it does."""

    op: int
    tensor: int
    step: Step
    seconds: float
    trips: int
    reduces: bool
    beside: bool = False


def find_communication(
    sharded: ShardedOps, cluster: Cluster, fused: Set[int]
) -> tuple[Communication, ...]:
    """All collectives, those of each operation behind what reshards its operands."""
    reshards: dict[int, list[Communication]] = {}
    for each in find_reshards(sharded, cluster, fused):
        reshards.setdefault(each.op, []).append(each)
    communication: list[Communication] = []
    overlap = cluster.group_of(sharded.mesh).overlap
    late = beside_computing(sharded.graph)[1] if overlap else frozenset()
    for index, strategy in sharded.strategies.items():
        op = sharded.graph.ops[index]
        communication += reshards.get(index, ())
        for step in strategy.collectives:
            seconds = communication_seconds(cluster, sharded.mesh, (step,))
            reduces = step.kind != PERMUTE
            beside = reduces and index in late
            communication.append(
                Communication(index, op.results[0], step, seconds, op.trips, reduces, beside)
            )
    return tuple(communication)


def find_reshards(
    sharded: ShardedOps, cluster: Cluster, fused: Set[int]
) -> Iterator[Communication]:
    """The collectives that reshard operands, in program order; operations without a strategy need
    none. Readers of one scope share the steps by which their chains begin, as they do in the
    compiled module, unless one is named in `fresh`; the solver, which sees pairs only, counts them
    for each. What is `fused` otherwise is written and read with the first step."""
    graph, mesh, shardings = sharded.graph, sharded.mesh, sharded.shardings
    fresh, producers, owner = sharded.fresh, graph.producers(), cluster.group_of(mesh)
    is_ready = beside_computing(graph)[0] if owner.overlap else _never
    done: set[tuple[int, tuple[Sharding, ...], tuple[int, int]]] = set()
    for index, strategy in sharded.strategies.items():
        op = graph.ops[index]
        for tensor, target in zip(op.operands, strategy.operands, strict=True):
            if tensor in sharded.cheap_to_clone or shardings[tensor] == target:
                continue
            shape, itemsize = graph.tensors[tensor].shape, graph.tensors[tensor].itemsize
            trips = graph.trips_of(index, tensor, producers[tensor])
            chain: tuple[Sharding, ...] = ()
            ends = (shardings[tensor], target) if tensor in fused else ()
            extra = sum(
                written_seconds(owner.device, graph.tensors[tensor], prod(s.tile_counts(mesh)))
                for s in ends
            )
            for step, after in resharding_path(shardings[tensor], target, mesh, shape, itemsize):
                chain = (*chain, after)
                if (tensor, chain, op.scope) in done and (tensor, target, index) not in fresh:
                    continue
                done.add((tensor, chain, op.scope))
                if step is not None:
                    seconds = communication_seconds(cluster, mesh, (step,)) + extra
                    beside = is_ready(index, tensor)
                    yield Communication(index, tensor, step, seconds, trips, False, beside)
                    extra = 0.0


def _never(reader: int, tensor: int) -> bool:
    return False

"""What an intra-operator solution says: the sharding of every tensor, the collectives, and the
predicted costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from math import prod

import numpy as np

from shardopt.cost.collectives import PERMUTE, Step
from shardopt.cost.resharding_chain import resharding_path
from shardopt.cost.summary import CostSummary
from shardopt.cost.traffic import of_step, total
from shardopt.graph.op_graph import OpGraph
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.lifetimes import FreshCopies, Rematerialized
from shardopt.solve.sharding.strategies.costs import communication_seconds, written_seconds
from shardopt.solve.sharding.strategies.strategies import Strategy


@dataclass(frozen=True)
class Communication:
    """One collective of the plan: a step before or after operation `op`, on `tensor`; seconds of
    one execution.

    `trips` counts its executions in one execution of the operation's group. `reduces` tells a
    collective that completes the operation's result from one that reshards an operand."""

    op: int
    tensor: int
    step: Step
    seconds: float
    trips: int
    reduces: bool


@dataclass(frozen=True)
class IntraOpPlan:
    """Shardings of the tensors and strategies of the operations of a part of `graph`;
    `live_bytes[n]` is what a device holds while the n-th of its operations runs.

    `rematerialized` values are recomputed for their last readers, copies of `fresh` made anew for
    theirs. A tensor of `cheap_to_clone` (a constant, say) is made once more for each reader that
    wants another sharding."""

    graph: OpGraph
    mesh: Mesh
    shardings: Mapping[int, Sharding]
    strategies: Mapping[int, Strategy]
    cheap_to_clone: Set[int]
    communication: tuple[Communication, ...]
    order: tuple[int, ...]
    live_bytes: np.ndarray
    rematerialized: tuple[Rematerialized, ...] = ()
    fresh: FreshCopies = frozenset()

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes.max(initial=0))

    def summary(self, ops: Iterable[int] | None = None, *, repeated: bool = True) -> CostSummary:
        """Costs of `ops`, of all operations by default; of one execution of their group unless
        `repeated`."""
        chosen = set(self.strategies if ops is None else ops)
        moved = [item for item in self.communication if item.op in chosen]
        groups = {
            op: self.graph.ops[op].repeat // (self.graph.ops[op].trips or 1) if repeated else 1
            for op in chosen
        }
        times = {op: groups[op] * self.graph.ops[op].trips for op in chosen}
        held = [
            int(size) for op, size in zip(self.order, self.live_bytes, strict=True) if op in chosen
        ]
        computed = [
            (op, strategy.compute_seconds)
            for op, strategy in self.strategies.items()
            if op in chosen
        ]
        computed += [
            (remat.readers[0], remat.seconds)
            for remat in self.rematerialized
            if remat.readers[0] in chosen
        ]
        return CostSummary(
            compute_seconds=sum(seconds * times[op] for op, seconds in computed),
            communication_seconds=sum(
                item.seconds * groups[item.op] * item.trips for item in moved
            ),
            peak_bytes=max(held, default=0),
            traffic=total(
                of_step(item.step, self.mesh, groups[item.op] * item.trips) for item in moved
            ),
        )


def find_communication(
    graph: OpGraph,
    mesh: Mesh,
    cluster: Cluster,
    strategies: Mapping[int, Strategy],
    shardings: Mapping[int, Sharding],
    cheap_to_clone: Set[int],
    fused: Set[int] = frozenset(),
    fresh: FreshCopies = frozenset(),
) -> tuple[Communication, ...]:
    """All collectives, those of each operation behind what reshards its operands."""
    reshards: dict[int, list[Communication]] = {}
    for each in find_reshards(
        graph, mesh, cluster, strategies, shardings, cheap_to_clone, fused, fresh
    ):
        reshards.setdefault(each.op, []).append(each)
    communication: list[Communication] = []
    for index, strategy in strategies.items():
        op = graph.ops[index]
        communication += reshards.get(index, ())
        for step in strategy.collectives:
            seconds = communication_seconds(cluster, mesh, (step,))
            reduces = step.kind != PERMUTE
            communication.append(
                Communication(index, op.results[0], step, seconds, op.trips, reduces)
            )
    return tuple(communication)


def find_reshards(
    graph: OpGraph,
    mesh: Mesh,
    cluster: Cluster,
    strategies: Mapping[int, Strategy],
    shardings: Mapping[int, Sharding],
    cheap_to_clone: Set[int],
    fused: Set[int] = frozenset(),
    fresh: FreshCopies = frozenset(),
) -> Iterator[Communication]:
    """The collectives that reshard operands, in program order; operations without `strategies`
    need none. Readers of one scope share the steps by which their chains begin, as they do in the
    compiled module, unless one is named in `fresh`; the solver, which sees pairs only, counts them
    for each. What is `fused` otherwise is written and read with the first step."""
    producers, device = graph.producers(), cluster.group_of(mesh).device
    done: set[tuple[int, tuple[Sharding, ...], tuple[int, int]]] = set()
    for index, strategy in strategies.items():
        op = graph.ops[index]
        for tensor, target in zip(op.operands, strategy.operands, strict=True):
            if tensor in cheap_to_clone or shardings[tensor] == target:
                continue
            shape, itemsize = graph.tensors[tensor].shape, graph.tensors[tensor].itemsize
            trips = graph.trips_of(index, tensor, producers[tensor])
            chain: tuple[Sharding, ...] = ()
            ends = (shardings[tensor], target) if tensor in fused else ()
            extra = sum(
                written_seconds(device, graph.tensors[tensor], prod(s.tile_counts(mesh)))
                for s in ends
            )
            for step, after in resharding_path(shardings[tensor], target, mesh, shape, itemsize):
                chain = (*chain, after)
                if (tensor, chain, op.scope) in done and (tensor, target, index) not in fresh:
                    continue
                done.add((tensor, chain, op.scope))
                if step is not None:
                    seconds = communication_seconds(cluster, mesh, (step,)) + extra
                    yield Communication(index, tensor, step, seconds, trips, reduces=False)
                    extra = 0.0

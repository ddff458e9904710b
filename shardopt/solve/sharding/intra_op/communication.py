"""The collectives of sharded operations: those of their strategies, and those that reshard what
they read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardopt.cost.collectives import PERMUTE, Step
from shardopt.cost.resharding_chain import resharding_path
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.overlap import beside_computing, in_pieces_share
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps
from shardopt.solve.sharding.strategies.costs import CommunicationCosts, written_seconds


@dataclass(frozen=True)
class Communication:
    """One collective of the plan: a step before or after operation `op`, on `tensor`; seconds of
    one execution.

    `trips` counts its executions in one execution of the operation's group. `reduces` tells a
    collective that completes the operation's result from one that reshards an operand. `beside` is
    the share of the seconds by which the device gets on with computing, if it has anything to."""

    op: int
    tensor: int
    step: Step
    seconds: float
    trips: int
    reduces: bool
    beside: float = 0.0


def find_communication(sharded: ShardedOps, cluster: Cluster) -> tuple[Communication, ...]:
    """All collectives, those of each operation behind what reshards its operands."""
    reshards: dict[int, list[Communication]] = {}
    for each in find_reshards(sharded, cluster):
        reshards.setdefault(each.op, []).append(each)
    communication: list[Communication] = []
    owner, links = cluster.group_of(sharded.mesh), CommunicationCosts(cluster, sharded.mesh)
    late = beside_computing(sharded.graph)[1] if owner.overlap_share else frozenset()
    for index, strategy in sharded.strategies.items():
        op = sharded.graph.ops[index]
        communication += reshards.get(index, ())
        for step in strategy.collectives:
            reduces = step.kind != PERMUTE
            is_late = reduces and index in late
            seconds = links.combined_seconds(step) if is_late else links.seconds((step,))
            ends_late = owner.overlap_share_of(step.kind) * is_late
            beside = ends_late or in_pieces_share(owner, op, step)
            communication.append(
                Communication(index, op.results[0], step, seconds, op.trips, reduces, beside)
            )
    return tuple(communication)


def find_reshards(sharded: ShardedOps, cluster: Cluster) -> tuple[Communication, ...]:
    """The collectives that reshard operands, in program order; operations without a strategy need
    none. Readers of one scope share the steps by which their chains begin, as they do in the
    compiled module, unless one is named in `fresh`. What is `fused` otherwise is written with the
    first step, and read in each sharding with the last step towards it."""
    reshards = _Reshards(sharded, cluster)
    for index, strategy in sharded.strategies.items():
        operands = sharded.graph.ops[index].operands
        for tensor, target in zip(operands, strategy.operands, strict=True):
            if tensor not in sharded.cheap_to_clone and sharded.shardings[tensor] != target:
                reshards.add(index, tensor, target)
    return tuple(reshards.moves)


# A value, whether it is fused otherwise, and the scope in which steps are shared.
_Value = tuple[int, bool, tuple[int, int]]


class _Reshards:
    """Collectives so far, and who can share them."""

    def __init__(self, sharded: ShardedOps, cluster: Cluster) -> None:
        self.sharded = sharded
        self.owner = cluster.group_of(sharded.mesh)
        self.links = CommunicationCosts(cluster, sharded.mesh)
        self.producers = sharded.graph.producers()
        self.is_ready, self.late = (
            beside_computing(sharded.graph) if self.owner.overlap_share else (_never, frozenset())
        )
        self.moves: list[Communication] = []
        # The last collective of each chain that was made, and the ends that were read.
        self.made: dict[tuple[_Value, tuple[Sharding, ...]], int | None] = {}
        self.read: set[tuple[_Value, Sharding]] = set()

    def add(self, index: int, tensor: int, target: Sharding) -> None:
        """What brings `tensor` to operation `index`."""
        sharded, mesh = self.sharded, self.sharded.mesh
        value, source = sharded.graph.tensors[tensor], sharded.shardings[tensor]
        is_fresh = (tensor, target, index) in sharded.fresh
        scope = sharded.graph.ops[index].scope
        key: _Value = sharded.origin(tensor), tensor in sharded.fused, scope
        chain: tuple[Sharding, ...] = ()
        last: int | None = None
        for step, after in resharding_path(source, target, mesh, value.shape, value.itemsize):
            chain = (*chain, after)
            if (key, chain) in self.made and not is_fresh:
                last = self.made[key, chain]
                continue
            if step is not None:
                written = self._in_memory(tensor, source) if last is None else 0.0
                last = len(self.moves)
                self.moves.append(self._move(index, tensor, step, written))
            self.made[key, chain] = last
        if last is not None and ((key, target) not in self.read or is_fresh):
            self.read.add((key, target))
            seconds = self.moves[last].seconds + self._in_memory(tensor, target)
            self.moves[last] = replace(self.moves[last], seconds=seconds)

    def _move(self, index: int, tensor: int, step: Step, extra: float) -> Communication:
        trips = self.sharded.graph.trips_of(index, tensor, self.producers[tensor])
        is_ready = self.is_ready(index, tensor)
        is_combined = is_ready or index in self.late
        seconds = self.links.combined_seconds(step) if is_combined else self.links.seconds((step,))
        ready = self.owner.overlap_share_of(step.kind) * is_ready
        beside = ready or in_pieces_share(self.owner, self.sharded.graph.ops[index], step)
        return Communication(index, tensor, step, seconds + extra, trips, False, beside)

    def _in_memory(self, tensor: int, sharding: Sharding) -> float:
        """Seconds to write or read a device's share of what would stay inside of a kernel."""
        if tensor not in self.sharded.fused:
            return 0.0
        value, mesh = self.sharded.graph.tensors[tensor], self.sharded.mesh
        return written_seconds(self.owner.device, value, sharding, mesh)


def _never(reader: int, tensor: int) -> bool:
    return False

"""Copies of tensors that operations need beside the values themselves: operands in the shardings
that they want (an all-gathered weight, say), and the whole result before a reduce-scatter.

Copies in one sharding are shared by the readers of one fragment, and kept from the first to the
last of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from shardopt.cost.resharding_chain import resharding_steps, resharding_stops
from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.sharded_ops import (
    FreshCopies,
    ShardedOps,
    Transient,
    local_bytes,
)


@dataclass(frozen=True)
class TensorCopy:
    """`tensor` in the sharding its readers want, at the positions [start, stop); operation `op`
    makes it.

    `bytes` a device holds of it. `sharding` is None for the whole result that a reduce-scatter
    starts from."""

    tensor: int
    sharding: Sharding | None
    op: int
    start: int
    stop: int
    bytes: int


def find_copies(
    sharded: ShardedOps, positions: Iterable[tuple[int, int]]
) -> tuple[TensorCopy, ...]:
    """What operations need beside the values themselves. `positions` are (position, operation), in
    the order in which they run; those left out need nothing."""
    graph, mesh, shardings = sharded.graph, sharded.mesh, sharded.shardings
    copies: dict[tuple[int, Sharding, tuple[int, int], int], TensorCopy] = {}
    number: dict[tuple[int, Sharding, tuple[int, int]], int] = {}
    whole: list[TensorCopy] = []
    for position, index in positions:
        op, strategy = graph.ops[index], sharded.strategies[index]
        for tensor, target in zip(op.operands, strategy.operands, strict=True):
            if tensor in sharded.cheap_to_clone or shardings[tensor] == target:
                continue
            if op.results and graph.handed_on.get(op.results[0]) == tensor:
                ends = (shardings[tensor], target)
                whole += _largest_intermediate(graph, mesh, tensor, ends, index, position)
                continue  # the copy is its result
            if _is_fused(sharded, tensor, target):
                continue  # the kernels of its readers make their slices
            key = (sharded.origin(tensor), target, op.scope)
            number[key] = number.get(key, 0) + ((tensor, target, index) in sharded.fresh)
            known = copies.get((*key, number[key]))
            size = local_bytes(graph, mesh, tensor, target)
            if known is None:
                whole += _largest_intermediate(
                    graph, mesh, tensor, (shardings[tensor], target), index, position
                )
                known = TensorCopy(tensor, target, index, position, position, size)
            copies[*key, number[key]] = replace(known, stop=position + 1)
        for tensor, before, after in zip(
            op.results, strategy.unscattered, strategy.results, strict=True
        ):
            size = local_bytes(graph, mesh, tensor, before)
            # A reduce-scatter has the whole result and its own part at once.
            if size > local_bytes(graph, mesh, tensor, after):
                whole.append(TensorCopy(tensor, None, index, position, position + 1, size))
    return (*copies.values(), *whole)


def _is_fused(sharded: ShardedOps, tensor: int, target: Sharding) -> bool:
    """Whether the kernels of a value's readers take slices of what each device has: nothing is
    exchanged, and no copy lies in memory."""
    value, source = sharded.graph.tensors[tensor], sharded.shardings[tensor]
    return tensor in sharded.fused and not resharding_steps(
        source, target, sharded.mesh, value.shape, value.itemsize
    )


def _largest_intermediate(
    graph: OpGraph,
    mesh: Mesh,
    tensor: int,
    ends: tuple[Sharding, Sharding],
    index: int,
    position: int,
) -> Iterator[TensorCopy]:
    """The largest intermediate of a resharding that takes several steps."""
    stops = resharding_stops(*ends, mesh, graph.tensors[tensor].shape)
    sizes = [local_bytes(graph, mesh, tensor, stop) for stop in stops]
    if sizes:
        yield TensorCopy(tensor, None, index, position, position + 1, max(sizes))


def copies_after_others(
    sharded: ShardedOps, order: Sequence[int], transient: Transient
) -> FreshCopies:
    """The copies to be made anew when those of `transient` are dropped: for a reader before which
    another of the set was read since the copy was."""
    return frozenset().union(*(_again(sharded, order, tensors) for tensors in transient))


def _again(sharded: ShardedOps, order: Sequence[int], tensors: Set[int]) -> FreshCopies:
    if not (tensors := tensors - sharded.cheap_to_clone):
        return frozenset()
    again: set[tuple[int, Sharding, int]] = set()
    uses: dict[tuple[int, Sharding], int] = {}
    count = 0
    for index in order:
        op, strategy = sharded.graph.ops[index], sharded.strategies[index]
        for tensor, target in dict.fromkeys(zip(op.operands, strategy.operands, strict=True)):
            if tensor not in tensors or sharded.shardings[tensor] == target:
                continue
            key = (sharded.origin(tensor), target)
            # A slice that each reader makes on its way would lie in memory behind a barrier.
            if uses.get(key, count) != count and not _is_fused(sharded, tensor, target):
                again.add((tensor, target, index))
            if uses.get(key) != count:
                count += 1
            uses[key] = count
    return frozenset(again)

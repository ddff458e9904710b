"""Copies of tensors that operations need beside the values themselves: operands in the shardings
that they want (an all-gathered weight, say), and the whole result before a reduce-scatter.

Copies in one sharding are shared by the readers of one fragment, and kept from the first to the
last of them. One that is made anew is shared by its reader and those behind it in the program, as
the program is written; which of them runs first is for its compiler."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from shardopt.cost.resharding_chain import can_reshard, resharding_steps, resharding_stops
from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.sharded_ops import (
    FreshCopies,
    ShardedOps,
    Transient,
    local_bytes,
)

# What readers may share: an origin in a sharding, in one scope.
_Shared = tuple[int, Sharding, tuple[int, int]]


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
    copies: dict[tuple[_Shared, int], TensorCopy] = {}
    anew = _made_anew(sharded)
    whole: list[TensorCopy] = []
    for position, index in positions:
        op, strategy = graph.ops[index], sharded.strategies[index]
        for tensor, target in _moved_operands(sharded, index):
            ends = (shardings[tensor], target)
            if hands_on(graph, index, tensor):
                whole += _largest_intermediate(graph, mesh, tensor, ends, index, position)
                continue  # the copy is its result
            shared = sharded.origin(tensor), target, op.scope
            key = shared, bisect_right(anew.get(shared, ()), index)
            known = copies.get(key)
            if known is None:
                whole += _largest_intermediate(graph, mesh, tensor, ends, index, position)
                size = local_bytes(graph, mesh, tensor, target)
                known = TensorCopy(tensor, target, index, position, position, size)
            copies[key] = replace(known, stop=position + 1)
        for tensor, before, after in zip(
            op.results, strategy.unscattered, strategy.results, strict=True
        ):
            size = local_bytes(graph, mesh, tensor, before)
            # A reduce-scatter has the whole result and its own part at once.
            if size > local_bytes(graph, mesh, tensor, after):
                whole.append(TensorCopy(tensor, None, index, position, position + 1, size))
    return (*copies.values(), *whole)


def later_reads(sharded: ShardedOps) -> Iterator[tuple[int, Sharding, int]]:
    """Who shares a copy with an earlier reader, in program order, and could make it anew instead:
    (tensor, sharding of the copy, operation)."""
    read = set[_Shared]()
    for index in sharded.strategies:
        scope = sharded.graph.ops[index].scope
        mine = {
            (sharded.origin(tensor), target, scope): (tensor, target, index)
            for tensor, target in _moved_operands(sharded, index)
            if not hands_on(sharded.graph, index, tensor)
        }
        yield from (each for shared, each in mine.items() if shared in read)
        read |= mine.keys()


def _moved_operands(sharded: ShardedOps, index: int) -> Iterator[tuple[int, Sharding]]:
    """What an operation wants in another sharding, but for slices that its kernel makes on its
    way."""
    operands, wanted = sharded.graph.ops[index].operands, sharded.strategies[index].operands
    for tensor, target in zip(operands, wanted, strict=True):
        if tensor in sharded.cheap_to_clone or sharded.shardings[tensor] == target:
            continue
        if hands_on(sharded.graph, index, tensor) or not _is_sliced(sharded, tensor, target):
            yield tensor, target


def _made_anew(sharded: ShardedOps) -> Mapping[_Shared, Sequence[int]]:
    """The readers that make each copy anew, in program order."""
    anew = defaultdict[_Shared, list[int]](list)
    for tensor, target, index in sharded.fresh:
        anew[sharded.origin(tensor), target, sharded.graph.ops[index].scope].append(index)
    return {shared: sorted(ops) for shared, ops in anew.items()}


def hands_on(graph: OpGraph, index: int, tensor: int) -> bool:
    """Whether an operation is a marker of the tensor: a copy that it reads is its result."""
    results = graph.ops[index].results
    return bool(results) and graph.handed_on.get(results[0]) == tensor


def _is_sliced(sharded: ShardedOps, tensor: int, target: Sharding) -> bool:
    ends = sharded.shardings[tensor], target
    return is_sliced_by_readers(sharded.graph, sharded.mesh, sharded.fused, tensor, ends)


def is_sliced_by_readers(
    graph: OpGraph, mesh: Mesh, fused: Set[int], tensor: int, ends: tuple[Sharding, Sharding]
) -> bool:
    """Whether the kernels of a value's readers take slices of what each device has: nothing is
    exchanged between the two shardings, and no copy lies in memory."""
    value = graph.tensors[tensor]
    return (
        tensor in fused
        and can_reshard(*ends)
        and not resharding_steps(*ends, mesh, value.shape, value.itemsize)
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
            if uses.get(key, count) != count and not _is_sliced(sharded, tensor, target):
                again.add((tensor, target, index))
            if uses.get(key) != count:
                count += 1
            uses[key] = count
    return frozenset(again)

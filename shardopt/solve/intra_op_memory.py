"""When each tensor of a part of a graph occupies memory, in positions of the part's operations.

Inputs stay for the whole part (weights, optimizer state, what another mesh sent); a value lives from its operation to
its last reader, or to the end when it is an output. Values that take over the memory of another one (the result that a
donated argument becomes) occupy none of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

import numpy as np

from shardopt.cost.graph import OpGraph
from shardopt.cost.mesh import Mesh, Sharding


@dataclass(frozen=True)
class Lifetime:
    """`tensor` is held at the positions [start, stop)."""

    tensor: int
    start: int
    stop: int


def last_readers(graph: OpGraph) -> tuple[int, ...]:
    """For each tensor the last operation that reads it: len(ops) for outputs, -1 for values nobody reads."""
    last = [-1] * len(graph.tensors)
    for index, op in enumerate(graph.ops):
        for operand in op.operands:
            last[operand] = index
    for output in graph.outputs:
        last[output] = len(graph.ops)
    return tuple(last)


def lifetimes(
    graph: OpGraph, ops: Sequence[int], inputs: Sequence[int], aliases: Set[int], last: Sequence[int]
) -> tuple[Lifetime, ...]:
    """Inputs first, then results in program order. `ops` ascend, `last` is `last_readers(graph)`."""
    lives = [Lifetime(tensor, 0, len(ops)) for tensor in inputs if tensor not in aliases]
    for position, op in enumerate(ops):
        for tensor in graph.ops[op].results:
            if tensor not in aliases:
                lives.append(Lifetime(tensor, position, max(bisect_right(ops, last[tensor]), position + 1)))
    return tuple(lives)


def live_bytes(
    graph: OpGraph, mesh: Mesh, lives: Sequence[Lifetime], shardings: Mapping[int, Sharding], positions: int
) -> np.ndarray:
    """Bytes a device holds while each operation runs: int64 `[positions]`."""
    change = np.zeros(positions + 1, dtype=np.int64)
    for live in lives:
        size = graph.tensors[live.tensor].size_bytes // prod(shardings[live.tensor].tile_counts(mesh))
        change[live.start] += size
        change[live.stop] -= size
    return np.cumsum(change[:-1])

"""An assignment problem as a few flat arrays, for compiled kernels.

Edges appear twice, as a *half edge* at each end, sorted by neighbour. Equal cost tables are stored
once: repeated layers share most of theirs, and what is read again and again then stays in the
cache."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from shardopt.solve.assignment.problem import Problem

# What starting a row of a table, and a compiled pass, cost, in entries: long rows vectorise.
ROW_OVERHEAD, _PASS_OVERHEAD = 8, 10_000


class Flat(NamedTuple):
    """All arrays are int64 unless said otherwise; `n` nodes, `h` half edges, `g` segments, `t`
    times.

    Node i owns the entries `first[i]..first[i+1]` of arrays over strategies, the half edges
    `half_first[i]..` and the segments `segment_first[i]..`. A half edge has its `neighbour`, its
    other end `reverse`, the first entry of its table, `flipped` (bool: the table's rows are the
    neighbour's strategies), and the first entry of the message that comes in over it, one number
    for each strategy of its own node. `capacity[t]` is what nodes with a choice may use."""

    costs: np.ndarray  # float64, strategies of all nodes
    first: np.ndarray
    half_first: np.ndarray
    neighbour: np.ndarray
    reverse: np.ndarray
    table: np.ndarray
    flipped: np.ndarray
    message: np.ndarray
    tables: np.ndarray  # float64, row-major tables one after the other
    segment_first: np.ndarray
    segment_lo: np.ndarray
    segment_hi: np.ndarray
    segment_bytes: np.ndarray  # first entry in `bytes`
    bytes: np.ndarray
    capacity: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.first) - 1

    @property
    def sweep_work(self) -> int:
        """Entries that one pass over the whole problem touches: the unit in which budgets are
        counted."""
        sizes = np.diff(self.first)
        owner = np.repeat(np.arange(self.num_nodes), np.diff(self.half_first))
        rows = int(sizes[owner].sum())
        pairs = int((sizes[owner] * sizes[self.neighbour]).sum()) // 2
        return (
            pairs
            + ROW_OVERHEAD * rows
            + len(self.bytes)
            + len(self.costs)
            + len(self.capacity)
            + _PASS_OVERHEAD
        )


def flatten(problem: Problem) -> Flat:
    """The arrays of a problem with neither self edges nor parallel edges, as presolve leaves it."""
    sizes = np.array([len(cost) for cost in problem.costs], dtype=np.int64)
    costs = np.concatenate([np.zeros(0), *problem.costs])
    return Flat(costs, _starts(sizes), *_edges(problem, sizes), *_segments(problem, sizes))


def _edges(problem: Problem, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    ends = np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.int64).reshape(-1, 2)
    tables, where = _pack_tables(problem)
    count = len(ends)
    owner = np.concatenate([ends[:, 0], ends[:, 1]])
    neighbour = np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.lexsort((neighbour, owner))
    position = np.empty(2 * count, dtype=np.int64)
    position[order] = np.arange(2 * count)
    other_end = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
    degrees = np.bincount(owner, minlength=problem.num_nodes)
    return (
        _starts(degrees),
        neighbour[order],
        position[other_end][order],
        np.concatenate([where, where])[order],
        (np.arange(2 * count) >= count)[order],
        _starts(sizes[owner[order]])[:-1],
        tables,
    )


def _pack_tables(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Distinct tables one after the other, and the first entry of each edge's table."""
    position: dict[object, int] = {}
    of_object: dict[int, int] = {}
    kept: list[np.ndarray] = [np.zeros(0)]
    where, end = [], 0
    for edge in problem.edges:
        if id(edge.cost) not in of_object:
            table = np.ascontiguousarray(edge.cost)
            key = table.shape, blake2b(table.data, digest_size=16).digest()
            if key not in position:
                position[key] = end
                kept.append(table.ravel())
                end += table.size
            of_object[id(edge.cost)] = position[key]
        where.append(of_object[id(edge.cost)])
    return np.concatenate(kept), np.array(where, dtype=np.int64)


def _segments(problem: Problem, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Segments of nodes with a choice; what the others use is taken off the capacity."""
    empty = np.zeros(0, dtype=np.int64)
    if not problem.has_memory or problem.usages is None or problem.memory_limit is None:
        return (_starts(np.zeros(problem.num_nodes, dtype=np.int64)), *(empty,) * 5)
    change = np.zeros(problem.num_times + 1, dtype=np.int64)
    kept, counts = [], np.zeros(problem.num_nodes, dtype=np.int64)
    for node, usages in enumerate(problem.usages):
        if sizes[node] == 1:
            for usage in usages:
                change[usage.lo] += usage.bytes[0]
                change[usage.hi] -= usage.bytes[0]
            continue
        varying = [usage for usage in usages if usage.lo < usage.hi]
        counts[node] = len(varying)
        kept += varying
    lengths = np.array([len(usage.bytes) for usage in kept], dtype=np.int64)
    return (
        _starts(counts),
        np.array([usage.lo for usage in kept], dtype=np.int64),
        np.array([usage.hi for usage in kept], dtype=np.int64),
        _starts(lengths)[:-1],
        np.concatenate([empty, *(usage.bytes for usage in kept)]),
        problem.memory_limit - np.cumsum(change)[:-1],
    )


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])

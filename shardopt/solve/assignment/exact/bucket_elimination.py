"""Exact dynamic programming on a problem without memory, when its graph is narrow enough.

Eliminating a node joins all tables that mention it and minimises it out, which leaves one table
over its neighbours (Dechter, "Bucket elimination", 1999). The work is exponential in the width of
the graph only; layered models reduce to ladders a few nodes wide, where this beats an integer
program by far."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from shardopt.solve.assignment.problem import Problem

# Entries of the largest joined table, and of all together: at most about a second of numpy and 64
# MiB.
_MAX_TABLE = 1 << 22
_MAX_WORK = 1 << 26

# A table over several nodes: its nodes in ascending order, one array dimension each.
_Factor = tuple[tuple[int, ...], np.ndarray]


def elimination_order(problem: Problem) -> tuple[int, ...] | None:
    """An order of all nodes by smallest joined table first (ties by number); None if it is beyond
    the work caps."""
    sizes = [len(cost) for cost in problem.costs]
    neighbours: list[set[int]] = [set() for _ in sizes]
    for edge in problem.edges:
        if edge.u != edge.v:
            neighbours[edge.u].add(edge.v)
            neighbours[edge.v].add(edge.u)

    def joined_entries(node: int) -> int:
        return prod((sizes[other] for other in neighbours[node]), start=sizes[node])

    entries = [joined_entries(node) for node in range(len(sizes))]
    heap = [(count, node) for node, count in enumerate(entries)]
    heapify(heap)
    order: list[int] = []
    work = 0
    while heap:
        count, node = heappop(heap)
        if count != entries[node]:
            continue  # superseded by a later entry of the same node
        work += count
        if count > _MAX_TABLE or work > _MAX_WORK:
            return None
        order.append(node)
        entries[node] = -1
        for other in neighbours[node]:
            neighbours[other] |= neighbours[node]
            neighbours[other] -= {node, other}
            entries[other] = joined_entries(other)
            heappush(heap, (entries[other], other))
    return tuple(order)


def eliminate_all(problem: Problem, order: tuple[int, ...]) -> tuple[int, ...] | None:
    """An optimal choice of a problem without memory, or None if every assignment is forbidden."""
    buckets: list[list[_Factor]] = [[] for _ in problem.costs]
    position = {node: step for step, node in enumerate(order)}

    def place(factor: _Factor) -> None:
        # With the node that is eliminated first: the step that joins the table.
        buckets[min(factor[0], key=position.__getitem__)].append(factor)

    for node, cost in enumerate(problem.costs):
        place(((node,), cost))
    for edge in problem.edges:
        u, v = edge.u, edge.v
        if u == v:
            place(((u,), np.diagonal(edge.cost)))
        else:
            place(((u, v), edge.cost) if u < v else ((v, u), edge.cost.T))
    for node in order:
        rest, joined = _join(buckets[node], node)
        least = joined.min(axis=0)
        if not least.min() < np.inf:
            return None
        if rest:
            place((rest, least))
    choice = [0] * problem.num_nodes
    for node in reversed(order):
        choice[node] = _best_of(buckets[node], node, choice)
    return tuple(choice)


def _join(factors: list[_Factor], node: int) -> _Factor:
    """The sum of a node's tables: the others that they mention, and an array with a dimension for
    the node, which is first so that its least is found a row at a time, and one for each other."""
    rest = tuple(sorted({each for nodes, _ in factors for each in nodes} - {node}))
    joined: np.ndarray = np.zeros(())
    for nodes, table in factors:
        axes = dict(zip(nodes, table.shape, strict=True))
        shape = [axes.get(each, 1) for each in (node, *rest)]
        joined = joined + np.moveaxis(table, nodes.index(node), 0).reshape(shape)
    return rest, joined


def _best_of(factors: list[_Factor], node: int, choice: list[int]) -> int:
    """The best choice of a node where those of the others that its tables mention are known. To
    keep the best one for every choice of these takes half of the time of all."""
    total: np.ndarray = np.zeros(())
    for nodes, table in factors:
        total = total + table[tuple(slice(None) if n == node else choice[n] for n in nodes)]
    return int(total.argmin())

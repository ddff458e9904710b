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
    decisions: list[_Factor] = []
    for node in order:
        scope, joined = _join(buckets[node])
        axis = scope.index(node)
        rest = scope[:axis] + scope[axis + 1 :]
        decisions.append((rest, joined.argmin(axis=axis)))
        least = joined.min(axis=axis)
        if not least.min() < np.inf:
            return None
        if rest:
            place((rest, least))
    choice = [0] * problem.num_nodes
    for node, (rest, best) in zip(reversed(order), reversed(decisions), strict=True):
        choice[node] = int(best[tuple(choice[other] for other in rest)])
    return tuple(choice)


def _join(factors: list[_Factor]) -> _Factor:
    """The sum of tables, over the union of their nodes."""
    scope = tuple(sorted({node for nodes, _ in factors for node in nodes}))
    joined: np.ndarray = np.zeros(())
    for nodes, table in factors:
        shape = [table.shape[nodes.index(node)] if node in nodes else 1 for node in scope]
        joined = joined + table.reshape(shape)
    return scope, joined

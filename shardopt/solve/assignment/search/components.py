"""Independent parts of an assignment problem, which are solved one by one."""

from __future__ import annotations

from itertools import pairwise

from shardopt.solve.assignment.problem import Edge, Problem


def split_components(problem: Problem) -> list[tuple[tuple[int, ...], Problem]]:
    """Independent parts with their node numbers, by smallest node. All nodes with memory belong
    together."""
    parent = list(range(problem.num_nodes))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    with_memory = [node for node, segments in enumerate(problem.usages or ()) if segments]
    pairs = [(edge.u, edge.v) for edge in problem.edges]
    # One limit holds for all of them together.
    pairs += pairwise(with_memory)
    for u, v in pairs:
        low, high = sorted((find(u), find(v)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for node in range(problem.num_nodes):
        members.setdefault(find(node), []).append(node)
    edges: dict[int, list[Edge]] = {root: [] for root in members}
    for edge in problem.edges:
        edges[find(edge.u)].append(edge)
    return [(tuple(nodes), _part(problem, nodes, edges[root])) for root, nodes in members.items()]


def _part(problem: Problem, nodes: list[int], edges: list[Edge]) -> Problem:
    index = {node: position for position, node in enumerate(nodes)}
    costs = tuple(problem.costs[node] for node in nodes)
    inner = tuple(Edge(index[edge.u], index[edge.v], edge.cost) for edge in edges)
    if problem.usages is None:
        return Problem(costs, inner)
    usages = tuple(problem.usages[node] for node in nodes)
    if not any(usages):
        return Problem(costs, inner)
    return Problem(costs, inner, usages, problem.memory_limit, problem.num_times)

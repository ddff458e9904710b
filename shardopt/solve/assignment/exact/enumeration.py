"""Try every assignment of a tiny problem at once: cheaper than setting up an integer program,
memory included."""

from __future__ import annotations

from math import prod

import numpy as np

from shardopt.solve.assignment.problem import Problem

# So few are evaluated before a solver is set up.
_MAX_ASSIGNMENTS = 1 << 12
_MAX_USAGE_CELLS = 1 << 20  # assignments * times
_MAX_NODES = 32  # numpy has at most 64 dimensions


def is_tiny(problem: Problem) -> bool:
    if problem.num_nodes > _MAX_NODES:
        return False
    assignments = prod(len(cost) for cost in problem.costs)
    times = problem.num_times + 1 if problem.has_memory else 1
    return assignments <= _MAX_ASSIGNMENTS and assignments * times <= _MAX_USAGE_CELLS


def enumerate_all(problem: Problem) -> tuple[int, ...] | None:
    """The first optimal choice in lexicographic order, or None if nothing is allowed. Needs
    `is_tiny(problem)`."""
    shape = tuple(len(cost) for cost in problem.costs)
    if not shape:
        return ()
    choices = np.indices(shape).reshape(len(shape), -1)
    total = np.zeros(choices.shape[1])
    for node, cost in enumerate(problem.costs):
        total = total + cost[choices[node]]
    for edge in problem.edges:
        total = total + edge.cost[choices[edge.u], choices[edge.v]]
    if problem.has_memory:
        total[_peaks(problem, choices) > problem.memory_limit] = np.inf
    best = int(total.argmin())
    return tuple(choices[:, best].tolist()) if total[best] < np.inf else None


def _peaks(problem: Problem, choices: np.ndarray) -> np.ndarray:
    """Peak bytes of each column of `choices`, int64 `[assignments]`."""
    change = np.zeros((problem.num_times + 1, choices.shape[1]), dtype=np.int64)
    for node, segments in enumerate(problem.usages or ()):
        for usage in segments:
            size = usage.bytes[choices[node]]
            change[usage.lo] += size
            change[usage.hi] -= size
    return np.cumsum(change, axis=0).max(axis=0)

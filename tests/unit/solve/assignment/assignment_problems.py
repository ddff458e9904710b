"""Small random assignment problems, and the brute force they are checked against. Not a test
itself."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage, evaluate
from shardopt.solve.assignment.search.sharding_ilp import solve

NUM_PROBLEMS = 300


def random_problem(seed: int, *, max_nodes: int = 6, memory: bool | None = None) -> Problem:
    """A small problem with ties, forbidden entries, self and parallel edges, overlapping and empty
    segments."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, max_nodes + 1))
    sizes = [int(rng.integers(1, 5)) for _ in range(num_nodes)]
    scale = 10.0 ** int(rng.integers(-6, 3))
    tied, forbidden = rng.random() < 0.5, rng.choice([0.0, 0.2, 0.5])

    def table(*shape: int) -> np.ndarray:
        values = (rng.integers(0, 4, shape) if tied else rng.random(shape)) * scale
        return np.where(rng.random(shape) < forbidden, inf, values)

    costs = tuple(
        table(size) if rng.random() < 0.3 else rng.integers(0, 4, size) * scale for size in sizes
    )
    pairs = rng.integers(0, num_nodes, (int(rng.integers(0, 2 * num_nodes + 1)), 2)).tolist()
    edges = tuple(Edge(u, v, table(sizes[u], sizes[v])) for u, v in pairs)
    if memory is False or (memory is None and rng.random() < 0.4):
        return Problem(costs, edges)
    num_times = int(rng.integers(1, 9))

    def segments(size: int) -> tuple[Usage, ...]:
        spans = np.sort(rng.integers(0, num_times + 1, (int(rng.integers(0, 3)), 2))).tolist()
        return tuple(Usage(lo, hi, rng.integers(0, 6, size)) for lo, hi in spans)

    return Problem(costs, edges, tuple(map(segments, sizes)), int(rng.integers(0, 16)), num_times)


def brute_force(problem: Problem) -> float:
    """The least objective of an allowed assignment, inf if there is none."""
    evaluations = (
        evaluate(problem, choice)
        for choice in itertools.product(*(range(len(c)) for c in problem.costs))
    )
    return min(
        (evaluation.objective for evaluation in evaluations if evaluation.feasible), default=inf
    )


def grid(rows: int, columns: int, *, limit_share: float | None, seed: int = 0) -> Problem:
    """A grid with random tables: too wide to reduce away, so that the integer program gets work."""
    rng = np.random.default_rng(seed)
    size, count = 4, rows * columns
    right = [
        (r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)
    ]
    down = [
        (r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)
    ]
    edges = tuple(Edge(u, v, rng.random((size, size)) * 1e-3) for u, v in right + down)
    costs = tuple(rng.random(size) * 1e-3 for _ in range(count))
    if limit_share is None:
        return Problem(costs, edges)
    usages = tuple(
        (Usage(v, min(count, v + 8), rng.integers(1, 100, size) << 20),) for v in range(count)
    )
    free = solve(Problem(costs, edges))
    peak = evaluate(Problem(costs, edges, usages, None, count), free.choice).peak_usage
    return Problem(costs, edges, usages, int(peak * limit_share), count)

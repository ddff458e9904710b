"""An assignment to begin with: given shardings, and values recomputed where the limit is
exceeded.

With shardings fixed, each value to recompute lowers memory in its gap for a known number of
seconds. As long as the limit is exceeded, the value is taken that saves most bytes a second of
recomputing at the worst time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shardopt.solve.assignment.problem import Problem
from shardopt.solve.sharding.budget.model import BudgetModel, Operand


def greedy_start(
    model: BudgetModel, problem: Problem, copies: Iterable[Operand], shardings: Sequence[int]
) -> tuple[int, ...]:
    """A choice for every node of `problem = model.problem(limit, copies)`, from one for the plain
    nodes.

    It may exceed the limit.
    """
    choice = [
        *shardings[: model.first_choice],
        *model.kept(shardings),
        *model.copied(shardings, copies),
    ]
    held = held_bytes(problem, choice)
    limit = problem.memory_limit or 0
    nodes = range(model.first_choice, model.first_choice + len(model.choices))
    left = {node for node in nodes if can_recompute(model, problem, choice, node)}
    while left and held.max(initial=0) > limit:
        worst = int(held.argmax())
        options = []
        for node in left:
            [usage] = problem.usages[node] if problem.usages else ()
            size = int(usage.bytes[choice[node]])
            if usage.lo <= worst < usage.hi and size:
                seconds = float(problem.costs[node][choice[node] + 1])
                # Some chains take no time at all; among equals the number of the node decides.
                options.append((-size / (seconds + 1e-12), node, usage.lo, usage.hi, size))
        if not options:
            break
        _, node, begin, end, size = min(options)
        choice[node] += 1
        held[begin:end] -= size
        left.remove(node)
    return tuple(choice)


def can_recompute(model: BudgetModel, problem: Problem, choice: Sequence[int], node: int) -> bool:
    """Whether the sources lie as the chain wants them."""
    remat = choice[node] + 1
    return bool(np.isfinite(problem.costs[node][remat])) and all(
        np.isfinite(edge.cost[choice[edge.u], remat]) for edge in model.edges_of(problem, node)
    )


def held_bytes(problem: Problem, choice: Sequence[int]) -> np.ndarray:
    """Bytes held at each time: int64 `[times]`."""
    change = np.zeros(problem.num_times + 1, dtype=np.int64)
    for segments, strategy in zip(problem.usages or (), choice, strict=True):
        for usage in segments:
            change[usage.lo] += usage.bytes[strategy]
            change[usage.hi] -= usage.bytes[strategy]
    return np.cumsum(change)[:-1]

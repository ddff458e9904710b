"""Why a node of a sharding problem chose as it did: its strategies, and what each of them would
change in the plan.

Two figures stand beside every alternative. *Alone*: all other choices stay, so resharding pays for
the difference. *Replanned*: the solver chooses everything else anew around it; the difference is
what the choice is really worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem

# Each alternative that is replanned takes as long as the plan itself did.
_MAX_REPLANNED = 6
# A product over two axes has fifty strategies, over three hundreds; the far end of the list is of
# no interest.
_MAX_LINES = 20


@dataclass(frozen=True)
class Alternative:
    """One strategy of the node, in seconds of all executions.

    `alone` is inf where a neighbour's choice rules the strategy out; `replanned` is None where it
    was not computed and inf where no plan within memory has it. `collectives` is the change in
    (kind, number) of the replanned plan."""

    number: int
    text: str
    chosen: bool
    compute_seconds: float
    communication_seconds: float
    alone: float
    replanned: float | None
    collectives: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Explanation:
    """A node by its description, the plan's seconds, and all strategies: the chosen one first, then
    by `alone`."""

    subject: str
    objective: float
    alternatives: tuple[Alternative, ...]

    def lines(self) -> tuple[str, ...]:
        """A table as text, seconds relative to the plan: what a strategy costs itself, and what it
        would change."""
        head = ("", "compute", "collectives", "alone", "replanned", "strategy")
        rows = [head, *map(_row, self.alternatives[:_MAX_LINES])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
        lines = [
            "  ".join(
                [*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
            ).rstrip()
            for row in rows
        ]
        if rest := self.alternatives[_MAX_LINES:]:
            lines.append(f"{len(rest)} more, from {_change(rest[0].alone)} alone")
        return tuple(lines)


def explain(
    problem: IntraOpProblem,
    solution: Solution,
    node: int,
    *,
    max_replanned: int = _MAX_REPLANNED,
    gap: float = 0.0,
) -> Explanation:
    """Explain node `node` of a solved problem. The cheapest `max_replanned` alternatives alone are
    replanned."""
    chosen = solution.choice[node]
    alone = switching_seconds(problem.sharing, solution.choice, node)
    order = sorted(range(len(alone)), key=lambda s: (s != chosen, alone[s], s))
    base = Counter(dict(problem.decode(solution).summary().collectives))
    alternatives = []
    for place, strategy in enumerate(order):
        replanned: float | None = 0.0 if strategy == chosen else None
        change: tuple[tuple[str, int], ...] = ()
        if strategy != chosen and place <= max_replanned:
            replanned, change = _replan(problem, solution, node, strategy, base, gap)
        compute, communication = _seconds(problem, node, strategy)
        alternatives.append(
            Alternative(
                number=strategy,
                text=_text(problem, node, strategy),
                chosen=strategy == chosen,
                compute_seconds=compute,
                communication_seconds=communication,
                alone=float(alone[strategy]),
                replanned=replanned,
                collectives=change,
            )
        )
    return Explanation(describe(problem, node), solution.objective, tuple(alternatives))


def describe(problem: IntraOpProblem, node: int) -> str:
    """What a node stands for: an operation with its place, or an input with its shape."""
    graph = problem.tables.graph
    if node < len(problem.ops):
        op = graph.ops[problem.ops[node]]
        shapes = ", ".join(
            _type(graph.tensors[t].shape, graph.tensors[t].dtype) for t in op.results
        )
        return f"'{op.name}' -> {shapes}" + (f", {op.repeat} times a step" if op.repeat > 1 else "")
    tensor = graph.tensors[problem.inputs[node - len(problem.ops)]]
    return f"input {_type(tensor.shape, tensor.dtype)}"


def switching_seconds(sharing: Sharing, choice: Sequence[int], node: int) -> np.ndarray:
    """Change of the objective for each strategy of `node` when all others keep theirs: float64
    `[k]`, memory aside."""
    problem = sharing.problem
    total = problem.costs[node].copy()
    for edge in problem.edges:
        if edge.u == edge.v == node:
            total += np.diagonal(edge.cost)
        elif edge.u == node:
            total += edge.cost[:, choice[edge.v]]
        elif edge.v == node:
            total += edge.cost[choice[edge.u], :]
    near, switched = sharing.around(node), list(choice)
    for strategy in range(len(total)):
        switched[node] = strategy
        total[strategy] -= near.saved(near.used(switched))
    return np.asarray(total - total[choice[node]])


def _replan(
    problem: IntraOpProblem,
    solution: Solution,
    node: int,
    strategy: int,
    base: Counter[str],
    gap: float,
) -> tuple[float, tuple[tuple[str, int], ...]]:
    """(change of the objective, change in collectives) of the best plan with this strategy."""
    cost = np.full_like(problem.problem.costs[node], inf)
    cost[strategy] = problem.problem.costs[node][strategy]
    if cost[strategy] == inf:
        return inf, ()
    costs = (*problem.problem.costs[:node], cost, *problem.problem.costs[node + 1 :])
    forced = replace(problem, problem=replace(problem.problem, costs=costs))
    replanned = forced.solve(SearchLimits(gap_tolerance=gap))
    if not replanned.choice:
        return inf, ()
    counts = Counter(dict(forced.decode(replanned).summary().collectives))
    counts.subtract(base)
    return replanned.objective - solution.objective, tuple(
        sorted((k, n) for k, n in counts.items() if n)
    )


def _seconds(problem: IntraOpProblem, node: int, strategy: int) -> tuple[float, float]:
    """(compute, communication) of all executions."""
    if node >= len(problem.ops):
        return float(problem.problem.costs[node][strategy]), 0.0
    op = problem.ops[node]
    chosen = problem.tables.ops[op].strategies[strategy]
    repeat = problem.tables.graph.ops[op].repeat
    return chosen.compute_seconds * repeat, chosen.communication_seconds * repeat


def _text(problem: IntraOpProblem, node: int, strategy: int) -> str:
    if node < len(problem.ops):
        return str(problem.tables.ops[problem.ops[node]].strategies[strategy])
    return str(problem.columns[problem.inputs[node - len(problem.ops)]].shardings[strategy])


def _type(shape: Sequence[int], dtype: str) -> str:
    return "x".join([*map(str, shape), dtype])


def _row(alternative: Alternative) -> tuple[str, ...]:
    changes = ", ".join(f"{count:+d} {kind}" for kind, count in alternative.collectives)
    return (
        "*" if alternative.chosen else "",
        f"{alternative.compute_seconds:.3g} s",
        f"{alternative.communication_seconds:.3g} s",
        "" if alternative.chosen else _change(alternative.alone),
        ""
        if alternative.chosen or alternative.replanned is None
        else _change(alternative.replanned),
        alternative.text + (f"  ({changes})" if changes else ""),
    )


def _change(seconds: float) -> str:
    return "impossible" if seconds == inf else f"{seconds:+.3g} s"

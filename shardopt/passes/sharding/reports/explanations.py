"""Answers to `explain=…`: the strategies of an operation or value, and what each would change in
the plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.passes.base import PassContext
from shardopt.passes.sharding.reports.selection import Selected, select
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.plans.explain import describe, explain
from shardopt.support.errors import UserError

# Each takes a few solves; a pattern that matches more should be narrowed.
_MAX_EXPLAINED = 4
_MAX_NAMED = 20


def select_explained(graphs: Sequence[MeshGraph], text: str) -> tuple[tuple[Selected, ...], ...]:
    """What `text` names, for each mesh. Raises UserError when it names nothing on any."""
    selected = tuple(select(graph, text) if text else () for graph in graphs)
    if text and not any(selected):
        names = ", ".join(
            sorted({op.name for graph in graphs for op in graph.graph.ops})[:_MAX_NAMED]
        )
        raise UserError(
            f"nothing to explain: expected argN, resultN, an operation ({names}, …) with an "
            f"optional :N, or a pattern that some location matches, found '{text}'"
        )
    return selected


def report_explanations(
    pm: PassContext,
    graph: MeshGraph,
    problem: IntraOpProblem,
    solution: Solution,
    selections: Sequence[Selected],
) -> None:
    """One remark of kind `explain` for each, at its operation."""
    gap = max(solution.gap, 1e-9)  # replanned figures are as good as the plan itself
    for selected in selections[:_MAX_EXPLAINED]:
        node = problem.node_of.get(selected.tensor)
        if node is None:
            pm.remark(
                "explain",
                None,
                f"{selected.name} has no choice of its own: it is made anywhere it is read",
            )
            continue
        explanation = explain(problem, solution, node, gap=gap)
        where = graph.reader.handles[selected.op] if selected.op >= 0 else None
        head = (
            f"{selected.name} ({explanation.subject}) on mesh '{graph.mesh.name}', plan "
            f"{explanation.objective:.4g} s"
        )
        pm.remark("explain", where, "\n".join((head, *explanation.lines())), category="analysis")
    if rest := selections[_MAX_EXPLAINED:]:
        named = ", ".join(
            f"{s.name} {describe(problem, node)}"
            for s in rest[:_MAX_NAMED]
            if (node := problem.node_of.get(s.tensor)) is not None
        )
        pm.remark(
            "explain",
            None,
            f"{len(rest)} more match: {named}{', …' if len(rest) > _MAX_NAMED else ''}",
        )

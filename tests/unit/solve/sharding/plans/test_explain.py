"""Explanations: what they say of each strategy against plans computed from scratch."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from shardopt.solve.assignment.problem import Problem, evaluate
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, build_problem
from shardopt.solve.sharding.plans.explain import Explanation, explain, switching_seconds
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, MESH, mlp

ALL = 10**6


def explained(problem: IntraOpProblem, node: int, max_replanned: int = ALL) -> Explanation:
    return explain(problem, problem.solve(), node, max_replanned=max_replanned)


@pytest.mark.parametrize("node", [0, 3, 5])
def test_alone_is_the_change_of_the_objective_when_one_choice_changes(node: int) -> None:
    problem = build_problem(mlp(32, 8, 2), MESH, CLUSTER)
    solution = problem.solve()
    for alternative in explain(problem, solution, node, max_replanned=0).alternatives:
        choice = list(solution.choice)
        choice[node] = alternative.number
        changed = problem.seconds(choice) - solution.objective
        assert alternative.alone == pytest.approx(changed, abs=1e-12)


@pytest.mark.parametrize("node", [0, 2, 4])
def test_replanned_is_the_best_plan_with_that_strategy(node: int) -> None:
    problem = build_problem(mlp(16, 8, 2), LINE, CLUSTER)
    for alternative in explained(problem, node).alternatives:
        costs = list(problem.problem.costs)
        costs[node] = np.where(np.arange(len(costs[node])) == alternative.number, costs[node], inf)
        best = replace(problem, problem=Problem(tuple(costs), problem.problem.edges)).solve()
        assert alternative.replanned == pytest.approx(
            best.objective - problem.solve().objective, abs=1e-12
        )
        assert 0 <= alternative.replanned <= alternative.alone + 1e-12


def test_the_chosen_strategy_comes_first_and_the_rest_by_what_it_would_cost_alone() -> None:
    problem = build_problem(mlp(32, 8, 2), MESH, CLUSTER)
    first, *rest = explained(problem, 0, max_replanned=2).alternatives
    assert first.chosen and first.alone == 0 and first.replanned == 0
    assert [a.alone for a in rest] == sorted(a.alone for a in rest)
    assert [a.replanned is not None for a in rest] == [True, True] + [False] * (len(rest) - 2)


def test_a_forbidden_strategy_is_impossible_and_said_so() -> None:
    graph = mlp(32, 8, 1)
    tied = build_problem(graph, LINE, CLUSTER, tied=((0, 3),))
    alternatives = explained(tied, 1).alternatives
    assert any(a.alone == inf for a in alternatives)
    impossible = next(a for a in alternatives if a.alone == inf)
    assert impossible.replanned is not None and impossible.replanned < inf  # the input can follow


def test_changes_in_collectives_are_those_of_the_two_plans() -> None:
    problem = build_problem(mlp(64, 8, 2), LINE, CLUSTER)
    solution = problem.solve()
    base = dict(problem.decode(solution).summary().collectives)
    for alternative in explained(problem, 0).alternatives[1:]:
        costs = list(problem.problem.costs)
        costs[0] = np.where(np.arange(len(costs[0])) == alternative.number, costs[0], inf)
        forced = replace(problem, problem=Problem(tuple(costs), problem.problem.edges))
        replanned = dict(forced.decode(forced.solve()).summary().collectives)
        assert dict(alternative.collectives) == {
            kind: replanned.get(kind, 0) - base.get(kind, 0)
            for kind in base | replanned
            if replanned.get(kind, 0) != base.get(kind, 0)
        }


def test_lines_are_a_table_with_the_choice_marked() -> None:
    explanation = explained(build_problem(mlp(32, 8, 1), LINE, CLUSTER), 0, max_replanned=1)
    head, chosen, *rest = explanation.lines()
    assert head.split() == ["compute", "collectives", "alone", "replanned", "strategy"]
    assert chosen.startswith("*") and not any(line.startswith("*") for line in rest)
    assert explanation.subject == "'dot_general' -> 32x8xf32"


def test_switching_counts_parallel_edges_in_both_directions() -> None:
    rng = np.random.default_rng(0)
    from shardopt.solve.assignment.problem import Edge

    costs = tuple(rng.random(k) for k in (2, 3, 2))
    edges = tuple(
        Edge(u, v, rng.random((len(costs[u]), len(costs[v]))))
        for u, v in ((0, 1), (1, 0), (1, 2), (1, 1))
    )
    problem, choice = Problem(costs, edges), [1, 2, 0]
    base = evaluate(problem, choice).objective
    expected = [evaluate(problem, [1, s, 0]).objective - base for s in range(3)]
    assert switching_seconds(Sharing(problem, ()), choice, 1) == pytest.approx(expected)

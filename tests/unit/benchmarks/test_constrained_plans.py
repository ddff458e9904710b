"""No plan with constraints is cheaper than the one that is called optimal without."""

from __future__ import annotations

import random

import pytest

from benchmarks.solve.constrained_plans import MESHES, compare, random_program
from shardopt.solve.sharding.intra_op.problem import build_problem
from tests.unit.solve.sharding.op_graphs import CLUSTER


def test_no_constrained_plan_is_cheaper_than_the_optimum() -> None:
    counts = compare(programs=16, sets=4, num_ops=6)
    assert counts.constrained > 40 and counts.contradicted == 0
    assert counts.proven >= 10 and counts.shared >= 1 and counts.widest_gap < 0.2


@pytest.mark.parametrize("seed", range(8))
def test_the_objective_is_the_cost_of_the_plan(seed: int) -> None:
    graph = random_program(random.Random(seed), 7)
    problem = build_problem(graph, MESHES[seed % 2], CLUSTER)
    solution = problem.solve()
    plan = problem.decode(solution)
    assert problem.plan_seconds(plan) == pytest.approx(solution.objective, rel=1e-12)
    assert problem.seconds(solution.choice) == pytest.approx(solution.objective, rel=1e-12)

"""Plans between the least peak and the fastest, against those of the whole search."""

from __future__ import annotations

import pytest

from shardopt.solve.assignment.limits import NO_LIMITS
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.least_peak import LeastPeak, find_least_peak
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.operand_copies import split_copies
from shardopt.solve.sharding.budget.price_of_memory import faster_plans
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, build_problem
from tests.unit.solve.sharding.budget.test_memory_budget import PAIR, random_graph
from tests.unit.solve.sharding.op_graphs import CLUSTER


def best_between(problem: IntraOpProblem, least: LeastPeak, limit: int) -> float:
    """Seconds of the fastest plan offered that fits."""
    model = BudgetModel(problem, find_candidates(problem))
    found = [problem.plan_seconds(least.plan)] if least.plan is not None else []

    def offer(choice: tuple[int, ...]) -> IntraOpPlan:
        plan = split_copies(model, Solution(choice, 0.0, 0.0, 0.0, "feasible"), limit)
        if plan.peak_bytes <= limit:
            found.append(problem.plan_seconds(plan))
        return plan

    fastest = problem.plan_seconds(problem.decode(problem.solve()))
    faster_plans(model, least, fastest, limit, NO_LIMITS, offer)
    return min(found)


@pytest.mark.parametrize("ops", [6, 10])
def test_plans_between_are_faster_than_the_least_and_none_beats_the_search(ops: int) -> None:
    faster = 0
    for seed in range(12):
        problem = build_problem(random_graph(seed, ops), PAIR, CLUSTER)
        free = problem.decode(problem.solve())
        model = BudgetModel(problem, find_candidates(problem))
        least = find_least_peak(model, problem.solve().choice)
        assert least.plan is not None
        limit = (least.peak_bytes + free.peak_bytes) // 2
        exact = fit(problem, limit)
        assert exact.plan is not None
        seconds, slowest = best_between(problem, least, limit), problem.plan_seconds(least.plan)
        assert problem.plan_seconds(exact.plan) * (1 - 1e-9) <= seconds <= slowest
        faster += seconds < slowest * (1 - 1e-9)
    assert faster

"""The front of time and memory against the Pareto front of all plans of tiny programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import inf

import pytest

from shardopt.cost.frontier import Frontier
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.mesh.mesh import Mesh
from shardopt.solve.assignment.problem import Solution, evaluate
from shardopt.solve.sharding.budget import frontier as frontier_module
from shardopt.solve.sharding.budget.frontier import find_frontier
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.operand_copies import split_copies
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import Fit, fit
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, build_problem
from tests.draws import draws, seeds
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, elementwise, f32, matmul, mlp

PAIR = Mesh("m", (("x", 2),), (0, 1))
MANY = 200  # searches: more than any of the fronts has points


def random_graph(seed: int, ops: int) -> OpGraph:
    """Products and elementwise operations over 8 x 8 tensors; inputs are tensors 0 and 1."""
    rng = random.Random(seed)
    made: list[Op] = []
    for index in range(ops):
        operands = tuple(rng.randrange(index + 2) for _ in range(2))
        if rng.random() < 0.5:
            made.append(matmul(8, 8, 8, operands, index + 2))
        else:
            made.append(elementwise(rng.choice(["add", "power"]), (8, 8), operands, index + 2))
    return OpGraph((f32(8, 8),) * (ops + 2), tuple(made), (0, 1), (ops + 1,))


def all_plans(problem: IntraOpProblem) -> Iterator[tuple[int, float]]:
    """(peak bytes, seconds) of every plan, with each way to share copies that the searches know."""
    model = BudgetModel(problem, find_candidates(problem))
    full = model.problem(1 << 40, ())
    for choice in product(*(range(len(cost)) for cost in full.costs)):
        objective = evaluate(full, choice).objective
        if objective == inf:
            continue
        limit = 1 << 40
        while True:
            solution = Solution(choice, objective, objective, 0.0, "optimal")
            plan = split_copies(model, solution, limit)
            if plan.peak_bytes > limit:
                break
            yield plan.peak_bytes, problem.plan_seconds(plan)
            limit = plan.peak_bytes - 1


@cache
def pareto_front(seed: int, ops: int) -> tuple[tuple[int, float], ...]:
    front: list[tuple[int, float]] = []
    for peak, seconds in sorted(
        set(all_plans(build_problem(random_graph(seed, ops), PAIR, CLUSTER)))
    ):
        if not front or seconds < front[-1][1] * (1 - 1e-7):
            front.append((peak, seconds))
    return tuple(front)


def reached(front: Frontier) -> list[tuple[int, float]]:
    return [(point.peak_bytes, point.seconds) for point in front.points]


@cache
def front_of(seed: int) -> Frontier:
    return find_frontier(build_problem(random_graph(seed, 3), PAIR, CLUSTER), MANY)


@pytest.mark.parametrize("seed", seeds(16, 4))
def test_the_front_is_the_pareto_front_of_all_plans(seed: int) -> None:
    expected, front = pareto_front(seed, 3), front_of(seed)
    for point in front.points:
        fastest = min(seconds for peak, seconds in expected if peak <= point.peak_bytes)
        assert point.bound_seconds <= fastest * (1 + 1e-9) and fastest <= point.seconds * (1 + 1e-9)
    if not front.complete:
        return
    assert [peak for peak, _ in reached(front)] == [peak for peak, _ in expected]
    assert [s for _, s in reached(front)] == pytest.approx([s for _, s in expected])
    assert all(point.status == "optimal" for point in front.points)
    assert front.least_bound_bytes == expected[0][0]


def test_most_fronts_are_proven_complete() -> None:
    """Between plans and the prices of shared steps a gap may stay, which each point tells."""
    fronts = [front_of(seed) for seed in range(16)]
    assert sum(front.complete for front in fronts) >= 12
    gaps = [1 - point.bound_seconds / point.seconds for front in fronts for point in front.points]
    assert max(gaps) < 0.05


@pytest.mark.parametrize(
    ("seeds", "least"), [(4, 2), pytest.param(16, 6, marks=pytest.mark.slow)], ids=str
)
def test_random_programs_have_steps(seeds: int, least: int) -> None:
    """Fronts of one point would prove little; of the seeds that are compared with all plans."""
    assert sum(len(pareto_front(seed, 3)) > 1 for seed in range(seeds)) >= least


@pytest.mark.parametrize("searches", [1, 2, 4])
def test_a_front_of_few_searches_says_only_what_holds(searches: int) -> None:
    for seed in range(draws(8)):
        expected = pareto_front(seed, 3)
        front = find_frontier(build_problem(random_graph(seed, 3), PAIR, CLUSTER), searches)
        assert front.searches <= searches
        assert front.least_bound_bytes <= expected[0][0]
        for point in front.points:
            assert any(peak <= point.peak_bytes and seconds <= point.seconds * (1 + 1e-9)
                       for peak, seconds in expected)  # fmt: skip
            most = inf if point.fastest_to_bytes is None else point.fastest_to_bytes
            fastest = min(seconds for peak, seconds in expected if peak <= point.peak_bytes)
            assert point.bound_seconds <= fastest * (1 + 1e-9)
            if most >= point.peak_bytes:
                within = min(seconds for peak, seconds in expected if peak <= most)
                assert point.seconds == pytest.approx(within)
        if front.complete:
            assert [peak for peak, _ in reached(front)] == [peak for peak, _ in expected]


def test_each_plan_of_the_front_is_faster_and_larger_than_the_one_before() -> None:
    front = find_frontier(build_problem(mlp(512, 16, 2), LINE, CLUSTER), 8)
    peaks, seconds = zip(*reached(front), strict=True)
    assert list(peaks) == sorted(set(peaks)) and list(seconds) == sorted(seconds, reverse=True)
    assert len(peaks) > 1
    assert seconds[-1] == pytest.approx(
        build_problem(mlp(512, 16, 2), LINE, CLUSTER).solve().objective
    )


def test_a_bound_of_a_larger_budget_is_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[tuple[float, float]] = []

    def recording(problem: IntraOpProblem, limit: int | None, **options: object) -> Fit:
        within = fit(problem, limit, **options)  # type: ignore[arg-type]
        handed = options["relaxed"].bound  # type: ignore[attr-defined]
        assert all(
            handed >= bound for budget, bound in budgets if limit is not None and budget >= limit
        )
        if within.plan is not None:
            budgets.append((inf if limit is None else limit, within.solution.bound))
        return within

    monkeypatch.setattr(frontier_module, "fit", recording)
    front = find_frontier(build_problem(random_graph(9, 3), PAIR, CLUSTER), MANY)
    assert len(budgets) > 1 and front.searches < len(front.points) + 8


def test_no_search_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one search"):
        find_frontier(build_problem(random_graph(0, 2), PAIR, CLUSTER), 0)

"""The path for large problems, forced on small ones: bounds hold, assignments are allowed, budgets
and starts count."""

from __future__ import annotations

import os
import subprocess
import sys
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.solve.assignment.exact.cp_sat import solve_cp_sat
from shardopt.solve.assignment.exact.enumeration import enumerate_all, is_tiny
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.presolve.presolve import presolve
from shardopt.solve.assignment.problem import Edge, Problem, Usage, evaluate
from shardopt.solve.assignment.search import component_solver
from shardopt.solve.assignment.search.sharding_ilp import improve, solve
from tests.draws import draws
from tests.unit.solve.assignment.assignment_problems import brute_force, grid, random_problem

pytest.importorskip(
    "numba", reason="the path for large problems is compiled by numba, which is not installed"
)

from shardopt.solve.assignment.large.flat_problem import flatten
from shardopt.solve.assignment.large.large_problem import solve_large
from shardopt.solve.assignment.large.message_kernels import cost_of, usage_of

_WORK = 3_000_000


def dense_problem(seed: int, *, memory: bool) -> Problem:
    """Six nodes, all pairs of them joined: nothing for presolve to take away, and enumeration has
    the answer.

    Costs tie in half of the problems, a fifth of the pairs is forbidden in half of them, some
    intervals are empty."""
    rng = np.random.default_rng(seed)
    num_nodes, size, num_times = 6, 3, 8
    tied, forbidden = rng.random() < 0.5, rng.choice([0.0, 0.2])

    def values(*shape: int) -> np.ndarray:
        return rng.integers(0, 5, shape).astype(float) if tied else rng.random(shape)

    def table() -> np.ndarray:
        costs_of_pair = np.where(rng.random((size, size)) < forbidden, inf, values(size, size))
        # Every strategy keeps a partner, as presolve would see to.
        costs_of_pair[np.arange(size), rng.permutation(size)] = 1.0
        return costs_of_pair

    costs = tuple(values(size) for _ in range(num_nodes))
    edges = tuple(Edge(u, v, table()) for u in range(num_nodes) for v in range(u + 1, num_nodes))
    if not memory:
        return Problem(costs, edges)

    def segments() -> tuple[Usage, ...]:
        spans = np.sort(rng.integers(0, num_times + 1, (2, 2))).tolist()
        return tuple(Usage(lo, hi, rng.integers(0, 10, size)) for lo, hi in spans)

    return Problem(
        costs, edges, tuple(segments() for _ in costs), int(rng.integers(14, 40)), num_times
    )


def least(problem: Problem) -> float:
    assert is_tiny(problem)
    choice = enumerate_all(problem)
    return inf if choice is None else evaluate(problem, choice).objective


@pytest.mark.parametrize("memory", [False, True])
def test_bound_and_assignment_enclose_the_optimum(memory: bool) -> None:
    """Hundreds of problems straight into the messages and forests, without presolve."""
    for seed in range(draws(150)):
        problem = dense_problem(seed, memory=memory)
        expected = least(problem)
        solution = solve_large(problem, work=_WORK)
        assert solution.bound <= expected + 1e-9
        if not solution.choice:
            assert solution.status == "timeout"
            continue
        evaluation = evaluate(problem, solution.choice)
        assert evaluation.feasible
        assert evaluation.objective == solution.objective >= expected - 1e-9
        if solution.status == "optimal":
            assert solution.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("memory", [False, True])
def test_small_problems_are_hardly_ever_missed(memory: bool) -> None:
    count = draws(40)
    problems = [dense_problem(seed, memory=memory) for seed in range(600, 600 + count)]
    expected = [least(problem) for problem in problems]
    objectives = [solve_large(problem, work=10 * _WORK).objective for problem in problems]
    assert sum(a <= b + 1e-9 for a, b in zip(objectives, expected, strict=True)) >= count - 1


@given(seed=st.integers(0, 2**31), memory=st.booleans())
@settings(max_examples=draws(60), deadline=None)
def test_any_seed_is_enclosed(seed: int, memory: bool) -> None:
    problem = dense_problem(seed, memory=memory)
    expected = least(problem)
    solution = solve_large(problem, work=_WORK // 10)
    assert solution.bound <= expected + 1e-9
    assert solution.objective >= expected - 1e-9


def test_random_problems_after_presolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_solver, "is_tiny", lambda problem: False)
    monkeypatch.setattr(component_solver, "elimination_order", lambda problem: None)
    monkeypatch.setattr(component_solver, "_SMALL_PAIRS", -1)
    monkeypatch.setattr(component_solver, "_MIDDLE_PAIRS", -1)
    for seed in range(8000, 8000 + draws(300)):
        problem = random_problem(seed)
        expected = brute_force(problem)
        solution = solve(problem, SearchLimits(work=_WORK))
        if solution.choice:
            assert evaluate(problem, solution.choice).feasible
            assert solution.bound <= expected * (1 + 1e-9) + 1e-15
            assert solution.objective >= expected * (1 - 1e-9) - 1e-15


@pytest.mark.parametrize("memory", [False, True])
def test_flat_arrays_agree_with_the_problem(memory: bool) -> None:
    rng = np.random.default_rng(3)
    for seed in range(50):
        problem = dense_problem(seed, memory=memory)
        flat = flatten(problem)
        choice = rng.integers(0, 3, problem.num_nodes)
        expected = evaluate(problem, choice.tolist())
        assert cost_of(flat, flat.costs, choice) == pytest.approx(expected.objective, rel=1e-12)
        excess = (usage_of(flat, choice) - flat.capacity).max(initial=-1)
        assert (excess <= 0) == (
            problem.memory_limit is None or expected.peak_usage <= problem.memory_limit
        )


@pytest.mark.parametrize("limit_share", [None, 0.85])
def test_grid_is_enclosed(limit_share: float | None) -> None:
    problem = grid(5, 5, limit_share=limit_share)
    optimum = solve(problem).objective
    solution = improve(problem, (0,) * problem.num_nodes, SearchLimits(work=10 * _WORK))
    assert solution.bound <= optimum * (1 + 1e-9)
    assert optimum * (1 - 1e-9) <= solution.objective <= optimum * 1.02
    assert evaluate(problem, solution.choice) == (
        solution.objective,
        evaluate(problem, solution.choice)[1],
        True,
    )


def test_a_start_is_never_made_worse() -> None:
    for seed in range(draws(100)):
        problem = dense_problem(seed, memory=True)
        optimum = enumerate_all(problem)
        if optimum is None:
            continue
        expected = evaluate(problem, optimum).objective
        for solution in (
            solve(problem, SearchLimits(work=0), start=optimum),
            improve(problem, optimum, SearchLimits(work=0)),
        ):
            assert solution.objective <= expected + 1e-12
            assert solution.status in ("optimal", "feasible")


def test_a_start_that_exceeds_memory_is_no_answer() -> None:
    problem = grid(4, 4, limit_share=0.8)
    free = solve(problem.without_memory()).choice
    assert not evaluate(problem, free).feasible
    assert evaluate(problem, solve(problem, start=free).choice).feasible
    with pytest.raises(ValueError, match="expected a choice for 16 nodes"):
        solve(problem, start=(0,))


def test_a_start_survives_a_time_limit_of_nothing() -> None:
    problem = grid(9, 9, limit_share=0.9)
    start = solve(problem, SearchLimits(60.0, gap_tolerance=0.2)).choice
    solution = solve(problem, SearchLimits(0.0), start=start)
    assert solution.objective <= evaluate(problem, start).objective
    assert solution.status == "feasible"
    assert solution.statistics["time_limit_struck"] == 1


def test_projection_undoes_restoration() -> None:
    rng = np.random.default_rng(5)
    tried = 0
    for seed in range(9000, 9300):
        problem = random_problem(seed)
        reduced = presolve(problem)
        choice = tuple(int(rng.integers(0, len(cost))) for cost in problem.costs if len(cost))
        if len(choice) < problem.num_nodes or not evaluate(problem, choice).feasible:
            continue
        assert reduced.problem is not None
        left = reduced.project(choice)
        assert left is not None
        tried += 1
        restored = evaluate(problem, reduced.restore(left))
        assert restored.feasible
        assert restored.objective <= evaluate(problem, choice).objective * (1 + 1e-9) + 1e-15
    assert tried > 100


def test_equal_budgets_give_equal_answers_under_any_hash_seed() -> None:
    script = (
        "from tests.unit.solve.assignment.assignment_problems import grid\n"
        "from shardopt.solve.assignment.limits import SearchLimits\n"
        "from shardopt.solve.assignment.search.sharding_ilp import improve\n"
        "limits = SearchLimits(work=10_000_000)\n"
        "found = improve(grid(7, 7, limit_share=0.85), (0,) * 49, limits)\n"
        "print(found.choice, found.objective.hex(), found.bound.hex())\n"
    )

    def run(seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert run("1") == run("2")


@pytest.mark.parametrize("memory", [False, True])
def test_cp_sat_agrees_on_small_problems(memory: bool) -> None:
    for seed in range(25):
        problem = dense_problem(seed, memory=memory)
        other, solution = solve_cp_sat(problem, time_limit_seconds=60.0), solve(problem)
        assert (other.status == "infeasible") == (solution.status == "infeasible")
        assert other.objective == pytest.approx(solution.objective, rel=1e-6)
        assert other.bound <= solution.objective * (1 + 1e-9)


def test_cp_sat_agrees_on_random_problems() -> None:
    for seed in range(9500, 9600):
        problem = random_problem(seed, max_nodes=4)
        other = solve_cp_sat(problem, time_limit_seconds=60.0)
        assert other.objective == pytest.approx(brute_force(problem), rel=1e-6, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("limit_share", [None, 0.85])
def test_cp_sat_agrees_on_a_grid(limit_share: float | None) -> None:
    problem = grid(3, 5, limit_share=limit_share)
    other, solution = solve_cp_sat(problem, time_limit_seconds=120.0), solve(problem)
    assert other.objective == pytest.approx(solution.objective, rel=1e-6)


def test_progress_is_told_for_the_whole_problem() -> None:
    problem = grid(8, 8, limit_share=0.85)
    told: list[tuple[float, float]] = []
    solution = improve(
        problem, (0,) * 64, SearchLimits(work=_WORK), progress=lambda *state: told.append(state)
    )
    assert told
    assert told[-1][0] == pytest.approx(solution.objective, rel=1e-9)
    assert told[-1][1] == pytest.approx(solution.bound, rel=1e-6)
    assert all(bound <= objective for objective, bound in told)


def test_budget_is_spent_and_counted() -> None:
    problem = grid(9, 9, limit_share=0.85)
    for work in (5 * _WORK, 20 * _WORK):
        spent = improve(problem, (0,) * 81, SearchLimits(work=work)).statistics["work"]
        assert isinstance(spent, int)
        assert 0.9 * work < spent < 1.5 * work

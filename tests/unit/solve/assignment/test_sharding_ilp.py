"""The intra-operator solver against brute force, and what it promises about statuses, bounds and
determinism."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from math import inf

import numpy as np
import pytest

from shardopt.solve.assignment.exact.bucket_elimination import eliminate_all, elimination_order
from shardopt.solve.assignment.exact.enumeration import enumerate_all, is_tiny
from shardopt.solve.assignment.exact.marginal_ilp import solve_marginal
from shardopt.solve.assignment.exact.marginal_model import MarginalModel
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution, Usage, evaluate
from shardopt.solve.assignment.search import component_solver
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.assignment.table_store import TableStore
from tests.unit.solve.assignment.assignment_problems import (
    NUM_PROBLEMS,
    brute_force,
    grid,
    random_problem,
)


def check_optimal(problem: Problem, solution: Solution) -> None:
    expected = brute_force(problem)
    if expected == inf:
        assert solution.status == "infeasible"
        assert solution.choice == ()
        return
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert solution.bound <= solution.objective
    assert solution.gap <= 1e-7
    evaluation = evaluate(problem, solution.choice)
    assert evaluation.feasible
    assert evaluation.objective == solution.objective


@pytest.mark.parametrize("block", range(6))
def test_solve_agrees_with_brute_force(block: int) -> None:
    for seed in range(block, NUM_PROBLEMS, 6):
        problem = random_problem(seed)
        check_optimal(problem, solve(problem))


def test_what_is_known_of_the_optimum_without_memory_saves_time_only() -> None:
    """With one store for all, and without looking for an optimum that is known not to fit."""
    store, tried = TableStore(), 0
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed, memory=True)
        free = solve(problem.without_memory(), store=store)
        if free.choice and not evaluate(problem, free.choice).feasible:
            solution = solve(problem, store=store, does_not_fit=True)
            assert (solution.status, solution.objective) == (
                "optimal",
                pytest.approx(brute_force(problem)),
            ) or (solution.status == "infeasible" and brute_force(problem) == inf)
            tried += 1
    assert tried > 30


def test_marginal_ilp_alone_agrees_with_brute_force() -> None:
    for seed in range(1000, 1000 + NUM_PROBLEMS):
        problem = random_problem(seed)
        check_optimal(problem, solve_marginal(problem))


@pytest.mark.parametrize(
    ("side", "seed"),
    [(5, 0), (5, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((4, 0), (5, 2)))],
)
def test_an_integer_program_ends_by_its_work(side: int, seed: int) -> None:
    """However little it is, what is said of the optimum holds, and the same is said again."""
    problem, spent = grid(side, side, limit_share=0.9, seed=seed), []
    expected = solve_marginal(problem)
    for work in (1, 100_000, 1_000_000, 10_000_000, 2**62):
        solution = solve_marginal(problem, SearchLimits(work=work))
        assert solution == solve_marginal(problem, SearchLimits(work=work))
        assert solution.bound <= expected.objective * (1 + 1e-9) <= solution.objective * (1 + 2e-9)
        assert not solution.statistics["late"]
        spent.append(int(str(solution.statistics["work"])))
    assert spent == sorted(spent) and spent[0] < spent[-1]
    assert solution.status == "optimal"


def test_no_more_times_are_looked_at_than_one_round_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems may have tens of thousands, each as long as all segments."""
    looked_at = list[int]()
    held_at_most = MarginalModel._most

    def counting(model: MarginalModel, time: int) -> int:
        looked_at.append(time)
        return held_at_most(model, time)

    monkeypatch.setattr(MarginalModel, "_most", counting)
    nodes, sizes = range(200), np.array([2, 1])
    usages = tuple((Usage(node, node + 2, sizes),) for node in nodes)
    problem = Problem((np.array([0.0, 1.0]),) * len(nodes), (), usages, 3, len(nodes) + 1)
    assert solve_marginal(problem).objective == 100
    assert len(looked_at) < 30


def test_integer_program_after_presolve_agrees_with_brute_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(component_solver, "is_tiny", lambda problem: False)
    monkeypatch.setattr(component_solver, "elimination_order", lambda problem: None)
    for seed in range(2000, 2000 + NUM_PROBLEMS):
        problem = random_problem(seed, memory=True)
        check_optimal(problem, solve(problem))


def test_elimination_and_enumeration_agree_with_brute_force() -> None:
    for seed in range(3000, 3000 + NUM_PROBLEMS):
        problem = random_problem(seed, memory=False)
        order = elimination_order(problem)
        assert order is not None
        assert is_tiny(problem)
        for choice in (eliminate_all(problem, order), enumerate_all(problem)):
            objective = inf if choice is None else evaluate(problem, choice).objective
            assert objective == pytest.approx(brute_force(problem), rel=1e-9, abs=1e-15)


def test_too_wide_graphs_have_no_elimination_order() -> None:
    table = np.ones((12, 12))
    edges = tuple(Edge(u, v, table) for u, v in itertools.combinations(range(8), 2))
    assert elimination_order(Problem((np.zeros(12),) * 8, edges)) is None


def test_memory_changes_the_optimum() -> None:
    costs = (np.array([1e-3, 2e-3]), np.array([1e-3, 5e-3]))
    segment = (Usage(0, 1, np.array([8, 1])),)
    assert solve(Problem(costs, (), (segment, segment), 16, 1)).choice == (0, 0)
    assert solve(Problem(costs, (), (segment, segment), 15, 1)).choice == (1, 0)
    assert solve(Problem(costs, (), (segment, segment), 8, 1)).choice == (1, 1)


def test_disjoint_lifetimes_share_memory() -> None:
    costs = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    first, second = (Usage(0, 1, np.array([8, 1])),), (Usage(1, 2, np.array([8, 1])),)
    assert solve(Problem(costs, (), (first, second), 8, 2)).choice == (0, 0)


def test_memory_infeasibility_states_the_lower_bound_and_the_limit() -> None:
    segment = (Usage(0, 2, np.array([8, 5])),)
    solution = solve(Problem((np.zeros(2), np.zeros(2)), (), (segment, segment), 9, 2))
    assert solution.status == "infeasible"
    assert solution.statistics["usage_lower_bound_bytes"] == 10
    assert solution.statistics["memory_limit_bytes"] == 9
    assert solution.statistics["reason"] == (
        "memory: every assignment needs at least 10 bytes at some time, the limit is 9 bytes"
    )


def test_memory_infeasibility_through_forbidden_pairs() -> None:
    # One of the two nodes must take its large strategy, although each alone could take the small
    # one.
    pair = Edge(0, 1, np.array([[0.0, 0.0], [0.0, inf]]))
    segment = (Usage(0, 1, np.array([8, 5])),)
    solution = solve(Problem((np.zeros(2), np.zeros(2)), (pair,), (segment, segment), 12, 1))
    assert solution.status == "infeasible"
    assert solution.statistics["usage_lower_bound_bytes"] == 13
    assert "memory" in str(solution.statistics["reason"])


def test_node_without_strategies_is_named() -> None:
    solution = solve(Problem((np.zeros(2), np.zeros(0)), (Edge(0, 1, np.zeros((2, 0))),)))
    assert solution.status == "infeasible"
    assert solution.statistics["reason"] == "node 1 has no strategies"


def test_node_without_compatible_strategy_is_named() -> None:
    solution = solve(Problem((np.zeros(2), np.zeros(2)), (Edge(0, 1, np.full((2, 2), inf)),)))
    assert solution.status == "infeasible"
    assert "node 0" in str(solution.statistics["reason"])


def test_empty_problem() -> None:
    solution = solve(Problem(()))
    assert (solution.choice, solution.objective, solution.status) == ((), 0.0, "optimal")


def test_grid_with_tight_memory_is_proven() -> None:
    problem = grid(4, 5, limit_share=0.85)
    solution = solve(problem)
    assert solution.status == "optimal"
    assert solution.statistics["integer_programs"] == 1
    evaluation = evaluate(problem, solution.choice)
    assert evaluation.feasible
    assert evaluation.objective == solution.objective
    assert solution.objective > solve(problem.without_memory()).objective


def test_time_limit_is_told() -> None:
    problem = grid(9, 9, limit_share=0.8)
    solution = solve(problem, SearchLimits(0.0))
    assert solution.status == "timeout"
    assert solution.choice == ()
    assert 0.0 < solution.bound < inf
    assert "time limit" in str(solution.statistics["reason"])


def test_gap_tolerance_stops_early_and_is_kept() -> None:
    problem = grid(5, 6, limit_share=0.85)
    solution = solve(problem, SearchLimits(gap_tolerance=0.05))
    assert solution.status in ("optimal", "feasible")
    assert solution.gap <= 0.05
    assert evaluate(problem, solution.choice).feasible
    assert solution.bound <= solve(problem).objective * (1 + 1e-9)


def test_equal_solutions_under_any_hash_seed() -> None:
    script = (
        "from tests.unit.solve.assignment.assignment_problems import grid, random_problem, solve\n"
        "print([solve(random_problem(seed)).choice for seed in range(40)])\n"
        "print(solve(grid(4, 4, limit_share=0.85)).choice)\n"
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": (np.zeros((2, 2)),)}, "node 0: expected costs of rank 1"),
        ({"costs": (np.zeros(1), np.array([np.nan]))}, "node 1: costs must be finite or inf"),
        (
            {"costs": (np.zeros(2),), "edges": (Edge(0, 1, np.zeros((2, 2))),)},
            r"edge \(0, 1\): the problem has nodes",
        ),
        (
            {"costs": (np.zeros(2),) * 2, "edges": (Edge(0, 1, np.zeros((2, 3))),)},
            r"a table of shape \(2, 2\)",
        ),
        (
            {"costs": (np.zeros(1),) * 2, "edges": (Edge(0, 1, np.array([[-inf]])),)},
            r"edge \(0, 1\): costs must be",
        ),
        ({"costs": (np.zeros(2),), "usages": ()}, "expected usages of 1 nodes"),
        (
            {"costs": (np.zeros(2),), "usages": ((Usage(0, 3, np.zeros(2)),),), "num_times": 2},
            "is not within",
        ),
        (
            {"costs": (np.zeros(2),), "usages": ((Usage(0, 1, np.zeros(1)),),), "num_times": 1},
            "bytes of shape",
        ),
        (
            {"costs": (np.zeros(1),), "usages": ((Usage(0, 1, np.array([-1])),),), "num_times": 1},
            "must not be negative",
        ),
        ({"costs": (np.zeros(1),), "memory_limit": -1}, "the memory limit must not be negative"),
    ],
)
def test_malformed_problems_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problem(**arguments)


def test_evaluate_counts_every_part() -> None:
    problem = Problem(
        (np.array([1.0, 2.0]), np.array([4.0])),
        (
            Edge(0, 1, np.array([[8.0], [inf]])),
            Edge(1, 0, np.array([[16.0, 0.0]])),
            Edge(1, 1, np.array([[32.0]])),
        ),
        (
            (Usage(0, 2, np.array([3, 0])), Usage(1, 3, np.array([5, 0]))),
            (Usage(1, 1, np.array([100])),),
        ),
        memory_limit=7,
        num_times=3,
    )
    assert evaluate(problem, (0, 0)) == (61.0, 8, False)
    assert evaluate(problem, (1, 0)) == (inf, 0, False)
    with pytest.raises(ValueError, match="node 0: strategy 2 does not exist"):
        evaluate(problem, (2, 0))

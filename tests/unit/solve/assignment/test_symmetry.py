"""Repeated parts: colours, tied problems against brute force, and freeing that never harms."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from math import inf
from typing import Any

import numpy as np
import pytest

from shardopt.solve.assignment.problem import Edge, Problem, Solution, Usage, evaluate
from shardopt.solve.assignment.search import repeated_layers, symmetry
from shardopt.solve.assignment.search.repeated_layers import solve_repeated
from shardopt.solve.assignment.search.symmetry import Refinement, tie, tie_repeated
from tests.draws import draws
from tests.unit.solve.assignment.assignment_problems import brute_force

NUM_PROBLEMS = 120


def colours_after(problem: Problem, rounds: int) -> list[int]:
    refinement = Refinement(problem)
    for _ in range(rounds):
        refinement.advance()
    return refinement.colours.tolist()


def layered(seed: int, *, layers: int = 3, memory: bool = True) -> Problem:
    """Equal random layers in a chain beside a node that all of them see, as weights that layers
    share."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 3))
    sizes = [int(rng.integers(2, 4)) for _ in range(width)]
    forbidden = rng.choice([0.0, 0.15])

    def table(*shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < forbidden, inf, rng.integers(0, 9, shape) * 1e-3)

    costs = [table(size) for size in sizes]
    inner = [(u, v, table(sizes[u], sizes[v])) for u, v in itertools.combinations(range(width), 2)]
    between = table(sizes[-1], sizes[0])
    shared, to_shared = table(2), table(sizes[0], 2)
    edges = []
    for layer in range(layers):
        start = layer * width
        edges += [Edge(start + u, start + v, cost) for u, v, cost in inner]
        edges.append(Edge(start, layers * width, to_shared))
        if layer:
            edges.append(Edge(start - 1, start, between))
    count = layers * width + 1
    if not memory:
        return Problem((*costs * layers, shared), tuple(edges))
    sizes_in_bytes = [rng.integers(1, 5, size) for size in sizes] * layers
    usages = (*((Usage(v, min(v + 3, count), size),) for v, size in enumerate(sizes_in_bytes)), ())
    return Problem((*costs * layers, shared), tuple(edges), usages, int(rng.integers(4, 14)), count)


def test_colours_of_a_chain_tell_how_far_the_ends_are() -> None:
    length = 12
    cost, table = np.zeros(2), np.array([[0.0, 1.0], [2.0, 3.0]])
    chain = Problem((cost,) * length, tuple(Edge(v, v + 1, table) for v in range(length - 1)))
    for rounds in range(length + 2):
        views = [(min(v, rounds), min(length - 1 - v, rounds)) for v in range(length)]
        assert colours_after(chain, rounds) == [
            list(dict.fromkeys(views)).index(view) for view in views
        ]


def test_direction_and_table_of_an_edge_matter() -> None:
    cost = np.zeros(2)
    one = np.array([[0.0, 1.0], [1.0, 0.0]])
    other = np.array([[0.0, 1.0], [1.0, 2.0]])
    apart = Problem((cost,) * 4, (Edge(0, 1, one), Edge(2, 3, other)))
    assert colours_after(apart, 0) == [0, 0, 0, 0]
    assert colours_after(apart, 1) == [0, 1, 2, 3]
    twice = Problem((cost,) * 5, (Edge(0, 1, one), Edge(2, 3, one), Edge(2, 3, one)))
    assert colours_after(twice, 1) == [0, 1, 2, 3, 4]


def test_a_tied_assignment_costs_and_holds_what_it_does_in_the_whole_problem() -> None:
    for seed in range(draws(NUM_PROBLEMS)):
        problem = layered(seed)
        for rounds in range(3):
            colours = np.array(colours_after(problem, rounds))
            tied = tie(problem, colours)
            for choice in itertools.product(*(range(len(cost)) for cost in tied.costs)):
                small = evaluate(tied, choice)
                whole = evaluate(problem, np.asarray(choice)[colours].tolist())
                assert small.objective == pytest.approx(whole.objective)
                assert (small.peak_usage, small.feasible) == (whole.peak_usage, whole.feasible)


@pytest.mark.parametrize("memory", [False, True])
def test_the_tied_optimum_is_the_best_of_all_tied_assignments(
    memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_layers, "_MAX_DIRECT_ENTRIES", 0)
    monkeypatch.setattr(symmetry, "_MAX_SHARE_LEFT", 1.0)
    monkeypatch.setattr(symmetry, "_MAX_TIED_NODES", 0)  # one round
    tried = improved = 0
    for seed in range(NUM_PROBLEMS):
        problem = layered(seed, memory=memory)
        solution = solve_repeated(problem)
        best = brute_force(problem)
        assert (solution.status, solution.objective) == (
            ("infeasible", inf) if best == inf else ("optimal", pytest.approx(best))
        )
        tied = tie_repeated(problem)
        if tied is None or "tied_objective" not in solution.statistics:
            continue
        tried += 1
        choices = itertools.product(*(range(len(cost)) for cost in tied.problem.costs))
        ways = (evaluate(problem, tied.spread(choice)) for choice in choices)
        expected = min(way.objective for way in ways if way.feasible)
        assert solution.statistics["tied_objective"] == pytest.approx(expected)
        assert solution.statistics["freed_objective"] == pytest.approx(best)
        improved += best < 0.999 * expected
    assert tried > NUM_PROBLEMS / 4
    assert improved > NUM_PROBLEMS / 20


def test_freeing_never_harms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_layers, "_MAX_DIRECT_ENTRIES", 0)
    problem = repeated_grids(6, 4)
    solution = solve_repeated(problem)
    assert solution.status == "optimal"
    assert (
        evaluate(problem, solution.choice).objective
        == solution.objective
        == pytest.approx(solution.bound)
    )
    assert (
        solution.objective
        == solution.statistics["freed_objective"]
        <= solution.statistics["tied_objective"]
    )
    assert solution.statistics["tied_nodes"] <= problem.num_nodes / 2


def test_without_work_to_free_the_tied_solution_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seen = repeated_grids(6, 4), []

    def without_work(part: Problem, **options: Any) -> Solution:
        seen.append(tuple(options["start"]))
        return Solution(seen[-1], evaluate(part, seen[-1]).objective, 0.5, 1.0, "feasible")

    monkeypatch.setattr(repeated_layers, "_MAX_DIRECT_ENTRIES", 0)
    monkeypatch.setattr(repeated_layers, "solve", without_work)
    solution = solve_repeated(problem)
    assert seen == [solution.choice]
    assert (
        solution.statistics["tied_objective"]
        == solution.statistics["freed_objective"]
        == solution.objective
    )
    tied = tie_repeated(problem)
    assert tied is not None
    assert solution.choice == tied.spread(
        [solution.choice[k] for k in np.unique(tied.colours, return_index=True)[1]]
    )


def test_an_impossible_tie_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours must differ here, so that tying them leaves nothing."""
    monkeypatch.setattr(repeated_layers, "_MAX_DIRECT_ENTRIES", 0)
    differ = np.where(np.eye(2, dtype=bool), inf, 0.0)
    ring = Problem(
        (np.array([0.0, 1.0]),) * 8, tuple(Edge(v, (v + 1) % 8, differ) for v in range(8))
    )
    assert np.array_equal(colours_after(ring, 3), [0] * 8)
    monkeypatch.setattr(symmetry.Refinement, "advance", lambda refinement: next(rounds))
    rounds = iter((True, False))
    solution = solve_repeated(ring)
    assert (solution.status, solution.objective) == ("optimal", 4.0)
    assert "tied_objective" not in solution.statistics


def repeated_grids(layers: int, side: int) -> Problem:
    """Equal square grids in a chain: wide enough that presolve leaves work."""
    rng = np.random.default_rng(5)
    cells = side * side
    cost = tuple(rng.random(3) for _ in range(cells))
    right = [(r * side + c, r * side + c + 1) for r in range(side) for c in range(side - 1)]
    down = [(r * side + c, (r + 1) * side + c) for r in range(side - 1) for c in range(side)]
    tables = {pair: rng.random((3, 3)) for pair in right + down}
    onward = rng.random((3, 3))
    edges = [
        Edge(layer * cells + u, layer * cells + v, table)
        for layer in range(layers)
        for (u, v), table in tables.items()
    ]
    edges += [Edge(layer * cells - 1, layer * cells, onward) for layer in range(1, layers)]
    return Problem(cost * layers, tuple(edges))


def test_little_repetition_is_not_tied() -> None:
    rng = np.random.default_rng(1)
    costs = tuple(rng.random(3) for _ in range(8))
    assert (
        tie_repeated(Problem(costs, tuple(Edge(v, v + 1, rng.random((3, 3))) for v in range(7))))
        is None
    )


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_the_order_of_nodes_and_edges_does_not_matter(rounds: int) -> None:
    rng = np.random.default_rng(7)
    for seed in range(20):
        problem = layered(seed, layers=5)
        order = rng.permutation(problem.num_nodes)  # node v becomes node order[v]
        costs = [problem.costs[v] for v in np.argsort(order)]
        edges = [Edge(int(order[e.u]), int(order[e.v]), e.cost) for e in problem.edges]
        permuted = Problem(tuple(costs), tuple(edges[k] for k in rng.permutation(len(edges))))
        before = np.array(colours_after(problem, rounds))
        after = np.array(colours_after(permuted, rounds))[order]
        assert len(set(before)) == len(set(after)) == len(set(zip(before, after, strict=True)))


def test_equal_arrays_need_not_be_one_object() -> None:
    problem = layered(3)
    copied = Problem(
        tuple(map(np.copy, problem.costs)),
        tuple(Edge(e.u, e.v, np.copy(e.cost)) for e in problem.edges),
    )
    assert colours_after(problem, 2) == colours_after(copied, 2)


def test_colours_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "from tests.unit.solve.assignment.test_symmetry import colours_after, layered\n"
        "print([colours_after(layered(seed), 2) for seed in range(30)])"
    )
    outputs = set()
    for seed in ("0", "1"):
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1

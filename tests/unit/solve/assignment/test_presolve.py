"""Each reduction preserves the optimum and carries solutions back; together they reduce what they
should."""

from __future__ import annotations

import itertools
from math import inf
from time import process_time

import numpy as np
import pytest

from shardopt.solve.assignment.presolve.presolve import presolve
from shardopt.solve.assignment.problem import Edge, Problem, Usage, evaluate
from shardopt.solve.assignment.table_store import TableStore
from tests.unit.solve.assignment.assignment_problems import (
    NUM_PROBLEMS,
    brute_force,
    random_problem,
)


def best_choice(problem: Problem) -> tuple[int, ...] | None:
    choices = itertools.product(*(range(len(cost)) for cost in problem.costs))
    allowed = [(evaluate(problem, choice), choice) for choice in choices]
    return min(
        ((evaluation.objective, choice) for evaluation, choice in allowed if evaluation.feasible),
        default=(inf, None),
    )[1]


def residual(problem: Problem, store: TableStore | None) -> tuple[object, ...]:
    reduced = presolve(problem, store=store)
    left = reduced.problem
    arrays = () if left is None else (*left.costs, *(edge.cost for edge in left.edges))
    return reduced.nodes, reduced.constant, len(reduced.log), [array.tolist() for array in arrays]


def test_what_a_store_has_seen_changes_nothing() -> None:
    """Problems in any order, some of them twice, come out as with a store of their own."""
    problems = [random_problem(seed, memory=False) for seed in range(300)]
    alone = [residual(problem, None) for problem in problems]
    store = TableStore()
    for number in (*range(300), *reversed(range(0, 300, 3))):
        assert residual(problems[number], store) == alone[number]


@pytest.mark.parametrize("memory", [False, True])
def test_optimum_is_preserved_and_restored(memory: bool) -> None:
    for seed in range(5000, 5000 + NUM_PROBLEMS):
        problem = random_problem(seed, memory=memory)
        reduced = presolve(problem)
        expected = brute_force(problem)
        choice = None if reduced.problem is None else best_choice(reduced.problem)
        if reduced.problem is None or choice is None:
            assert expected == inf
            continue
        left = evaluate(reduced.problem, choice).objective + reduced.constant
        assert left == pytest.approx(expected, rel=1e-9, abs=1e-15)
        restored = evaluate(problem, reduced.restore(choice))
        assert restored.feasible
        assert restored.objective == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_every_remaining_assignment_restores_to_one_of_equal_cost() -> None:
    """Steps are exact, not only at the optimum: contraction and folding keep each assignment's cost
    and memory."""
    for seed in range(6000, 6100):
        problem = random_problem(seed, memory=True)
        reduced = presolve(problem)
        if reduced.problem is None:
            continue
        for choice in itertools.product(*(range(len(cost)) for cost in reduced.problem.costs)):
            left = evaluate(reduced.problem, choice)
            full = evaluate(problem, reduced.restore(choice))
            assert full.objective == pytest.approx(
                left.objective + reduced.constant, rel=1e-9, abs=1e-15
            )
            assert full.feasible == left.feasible


def test_trees_and_cycles_vanish_without_memory() -> None:
    rng = np.random.default_rng(0)
    ring = [(v, (v + 1) % 50) for v in range(50)]
    tree = [(v, 50 + v) for v in range(50)]
    edges = tuple(Edge(u, v, rng.random((5, 5))) for u, v in ring + tree)
    reduced = presolve(Problem(tuple(rng.random(5) for _ in range(100)), edges))
    assert reduced.problem is not None
    assert reduced.problem.num_nodes == 0


def test_functional_chain_contracts_with_its_memory() -> None:
    # Each value follows the one before; only pairs (s, map[s]) are allowed.
    rng = np.random.default_rng(1)
    edges = []
    for node in range(9):
        table = np.full((4, 4), inf)
        table[np.arange(4), rng.permutation(4)] = rng.random(4)
        edges.append(Edge(node, node + 1, table))
    usages = tuple((Usage(node, node + 2, rng.integers(0, 9, 4)),) for node in range(10))
    problem = Problem(tuple(rng.random(4) for _ in range(10)), tuple(edges), usages, 8, 11)
    reduced = presolve(problem)
    # The chain, and the base of its memory.
    assert reduced.problem is None or reduced.problem.num_nodes <= 2
    assert (reduced.problem is None) == (brute_force_chain(problem) == inf)


def brute_force_chain(problem: Problem) -> float:
    """A functional chain has one assignment for each strategy of its first node."""
    best = inf
    for first in range(4):
        choice = [first]
        for edge in problem.edges:
            choice.append(int(np.argmin(edge.cost[choice[-1]])))
        evaluation = evaluate(problem, choice)
        best = min(best, evaluation.objective if evaluation.feasible else inf)
    return best


def test_memory_that_cannot_overflow_is_dropped() -> None:
    rng = np.random.default_rng(2)
    usages = tuple((Usage(0, 5, rng.integers(0, 10, 3)),) for _ in range(4))
    edges = tuple(Edge(u, v, rng.random((3, 3))) for u, v in itertools.combinations(range(4), 2))
    reduced = presolve(Problem((np.zeros(3),) * 4, edges, usages, 4 * 9, 5))
    assert reduced.problem is not None
    assert not reduced.problem.has_memory


def test_dominated_and_duplicate_strategies_go_but_thrifty_ones_stay() -> None:
    # Strategy 1 repeats 0, strategy 2 is dearer, strategy 3 is dearer but needs less memory. The
    # other node stays open.
    cost = np.array([1.0, 1.0, 2.0, 2.0])
    usages = ((Usage(0, 1, np.array([5, 5, 5, 1])),), (Usage(0, 1, np.array([5, 0])),))
    reduced = presolve(Problem((cost, np.array([0.0, 9.0])), (), usages, 7, 1))
    assert reduced.problem is not None
    # A third one carries the base.
    assert [len(cost) for cost in reduced.problem.costs][:2] == [
        2,
        2,
    ]
    assert {reduced.restore((s, 0))[0] for s in range(2)} == {0, 3}


def test_strategy_that_leaves_no_room_is_removed() -> None:
    usages = ((Usage(0, 2, np.array([6, 1])),), (Usage(1, 3, np.array([5, 5])),))
    reduced = presolve(Problem((np.array([0.0, 1.0]), np.zeros(2)), (), usages, 10, 3))
    assert reduced.problem is not None
    assert reduced.problem.num_nodes == 0
    assert reduced.restore(())[0] == 1


def test_a_large_layered_graph_is_reduced_quickly() -> None:
    """Equal layers share their tables, so the store does each product once; the bound leaves room
    for slow machines."""
    rng = np.random.default_rng(3)
    tables = [rng.random((8, 8)) for _ in range(12)]
    costs = [rng.random(8) for _ in range(10)]
    edges = []
    for layer in range(400):
        first = 10 * layer
        edges += [Edge(first + i, first + i + 1, tables[i]) for i in range(10)]
        edges += [Edge(first, first + 5, tables[10]), Edge(first + 5, first + 10, tables[11])]
    problem = Problem((*costs * 400, costs[0]), tuple(edges))
    start = process_time()
    reduced = presolve(problem)
    assert process_time() - start < 2.0
    assert reduced.problem is not None
    assert reduced.problem.num_nodes == 0


def test_store_keeps_one_object_for_equal_tables() -> None:
    store = TableStore()
    first = store.intern(np.arange(6.0).reshape(2, 3))
    second = store.intern(np.arange(6.0).reshape(2, 3))
    assert first is second
    assert store.transpose(store.transpose(first)) is first
    assert store.analyse(first).row_part is not None  # 3 r + c
    assert store.intern(np.arange(6.0).reshape(3, 2)) is not first

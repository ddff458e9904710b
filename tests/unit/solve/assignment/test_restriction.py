"""Restrictions of a problem: what they allow, that their answers are answers of the whole, and that
none is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.mesh.shardings import all_shardings
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, evaluate
from shardopt.solve.assignment.search import restriction
from shardopt.solve.assignment.search.restriction import Mask, restrict, solve_in_steps
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.solve.sharding.strategies.simpler import simpler_masks
from tests.unit.solve.assignment.assignment_problems import brute_force, grid, random_problem

NUM_PROBLEMS = 60


@pytest.fixture(autouse=True)
def every_problem_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restriction, "_MAX_DIRECT_ENTRIES", -1)
    monkeypatch.setattr(restriction, "is_large", lambda problem: True)


def random_mask(problem: Problem, seed: int) -> Mask:
    rng = np.random.default_rng(seed)
    return Mask(f"{seed}", tuple(rng.random(len(cost)) < 0.6 for cost in problem.costs))


def column(*shardings: Sharding) -> Column:
    return Column(shardings, shardings, np.arange(len(shardings)))


@pytest.mark.parametrize("memory", [False, True])
def test_a_restricted_problem_is_the_whole_one_with_fewer_strategies(memory: bool) -> None:
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed, max_nodes=4, memory=memory)
        restricted = restrict(problem, random_mask(problem, seed))
        for choice in itertools.product(*(range(len(cost)) for cost in restricted.problem.costs)):
            whole = restricted.spread(choice)
            assert restricted.project(whole) == choice
            assert evaluate(problem, whole) == evaluate(restricted.problem, choice)


def test_a_mask_keeps_what_it_says_unless_nothing_possible_is_left() -> None:
    problem = Problem((np.array([1.0, np.inf, 2.0]), np.array([1.0, np.inf])))
    mask = Mask("some", (np.array([False, True, True]), np.array([False, True])))
    restricted = restrict(problem, mask)
    assert [kept.tolist() for kept in restricted.kept] == [[2], [0, 1]]
    assert restricted.project((2, 1)) == (0, 1)
    assert restricted.project((0, 1)) is None


@pytest.mark.parametrize("memory", [False, True])
def test_the_whole_is_never_worse_than_a_part(memory: bool) -> None:
    tried = better = 0
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed, max_nodes=5, memory=memory)
        masks = [random_mask(problem, seed + k) for k in (0, 1)]
        solution = solve_in_steps(problem, masks)
        best = brute_force(problem)
        assert solution.objective == (pytest.approx(best) if best < np.inf else np.inf)
        for mask in masks:
            part = brute_force(restrict(problem, mask).problem)
            restricted = solution.statistics.get(f"restricted_{mask.name}", np.inf)
            assert restricted == (pytest.approx(part) if part < np.inf else np.inf)
            tried += part < np.inf
            better += best < 0.999 * part < np.inf
    assert tried > NUM_PROBLEMS / 2
    assert better > NUM_PROBLEMS / 10


def test_no_part_is_tried_where_dynamic_programming_solves_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restriction, "is_large", lambda problem: False)
    for memory in (False, True):
        tried = 0
        for seed in range(NUM_PROBLEMS):
            problem = random_problem(seed, max_nodes=5, memory=memory)
            solution = solve_in_steps(problem, [random_mask(problem, seed)])
            best = brute_force(problem)
            assert solution.objective == (pytest.approx(best) if best < np.inf else np.inf)
            tried += f"restricted_{seed}" in solution.statistics
        assert bool(tried) is memory  # where the optimum without memory does not fit


def test_what_a_part_found_stands_when_no_time_is_left_for_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = grid(6, 6, limit_share=None)
    mask = random_mask(problem, 1)
    expected = solve_in_steps(restrict(problem, mask).problem, ()).objective
    whole = restriction.solve_repeated

    def without_time(part: Problem, limits: SearchLimits, **options: object) -> object:
        if part is problem:
            limits = replace(limits, seconds=1e-9)
        return whole(part, limits, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(restriction, "solve_repeated", without_time)
    solution = solve_in_steps(problem, (mask,), start=(0,) * problem.num_nodes)
    assert solution.objective == pytest.approx(expected)
    assert solution.objective < evaluate(problem, (0,) * problem.num_nodes).objective
    assert solution.status == "feasible"


def test_joined_axes_stand_together_in_one_place() -> None:
    """As many shardings as the mesh with one axis in place of the two has."""
    shape, mesh = (16, 8, 24), parse_mesh("2x2x2")
    every = column(*all_shardings(mesh, shape))
    masks = {mask.name: mask.allowed[0] for mask in simpler_masks(mesh, [(every,)])}
    assert list(masks) == ["yz_joined", "xy_joined"]
    for name, joined in (("yz_joined", "2x4"), ("xy_joined", "4x2")):
        kept = {
            sharding.dims
            for sharding, keep in zip(every.shardings, masks[name], strict=True)
            if keep
        }
        as_two = all_shardings(parse_mesh(joined), shape)
        names = (
            {"x": ("x",), "y": ("y", "z")} if joined == "2x4" else {"x": ("x", "y"), "y": ("z",)}
        )
        assert kept == {
            tuple(sum((names[a] for a in dim), ()) for dim in sharding) for sharding in as_two
        }


def test_sums_are_closed_before_they_are_open() -> None:
    whole, unreduced = Sharding(((),)), Sharding(((),), ("x",))
    split, single = column(whole, unreduced), column(whole, whole)
    (mask,) = simpler_masks(parse_mesh("2x2"), [(single, split), (single,)])
    assert mask.name == "reduced"
    assert [allowed.tolist() for allowed in mask.allowed] == [[True, False], [True, True]]
    assert simpler_masks(parse_mesh("2x2"), [(single,)]) == ()

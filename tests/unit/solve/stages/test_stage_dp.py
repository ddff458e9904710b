"""Stage DP against hand-computed plans and brute force."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.stages.baselines.equal_layers import equal_layer_stages
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.dp.recursion import make_sizes
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageProblem,
    StageSolution,
    evaluate,
    gpipe_in_flight,
    is_plan,
    stage_configs,
    stage_memory_bytes,
)
from shardopt.support.errors import UserError
from tests.unit.solve.stages.stage_problems import (
    additive,
    all_plans,
    brute_force,
    random_problem,
    row,
)

# ---- hand-computed ----


def test_perfect_scaling_needs_one_stage() -> None:
    solution = solve_stages(additive([1] * 4, (1, 2, 4), 4, 8, 1.0))
    assert (solution.stages, solution.seconds) == (((0, 4, 2),), 8.0)


def test_poor_scaling_needs_a_pipeline() -> None:
    solution = solve_stages(additive([1] * 4, (1, 2, 4), 4, 8, 0.5))
    assert (solution.stages, solution.seconds) == (tuple((k, k + 1, 0) for k in range(4)), 11.0)
    assert (solution.slot_seconds, solution.sum_seconds, solution.bound) == (1.0, 4.0, 11.0)
    assert solution.status == "optimal"


def test_the_heavy_layer_gets_two_devices() -> None:
    solution = solve_stages(additive([1, 2, 3, 4], (1, 2, 4), 4, 8, 0.5))
    assert solution.stages == ((0, 2, 0), (2, 3, 0), (3, 4, 1))
    assert solution.seconds == pytest.approx(3 + 3 + 2 * math.sqrt(2) + 7 * 3)


def test_the_number_of_stages_can_be_fixed() -> None:
    problem = additive([1] * 4, (1, 2, 4), 4, 8, 0.5)
    assert solve_stages(problem, 1).seconds == pytest.approx(8 * 2.0)
    two = solve_stages(problem, 2)
    assert two.stages == ((0, 2, 1), (2, 4, 1))
    assert two.seconds == pytest.approx(9 * 2 / math.sqrt(2))


def test_a_slow_transfer_is_a_station_of_the_pipeline() -> None:
    problem = replace(
        additive([1] * 4, (1, 2), 2, 8, 1.0),
        transfer_seconds=np.array([[9.0, 3.0, 0.5, 3.0, 9.0], [0.0] * 5]),
    )
    fast = solve_stages(problem, 2)
    assert (fast.stages, fast.seconds) == (((0, 2, 0), (2, 4, 0)), 4.5 + 7 * 2)
    slow = replace(
        problem, transfer_seconds=np.array([[0.0, 3.0, 2.5, 3.0, 0.0], [0.0, 3.0, 1.0, 3.0, 0.0]])
    )
    both = solve_stages(slow, 2)
    assert (both.slot_seconds, both.sum_seconds) == (2.5, 4 + 2.5 + 1.0), (
        "gradients go back at the same time"
    )
    assert solve_stages(slow).stages == ((0, 4, 1),)


# ---- brute force ----


@pytest.mark.parametrize("sizes", [(1, 2, 4), (2, 3)])
def test_devices_count_in_units_of_all_sizes(sizes: tuple[int, ...]) -> None:
    """Twelve times as many devices in submeshes twelve times as large make the recursion no
    larger."""
    few = additive([3, 1, 2, 2], sizes, 8, 6, 0.7)
    many = replace(
        few, configs=row(*(12 * size for size in sizes)), num_devices=(12 * few.num_devices[0],)
    )
    assert make_sizes(many)[0].full == make_sizes(few)[0].full == 8
    assert solve_stages(many).stages == solve_stages(few).stages
    assert solve_stages(many, 3).stages == solve_stages(few, 3).stages


@pytest.mark.parametrize("block", range(8))
def test_agrees_with_brute_force(block: int) -> None:
    """Four thousand cases; about half have a plan."""
    feasible = 0
    for seed in range(500 * block, 500 * (block + 1)):
        problem, num_stages = random_problem(seed)
        expected = brute_force(problem, num_stages)
        if expected is None:
            with pytest.raises(
                UserError,
                match=r"cannot use exactly|feasible sharding|needs .* and lacks",
            ):
                solve_stages(problem, num_stages)
            continue
        feasible += 1
        solution = solve_stages(problem, num_stages)
        assert solution.seconds == pytest.approx(expected), f"seed {seed}"
        assert solution.bound <= expected * (1 + 1e-12)
        check_plan(problem, solution)
        assert solution.stages in set(all_plans(problem, num_stages))
        assert num_stages in (None, len(solution.stages))
    assert feasible > 100


def test_the_incumbent_only_shortens_the_search() -> None:
    for seed in range(300):
        problem, num_stages = random_problem(seed)
        plans = list(itertools.islice(all_plans(problem, num_stages), 20))
        expected = brute_force(problem, num_stages)
        if expected is None:
            continue
        for incumbent in (plans[0], plans[-1], ((0, problem.num_layers, 0),)):
            assert solve_stages(problem, num_stages, incumbent).seconds == pytest.approx(expected)


def check_plan(problem: StageProblem, solution: StageSolution) -> None:
    """Layers covered in order, all devices used, memory kept, times as reported."""
    assert is_plan(problem, solution.stages)
    assert solution.seconds == evaluate(problem, solution.stages).seconds


# ---- memory and errors ----


def with_memory(
    fixed: float, activation: float, memory: float, in_flight: InFlight | None = None
) -> StageProblem:
    """Four equal layers on up to four devices; bytes by layer, divided by the devices of a
    stage."""
    problem = additive([1] * 4, (1, 2, 4), 4, 8, 0.5)
    layers = np.arange(5)[None, :, None] - np.arange(5)[:, None, None]
    share = layers / np.array([1, 2, 4])
    changed = replace(
        problem,
        fixed_bytes=fixed * share,
        activation_bytes=activation * share,
        memory_bytes=(memory,),
    )
    return changed if in_flight is None else replace(changed, in_flight=in_flight)


def test_early_stages_hold_more_microbatches() -> None:
    problem = with_memory(1.0, 1.0, 5.0)
    assert stage_memory_bytes(problem, solve_stages(problem).stages) == (5, 4, 3, 2)
    assert len(solve_stages(with_memory(1.0, 1.0, 4.9)).stages) < 4


def test_gpipe_needs_more_memory_than_1f1b() -> None:
    assert solve_stages(with_memory(0.0, 1.0, 7.0)).seconds == 11.0
    with pytest.raises(UserError, match="fits the memory"):
        solve_stages(with_memory(0.0, 1.0, 7.0, gpipe_in_flight))


def test_missing_memory_is_told_by_stage() -> None:
    with pytest.raises(UserError) as error:
        solve_stages(with_memory(2.0**30, 0.0, 2.0**29))
    assert str(error.value) == (
        "no plan of 4 layers fits the memory of a device (536870912 bytes (512.00 MiB)): in the "
        "leanest, with 1 stage, stage 0 (layers 0-3 on 1x4 as 1x4, 1 in flight) needs 1073741824 "
        "bytes (1.00 GiB) and lacks 536870912 bytes (512.00 MiB); less than 1073741824 bytes "
        "(1.00 GiB) is never enough"
    )


def test_less_memory_than_named_is_never_enough() -> None:
    """With what the message names there is a plan, with a byte less there is none."""
    seen = 0
    for seed in range(1000):
        problem, num_stages = random_problem(seed)
        if len(problem.num_devices) > 1 or brute_force(problem, num_stages) is not None:
            continue
        with pytest.raises(UserError) as error:
            solve_stages(problem, num_stages)
        if match := re.search(r"less than (\d+) bytes is never enough", str(error.value)):
            seen += 1
            enough = float(match[1])
            assert brute_force(replace(problem, memory_bytes=(enough,)), num_stages) is not None
            assert brute_force(replace(problem, memory_bytes=(enough - 1,)), num_stages) is None
    assert seen > 20


def test_devices_that_cannot_be_covered() -> None:
    with pytest.raises(UserError) as error:
        solve_stages(additive([1] * 2, (1, 2), 5, 1, 1.0))
    assert (
        str(error.value) == "2 layers cannot use exactly 5 devices with submeshes of 1, 2 devices"
    )


def test_layer_without_a_sharding() -> None:
    problem = additive([1] * 3, (1, 2), 2, 1, 1.0)
    problem.seconds[:2, 2:] = np.inf
    with pytest.raises(UserError) as error:
        solve_stages(problem)
    assert str(error.value) == (
        "no cut of 3 layers has a feasible sharding for every stage: layer 1 is in no "
        "feasible stage"
    )


@pytest.mark.parametrize("num_stages", [0, 5])
def test_impossible_numbers_of_stages(num_stages: int) -> None:
    with pytest.raises(UserError, match="a stage needs a layer and a device"):
        solve_stages(additive([1] * 4, (1, 2, 4), 4, 8, 0.5), num_stages)


def test_wrong_shapes_are_our_bug() -> None:
    problem = additive([1] * 3, (1, 2), 2, 1, 1.0)
    with pytest.raises(ValueError, match="fixed_bytes must have shape"):
        replace(problem, fixed_bytes=np.zeros((2, 2)))


# ---- baseline and size ----


def test_stage_configs_cover_all_shapes_of_all_submeshes() -> None:
    choices = stage_configs(load_cluster("cpu-test:2x4"))
    assert [str(choice) for choice in choices] == [
        "1x1 as 1x1",
        "1x2 as 1x2",
        "1x4 as 1x4",
        "1x4 as 2x2",
        "2x4 as 1x8",
        "2x4 as 2x4",
        "2x4 as 4x2",
    ]


@pytest.mark.parametrize("memory", [1e9, 4.0])
def test_forty_eight_layers_on_sixty_four_devices_need_few_attempts(memory: float) -> None:
    rng = np.random.default_rng(0)
    meshes = stage_configs(load_cluster("p3.16xlarge:8x8"))
    sizes = np.array([mesh.num_devices for mesh in meshes])
    prefix = np.concatenate(([0.0], rng.uniform(0.5, 1.5, 48).cumsum()))
    span = (prefix[None, :] - prefix[:, None])[:, :, None]
    seconds = span / sizes**0.8 * rng.uniform(1, 1.3, (49, 49, len(meshes)))
    problem = StageProblem(
        num_layers=48,
        configs=meshes,
        num_devices=(64,),
        num_microbatches=64,
        seconds=seconds,
        forward_seconds=seconds / 3,
        fixed_bytes=span / sizes,
        activation_bytes=0.2 * span / sizes,
        memory_bytes=(memory,),
    )
    solution = solve_stages(problem)
    assert solution.evaluations < 100
    check_plan(problem, solution)
    assert solution.seconds <= equal_layer_stages(problem, PlannerInput()).seconds

"""Plans with several stages a mesh: against all cuts from the definition, and what cannot be laid
so."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import (
    build_schedule,
    find_schedule,
    in_flight,
    model_homes,
)
from shardopt.schedule.simulator import simulate
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.baselines.registry import find_planner
from shardopt.solve.stages.search.shared_meshes import (
    least_busy_seconds,
    mean_in_flight,
    near_sharing,
    sharing_planner,
    solve_sharing,
)
from shardopt.solve.stages.stage_problem import StageProblem, Stages, evaluate, is_plan
from shardopt.support.errors import UserError
from tests.unit.solve.stages.stage_problems import row


def random_problem(seed: int, schedule: str) -> StageProblem:
    """Seconds, bytes and transfers at random; two configs of each size, which recompute or not."""
    each = find_schedule(schedule).model_stages_per_mesh
    rng = np.random.default_rng(seed)
    layers, devices = int(rng.integers(each, 7)), int(rng.choice([2, 4]))
    plain = row(1, 2, 4)[: 2 if devices == 2 else 3]
    configs = (*plain, *(replace(config, recompute="layer") for config in plain))
    shape = (layers + 1, layers + 1, len(configs))
    return StageProblem(
        num_layers=layers,
        configs=configs,
        num_devices=(devices,),
        num_microbatches=2 * int(rng.integers(1, 9)),
        seconds=rng.integers(1, 9, shape).astype(float),
        forward_seconds=np.zeros(shape),
        fixed_bytes=rng.integers(0, 4, shape).astype(float),
        activation_bytes=rng.integers(0, 3, shape).astype(float),
        memory_bytes=(float(rng.choice([4.0, 8.0, 1e9])),),
        transfer_seconds=rng.integers(0, 3, (2, layers + 1)).astype(float),
        in_flight=mean_in_flight(schedule),
        stages_per_mesh=each,
        homes=partial(model_homes, schedule),
    )


def all_plans(problem: StageProblem) -> list[Stages]:
    """Every cut into a multiple of v stages, each mesh of one size, that fits."""
    plans, each = [], problem.stages_per_mesh
    for count in range(each, problem.num_layers + 1, each):
        meshes = count // each
        for cuts in itertools.combinations(range(1, problem.num_layers), count - 1):
            pairs = list(itertools.pairwise((0, *cuts, problem.num_layers)))
            for chosen in itertools.product(range(len(problem.configs)), repeat=count):
                stages = tuple((i, j, o) for (i, j), o in zip(pairs, chosen, strict=True))
                sizes = {problem.configs[o].num_devices for o in chosen}
                if (
                    len(sizes) == 1
                    and meshes * sizes.pop() == problem.total_devices
                    and is_plan(problem, stages)
                ):
                    plans.append(stages)
    return plans


@pytest.mark.parametrize("schedule", ["interleaved:2", "interleaved:3", "zb-v"])
@pytest.mark.parametrize("seed", range(12))
def test_the_best_plan_of_all(seed: int, schedule: str) -> None:
    problem = random_problem(seed, schedule)
    plans = [evaluate(problem, stages).seconds for stages in all_plans(problem)]
    if not plans:
        each = problem.stages_per_mesh
        with pytest.raises(UserError, match=f"no plan puts {each} stages on every mesh"):
            solve_sharing(problem, PlannerInput())
        return
    plan = solve_sharing(problem, PlannerInput())
    assert plan.seconds == pytest.approx(min(plans))
    assert (plan.status, plan.bound) == ("optimal", pytest.approx(min(plans)))
    assert is_plan(problem, plan.stages)
    near = near_sharing(problem, PlannerInput(), 8)
    assert near[0] == plan
    assert all(is_plan(problem, each.stages) for each in near)
    assert [each.seconds for each in near] == sorted(each.seconds for each in near)
    assert len({each.stages for each in near}) == len(near)


@pytest.mark.parametrize("schedule", ["interleaved:2", "v-half", "chimera"])
def test_cuts_of_many_layers_have_a_bound(schedule: str) -> None:
    """Too many to look at all: what is found is at least the bound, and no worse than any of some
    random cuts."""
    rng, layers = np.random.default_rng(0), 40
    starts, ends = np.mgrid[: layers + 1, : layers + 1]
    each = rng.uniform(0.5, 1.5, layers)
    before = np.concatenate([[0.0], np.cumsum(each)])
    seconds = np.where(ends > starts, before[ends] - before[starts], np.inf)[..., None]
    zeros = np.zeros_like(seconds)
    kind = find_schedule(schedule)
    problem = StageProblem(
        num_layers=layers,
        configs=row(1),
        num_devices=(8,),
        num_microbatches=16,
        seconds=seconds,
        forward_seconds=zeros,
        fixed_bytes=zeros,
        activation_bytes=zeros,
        memory_bytes=(1.0,),
        in_flight=mean_in_flight(schedule),
        stages_per_mesh=kind.model_stages_per_mesh,
        homes=partial(model_homes, schedule),
    )
    plan = solve_sharing(problem, PlannerInput(), kind.mesh_multiple)
    count = len(plan.stages)
    for _ in range(300):
        cuts = sorted(rng.choice(np.arange(1, layers), count - 1, replace=False).tolist())
        pairs = itertools.pairwise((0, *cuts, layers))
        stages = tuple((start, end, 0) for start, end in pairs)
        assert plan.seconds < evaluate(problem, stages).seconds
    # The step of stages that are all equal, which these are not.
    v = problem.stages_per_mesh
    even = before[-1] / (8 * v)
    assert even * (8 + v * 16 - 1) * 0.99 <= plan.bound <= plan.seconds
    assert plan.seconds <= 1.1 * plan.bound


def test_short_stages_of_a_mesh_make_up_for_long_ones() -> None:
    """Ten equal layers on four meshes of two stages: by the longest stage alone, no cut is better
    than two long stages on one mesh."""
    seconds = np.subtract.outer(np.arange(11.0), np.arange(11.0)).T[..., None]
    zeros = np.zeros_like(seconds)
    problem = StageProblem(
        num_layers=10,
        configs=row(1),
        num_devices=(4,),
        num_microbatches=16,
        seconds=np.where(seconds > 0, seconds, np.inf),
        forward_seconds=zeros,
        fixed_bytes=zeros,
        activation_bytes=zeros,
        memory_bytes=(1.0,),
        in_flight=mean_in_flight("zb-v"),
        stages_per_mesh=2,
        homes=partial(model_homes, "zb-v"),
    )
    plan = solve_sharing(problem, PlannerInput(8))
    sizes = [end - start for start, end, _ in plan.stages]
    assert max(sizes[mesh] + sizes[7 - mesh] for mesh in range(4)) == 3


@pytest.mark.parametrize("seed", range(12))
def test_devices_that_always_work_are_a_bound(seed: int) -> None:
    """Of every plan the busiest mesh works no less, and where only one mesh is possible, the bound
    is what it works."""
    problem = random_problem(seed, "interleaved:2")
    bound = least_busy_seconds(problem)
    for stages in all_plans(problem):
        meshes = len(stages) // 2
        busy = [
            sum(float(problem.seconds[s]) for s in stages[home::meshes]) for home in range(meshes)
        ]
        assert bound <= problem.num_microbatches * max(busy)
    whole = [o for o, c in enumerate(problem.configs) if c.num_devices == problem.total_devices]
    alone = replace(
        problem,
        configs=tuple(problem.configs[o] for o in whole),
        **{
            name: getattr(problem, name)[:, :, whole]
            for name in ("seconds", "forward_seconds", "fixed_bytes", "activation_bytes")
        },
    )
    least = min(
        sum(
            float(alone.seconds[i, j].min())
            for i, j in itertools.pairwise((0, *cuts, alone.num_layers))
        )
        for count in range(alone.num_layers)
        for cuts in itertools.combinations(range(1, alone.num_layers), count)
    )
    assert least_busy_seconds(alone) == pytest.approx(alone.num_microbatches * least)


@pytest.mark.parametrize(("each", "meshes", "microbatches"), [(2, 2, 4), (3, 4, 8), (4, 4, 16)])
def test_the_formula_is_the_simulated_step_of_equal_stages(
    each: int, meshes: int, microbatches: int
) -> None:
    stages = each * meshes
    seconds = np.broadcast_to(np.array(3.0), (stages + 1, stages + 1, 1)).copy()
    zeros = np.zeros_like(seconds)
    problem = StageProblem(
        num_layers=stages,
        configs=row(1),
        num_devices=(meshes,),
        num_microbatches=microbatches,
        seconds=seconds,
        forward_seconds=zeros,
        fixed_bytes=zeros,
        activation_bytes=zeros,
        memory_bytes=(1.0,),
        stages_per_mesh=each,
        homes=partial(model_homes, f"interleaved:{each}"),
    )
    formula = evaluate(problem, tuple((s, s + 1, 0) for s in range(stages))).seconds
    graph = chain_graph(stages)
    schedule = build_schedule(f"interleaved:{each}", stages, microbatches)
    durations = {task: 1.0 if task.kind == "F" else 2.0 for task in graph.tasks}
    assert simulate(schedule, graph, durations).makespan_seconds == pytest.approx(formula)


def test_stages_of_a_mesh_hold_as_much_on_average() -> None:
    counts = in_flight("dualpipe-v", 4, 8)
    mean = mean_in_flight("dualpipe-v")
    assert [mean(4 - stage, 4, 8) for stage in range(4)] == [
        -(-(counts[stage] + counts[3 - stage]) // 2) for stage in range(4)
    ]


def test_stages_on_two_meshes_share_their_memory() -> None:
    """Chimera's stage s of p is on mesh p - 1 - s, too."""
    counts = in_flight("chimera", 8, 4)
    mean = mean_in_flight("chimera")
    assert [mean(4 - stage, 4, 8) for stage in range(4)] == [
        -(-(counts[stage] + counts[7 - stage]) // 2) for stage in range(4)
    ]
    # The search for what lacks memory asks for any number of stages.
    assert mean(1, 3, 8) == 4
    with pytest.raises(UserError, match="'chimera' needs a multiple of 2 microbatches, got 3"):
        mean(1, 4, 3)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_plan_of_an_even_number_of_meshes(seed: int) -> None:
    problem = random_problem(seed, "chimera")
    plans = [
        evaluate(problem, stages).seconds for stages in all_plans(problem) if len(stages) % 2 == 0
    ]
    if not plans:
        with pytest.raises(UserError, match="no plan puts 1 stage on every mesh"):
            solve_sharing(problem, PlannerInput(), mesh_multiple=2)
        return
    plan = solve_sharing(problem, PlannerInput(), mesh_multiple=2)
    assert plan.seconds == pytest.approx(min(plans))
    assert is_plan(problem, plan.stages)


@pytest.mark.parametrize("streams", [1, 2])
def test_stages_that_share_memory_say_what_the_mesh_needs(streams: int) -> None:
    """With the bytes that the message names for a device there is a plan, with fewer there is none
    of equal shares."""
    problem = random_problem(3, "interleaved:2")
    shared_by = 2 * streams
    none = replace(problem, memory_bytes=(0.5,), fixed_bytes=problem.fixed_bytes + 1)
    with pytest.raises(UserError) as error:
        solve_sharing(none, PlannerInput(), streams=streams)
    told = re.search(
        rf"a device \({shared_by} bytes\), of which each of its {shared_by} stages has 1 bytes: .*; "
        r"the least that was found is (\d+) bytes$",
        str(error.value),
    )
    assert told is not None, error.value
    share = int(told[1]) // shared_by
    assert solve_sharing(replace(none, memory_bytes=(float(share),)), PlannerInput())
    with pytest.raises(UserError):
        solve_sharing(replace(none, memory_bytes=(share - 1.0,)), PlannerInput())


def test_what_cannot_be_laid_so_is_refused() -> None:
    problem = random_problem(0, "interleaved:2")
    devices, layers = problem.num_devices[0], problem.num_layers
    numbers = [2 * p for p in range(1, devices + 1) if devices % p == 0 and 2 * p <= layers]
    expected = rf"on {devices} devices?: .* there can be {' or '.join(map(str, numbers))} stages"
    for count in {*range(1, layers + 1)} - {*numbers}:
        with pytest.raises(UserError, match=rf"of {count} stages of .*{expected}$"):
            solve_sharing(problem, PlannerInput(count))
    two = [k for k, config in enumerate(problem.configs) if config.num_devices == 2]
    odd = replace(
        problem,
        configs=tuple(problem.configs[k] for k in two),
        num_devices=(3,),
        seconds=problem.seconds[:, :, two],
        forward_seconds=problem.forward_seconds[:, :, two],
        fixed_bytes=problem.fixed_bytes[:, :, two],
        activation_bytes=problem.activation_bytes[:, :, two],
    )
    with pytest.raises(UserError, match=r"on 3 devices: no number of meshes .* of 2 devices$"):
        solve_sharing(odd, PlannerInput())
    with pytest.raises(UserError, match="expected one host group"):
        solve_sharing(replace(problem, num_devices=(2, 2), memory_bytes=(1.0, 1.0)), PlannerInput())
    with pytest.raises(
        UserError,
        match="'interleaved:2' puts several stages on a mesh: expected inter-op=dp, found megatron",
    ):
        sharing_planner(find_planner("megatron"), "megatron", find_schedule("interleaved:2"))

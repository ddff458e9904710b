"""Baseline planners: each against brute force over its own space, and none better than the stage
DP."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.hardware.cluster_file import load_cluster
from shardopt.options.names import InterOp
from shardopt.passes.sharding.choose_shardings import ChooseShardings
from shardopt.passes.stages.choose_stages import ChooseStages
from shardopt.solve.presets.presets import PRESETS
from shardopt.solve.stages.baselines.mcmc import Moves
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.baselines.random_plans import RandomPlans
from shardopt.solve.stages.baselines.registry import INTER_OP, PLANNER_NAMES, find_planner
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    evaluate,
    stage_configs,
)
from shardopt.support.counts import counted
from shardopt.support.errors import UserError
from tests.draws import draws
from tests.unit.solve.stages.planner_problems import (
    Allowed,
    all_plans,
    fits,
    least,
    problems,
    random_costs,
)

HOST = load_cluster("cpu-test:1x4")
TWO_HOSTS = load_cluster("cpu-test:2x4")


def test_names_are_the_same_everywhere() -> None:
    passes = get_type_hints(ChooseStages)
    assert set(get_args(passes["inter_op"])) == set(PLANNER_NAMES)
    assert set(get_args(InterOp)) == set(INTER_OP)
    methods = set(PRESETS) - {"shardy"}  # which reads a module, not a stage
    assert set(get_args(passes["intra_op"])) == methods
    assert set(get_args(get_type_hints(ChooseShardings)["intra_op"])) == {*PRESETS, "auto"}
    for name in PLANNER_NAMES:
        assert {
            config.method for config in find_planner(name).configs(stage_configs(TWO_HOSTS))
        } <= methods
    with pytest.raises(
        UserError, match=r"unknown inter-op planner 'magic'; expected one of dp, .*mcmc"
    ):
        find_planner("magic")


# ---- what a stage may be ----


def spelled(name: str, configs: tuple[StageConfig, ...] | None = None) -> list[str]:
    return [
        str(config) for config in find_planner(name).configs(configs or stage_configs(TWO_HOSTS))
    ]


def test_options_of_each_planner() -> None:
    everything = [str(config) for config in stage_configs(TWO_HOSTS)]
    assert (
        spelled("dp")
        == spelled("mcmc")
        == spelled("intra-only")
        == spelled("equal-layer")
        == everything
    )
    assert spelled("inter-only") == ["1x1 as 1x1"]
    assert spelled("pp-dp") == [
        "1x1 as 1x1 by data",
        "1x2 as 1x2 by data",
        "1x4 as 1x4 by data",
        "2x4 as 1x8 by data",
        "2x4 as 2x4 by data",
    ]
    assert spelled("megatron") == spelled("piper")
    assert spelled("piper") == [
        "1x1 as 1x1 by data",
        "1x2 as 1x2 by data",
        "1x2 as 1x2 by megatron",
        "1x4 as 1x4 by data",
        "1x4 as 1x4 by megatron",
        "1x4 as 2x2 by megatron",
        "2x4 as 1x8 by data",  # eight-way tensor parallelism would leave the host
        "2x4 as 2x4 by megatron",
        "2x4 as 4x2 by megatron",
    ]
    [whole] = [config for config in stage_configs(TWO_HOSTS) if config.logical_shape == (2, 4)]
    assert spelled("deepspeed", (whole,)) == [
        f"2x4 as 2x4 by {method}"
        for method in (
            "data",
            "zero1",
            "zero2",
            "zero3",
            *(f"expert{zero}" for zero in ("", *ZEROS)),
        )
    ]


def test_tensor_parallel_groups_do_not_straddle_hosts() -> None:
    three = find_planner("piper").configs(stage_configs(load_cluster("cpu-test:3x4")))
    shapes = {o.logical_shape for o in three if o.num_devices == 12 and o.method == "megatron"}
    assert shapes == {(3, 4), (6, 2)}


ZEROS = ("-zero1", "-zero2", "-zero3")


@pytest.mark.parametrize("name", ["pp-dp", "megatron", "piper", "deepspeed"])
def test_planners_that_choose_the_method_do_not_take_another(name: str) -> None:
    with_method = [replace(config, method="zero3") for config in stage_configs(HOST)]
    with pytest.raises(UserError, match="expected intra-op=ilp, found zero3"):
        find_planner(name).configs(with_method)
    assert {config.method for config in find_planner("mcmc").configs(with_method)} == {"zero3"}


@pytest.mark.parametrize("name", ["intra-only", "deepspeed"])
def test_planners_of_one_stage_make_no_other_number(name: str) -> None:
    planner = find_planner(name)
    assert planner.request(name, PlannerInput()).num_stages == 1
    with pytest.raises(
        UserError, match=f"inter-op={name} makes one stage of all layers, found num-stages=2"
    ):
        planner.request(name, PlannerInput(2))


# ---- against brute force ----


def even(problem: StageProblem, stages: Stages) -> bool:
    spans = {(end - start, problem.configs[config].num_devices) for start, end, config in stages}
    return len(spans) == 1


def alike(problem: StageProblem, stages: Stages) -> bool:
    return even(problem, stages) and len({config for _, _, config in stages}) == 1


def one_stage(problem: StageProblem, stages: Stages) -> bool:
    return len(stages) == 1


SPACES: dict[str, Allowed | None] = {
    "dp": None,
    "inter-only": None,
    "intra-only": one_stage,
    "pp-dp": None,
    "megatron": alike,
    "deepspeed": one_stage,
    "piper": None,
    "equal-layer": even,
}


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=draws(30), deadline=None)
@given(st.data())
def test_agrees_with_brute_force_over_its_own_space(name: str, data: st.DataObject) -> None:
    planner, allowed = find_planner(name), SPACES[name]
    problem = data.draw(problems(planner))
    expected = least(problem, allowed) if allowed else least(problem)
    request = planner.request(name, PlannerInput())
    if expected is None:
        with pytest.raises(UserError, match=f"{counted(problem.num_layers, 'layer')} "):
            planner.solve(problem, request)
        return
    plan = planner.solve(problem, request)
    assert plan.seconds == pytest.approx(expected)
    assert plan.stages in set(all_plans(problem))
    assert fits(problem, plan.stages)
    assert allowed is None or allowed(problem, plan.stages)


def restricted(
    name: str, rng: np.random.Generator, layers: int, batches: int
) -> tuple[StageProblem, StageProblem]:
    """What the planner is given and what the stage DP is given: a method is one of the assignments
    of the solver."""
    free = stage_configs(TWO_HOSTS)
    whole = random_costs(free, (8,), layers, batches, rng, tight=False)
    chosen = find_planner(name).configs(free)
    of_free = [free.index(replace(config, method="ilp")) for config in chosen]
    slower = rng.uniform(1, 2, (layers + 1, layers + 1, len(chosen)))
    return (
        replace(
            whole,
            configs=chosen,
            seconds=whole.seconds[..., of_free] * slower,
            forward_seconds=whole.forward_seconds[..., of_free] * slower,
            fixed_bytes=whole.fixed_bytes[..., of_free] * slower,
            activation_bytes=whole.activation_bytes[..., of_free],
        ),
        whole,
    )


@pytest.mark.parametrize("name", PLANNER_NAMES)
@settings(max_examples=draws(25), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 8))
def test_no_baseline_is_better_than_the_stage_dp(
    name: str, seed: int, layers: int, batches: int
) -> None:
    baseline, whole = restricted(name, np.random.default_rng(seed), layers, batches)
    planner = find_planner(name)
    try:
        baseline = planner.solve(baseline, planner.request(name, PlannerInput(proposals=300)))
    except UserError:
        return
    assert solve_stages(whole).seconds <= baseline.seconds * (1 + 1e-12)


# ---- equal stages ----


def test_equal_stages_by_hand() -> None:
    """Stage seconds are layers / sqrt(devices): two stages of two devices, unless one stage is
    asked for."""
    configs = tuple(o for o in stage_configs(HOST) if o.logical_shape[0] == 1)
    problem = random_costs(configs, (4,), 4, 8, np.random.default_rng(0), tight=False)
    work = np.array([1.0, 2, 3, 4]).cumsum()
    span = np.subtract.outer(np.concatenate(([0], work)), np.concatenate(([0], work))).T
    seconds = span[:, :, None] / np.sqrt([o.num_devices for o in configs])
    problem = replace(problem, seconds=seconds, transfer_seconds=None)
    planner = find_planner("equal-layer")
    assert planner.solve(problem, PlannerInput(2)).stages == ((0, 2, 1), (2, 4, 1))
    assert planner.solve(problem, PlannerInput()).stages == tuple((k, k + 1, 0) for k in range(4))
    with pytest.raises(UserError, match="cannot be split evenly into 3 stages"):
        planner.solve(problem, PlannerInput(3))


# ---- the random walk ----


@settings(max_examples=draws(60), deadline=None)
@given(problems(), st.integers(0, 5), st.integers(0, 100))
def test_the_walk_gives_plans_that_fit_and_none_better_than_the_best(
    problem: StageProblem, seed: int, proposals: int
) -> None:
    planner, expected = find_planner("mcmc"), least(problem)
    request = PlannerInput(seed=seed, proposals=proposals)
    try:
        plan = planner.solve(problem, request)
    except UserError as error:
        assert expected is None or "looked at fits the memory" in str(error)
        return
    assert expected is not None and expected <= plan.seconds * (1 + 1e-12)
    assert fits(problem, plan.stages)
    assert plan == planner.solve(problem, request)


@pytest.mark.parametrize("seed", range(30))
def test_the_walk_reaches_the_optimum_of_small_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = load_cluster(("cpu-test:1x4", "cpu-test:2x2", "cpu-test:3x1")[seed % 3])
    configs = [
        replace(config, recompute=mode)
        for config in stage_configs(cluster)
        for mode in ("none", "full")
    ]
    problem = random_costs(
        configs, (cluster.num_devices,), 4, seed % 6 + 1, rng, tight=bool(seed % 2)
    )
    if least(problem) is None:  # without a limit there is always a plan here
        problem = replace(problem, memory_bytes=(1e9,))
    plan = find_planner("mcmc").solve(problem, PlannerInput(seed=seed, proposals=2000))
    assert plan.seconds == pytest.approx(least(problem))


def test_the_walk_nears_the_optimum_of_a_large_problem_and_keeps_to_a_number_of_stages() -> None:
    configs = stage_configs(TWO_HOSTS)
    problem = random_costs(configs, (8,), 16, 8, np.random.default_rng(3), tight=False)
    planner = find_planner("mcmc")
    best = solve_stages(problem).seconds
    few, many = (
        planner.solve(problem, PlannerInput(proposals=count)).seconds for count in (1, 5000)
    )
    assert best <= many < few
    assert len(planner.solve(problem, PlannerInput(3, proposals=500)).stages) == 3


@settings(max_examples=draws(100), deadline=None)
@given(problems(), st.integers(0, 1000), st.booleans())
def test_proposals_keep_the_exact_cover(problem: StageProblem, seed: int, may_cut: bool) -> None:
    plans, random = RandomPlans(problem, None), Random(seed)
    known = set(all_plans(replace(problem, seconds=np.ones_like(problem.seconds))))
    moves = Moves(problem, random, may_cut)
    if not plans.any:
        assert not list(all_plans(problem))
        return
    stages = plans.draw(random)
    for _ in range(50):
        proposed, _ = moves.propose(stages)
        assert proposed in known
        assert may_cut or len(proposed) == len(stages)
        stages = proposed


def test_plans_are_drawn_with_equal_probability() -> None:
    problem = random_costs(stage_configs(HOST), (4,), 4, 4, np.random.default_rng(1), tight=False)
    plans, random = RandomPlans(problem, None), Random(0)
    known = set(all_plans(problem))
    assert plans.counts[-1, 0, 4] == len(known) >= 10
    seen = Counter(plans.draw(random) for _ in range(200 * len(known)))
    assert set(seen) == known
    # Four standard deviations of 200 draws each.
    assert min(seen.values()) > 140 and max(seen.values()) < 260
    two = RandomPlans(problem, 2)
    assert two.counts[-1, 0, 4] == sum(len(stages) == 2 for stages in known)
    assert all(len(two.draw(random)) == 2 for _ in range(20))


def test_moves_there_and_back_have_the_stated_ratio() -> None:
    """Counted over many proposals between every two plans: the walk without energies would be
    uniform."""
    problem = random_costs(
        stage_configs(load_cluster("cpu-test:1x2")),
        (2,),
        3,
        2,
        np.random.default_rng(0),
        tight=False,
    )
    problem = replace(problem, seconds=np.ones_like(problem.seconds))
    moves = Moves(problem, Random(0), may_cut=True)
    count, known = 4000, sorted(all_plans(problem))
    seen: Counter[tuple[Stages, Stages]] = Counter()
    ratios: dict[tuple[Stages, Stages], float] = {}
    for stages in known:
        for _ in range(count):
            proposed, ratio = moves.propose(stages)
            seen[stages, proposed] += 1
            ratios[stages, proposed] = ratio
    pairs = [(a, b) for a, b in ratios if a < b]
    assert len(pairs) >= 3
    for a, b in pairs:
        assert ratios[b, a] == -ratios[a, b]
        assert seen[b, a] / seen[a, b] == pytest.approx(np.exp(ratios[a, b]), rel=0.25)


def test_plans_of_two_host_groups() -> None:
    """Groups of two and one device: the walk covers both exactly, as the stage DP does."""
    small = stage_configs(load_cluster("cpu-test:1x2"))
    configs = (*small, replace(small[0], group=1))
    problem = random_costs(configs, (2, 1), 3, 4, np.random.default_rng(5), tight=False)
    problem = replace(problem, seconds=np.where(np.isfinite(problem.seconds), problem.seconds, 9.0))
    plan = find_planner("mcmc").solve(problem, PlannerInput(proposals=1000))
    assert plan.seconds == pytest.approx(solve_stages(problem).seconds)
    assert {problem.configs[o].group for _, _, o in plan.stages} == {0, 1}
    assert evaluate(problem, plan.stages).seconds == plan.seconds
    assert all(before[1] == after[0] for before, after in pairwise(plan.stages))

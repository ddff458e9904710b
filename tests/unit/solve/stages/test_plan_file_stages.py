"""Stages that a file gives in parts: the best of all plans that it allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.planfile.parts import PlannedStage
from shardopt.solve.stages.search.plan_file_stages import (
    allows,
    allows_layers,
    candidate_filter,
    plan_file_devices,
    solve_plan_file,
)
from shardopt.solve.stages.stage_problem import (
    StageProblem,
    Stages,
    evaluate,
    one_f_one_b_in_flight,
    stage_configs,
    stage_memory_bytes,
    used_devices,
)
from shardopt.support.errors import UserError
from tests.draws import draws

CLUSTERS = tuple(
    load_cluster(spec) for spec in ("cpu-test:1x2", "cpu-test:2x2", "cpu-test:1x2+cpu-test:1x1")
)


def random_problem(cluster: Cluster, layers: int, batches: int, seed: int) -> StageProblem:
    rng, configs = np.random.default_rng(seed), stage_configs(cluster)
    shape = (layers + 1, layers + 1, len(configs))
    seconds, fixed, activations = (rng.integers(1, 9, shape).astype(float) for _ in range(3))
    seconds[rng.random(shape) < 0.2] = np.inf
    return StageProblem(
        num_layers=layers,
        configs=configs,
        num_devices=tuple(group.num_devices for group in cluster.groups),
        num_microbatches=batches,
        seconds=seconds,
        forward_seconds=seconds / 3,
        fixed_bytes=fixed,
        activation_bytes=activations,
        memory_bytes=tuple(float(rng.integers(8, 30)) for _ in cluster.groups),
        transfer_seconds=rng.integers(0, 4, (2, layers + 1)).astype(float),
        in_flight=one_f_one_b_in_flight,
    )


def all_plans(
    problem: StageProblem, stages: list[PlannedStage], cluster: Cluster
) -> Iterator[Stages]:
    """Every plan that fits, covers all devices and obeys the file."""

    def cuts(start: int, left: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if left == 0:
            if start == problem.num_layers:
                yield ()
            return
        for end in range(start + 1, problem.num_layers + 1):
            yield from (((start, end), *rest) for rest in cuts(end, left - 1))

    for spans in cuts(0, len(stages)):
        for chosen in product(range(len(problem.configs)), repeat=len(stages)):
            plan = tuple(
                (start, end, config) for (start, end), config in zip(spans, chosen, strict=True)
            )
            obeys = all(
                allows_layers(stage, start, end)
                and allows(stage, k, cluster, problem.configs[config])
                for k, (stage, (start, end, config)) in enumerate(zip(stages, plan, strict=True))
            )
            if (
                obeys
                and used_devices(problem, plan) == problem.num_devices
                and np.isfinite(sum(problem.seconds[cut] for cut in plan))
            ):
                needs = stage_memory_bytes(problem, plan)
                limits = (
                    problem.memory_bytes[problem.configs[config].group] for _, _, config in plan
                )
                if all(need <= limit for need, limit in zip(needs, limits, strict=True)):
                    yield plan


@settings(max_examples=draws(150), deadline=None)
@given(st.data())
def test_the_best_plan_that_the_file_allows_is_found(data: st.DataObject) -> None:
    cluster = data.draw(st.sampled_from(CLUSTERS))
    layers = data.draw(st.integers(1, 4))
    problem = random_problem(
        cluster, layers, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 10**6))
    )
    configs = st.sampled_from(problem.configs)
    stages = []
    for _ in range(data.draw(st.integers(1, min(layers, 3)))):
        config = data.draw(configs)
        stage = PlannedStage(
            group=cluster.groups[config.group].name if data.draw(st.booleans()) else None,
            submesh=(config.submesh.hosts, config.submesh.devices_per_host)
            if data.draw(st.booleans())
            else None,
            logical_shape=config.logical_shape if data.draw(st.booleans()) else None,
        )
        if data.draw(st.integers(0, 3)) == 0:
            first = data.draw(st.integers(0, layers - 1))
            stage = replace(stage, layers=(first, data.draw(st.integers(first, layers - 1))))
        stages.append(stage)
    best = min(
        (evaluate(problem, plan).seconds for plan in all_plans(problem, stages, cluster)),
        default=None,
    )
    if best is None:
        with pytest.raises(UserError, match="no plan has the"):
            solve_plan_file(problem, stages, cluster)
        return
    plan = solve_plan_file(problem, stages, cluster)
    assert plan.seconds == pytest.approx(best)
    assert plan.stages in set(all_plans(problem, stages, cluster))
    is_allowed = candidate_filter(stages, cluster)
    assert is_allowed is not None and all(
        is_allowed(i, j, problem.configs[config]) for i, j, config in plan.stages
    )


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([(0,), None], "expected devices in all stages or in none, found them in 1"),
        ([(0, 1), (1, 2)], "field 'stages.1..devices': device 1 is in stage 0, too"),
        ([(0, 0), (1, 2)], "field 'stages.0..devices': expected every device once, found 0, 0"),
        ([(0, 1), (2,)], "field 'stages.0..devices': expected 1 devices, found 2"),
        (
            [(0,), (7,)],
            "field 'stages.1..devices': expected devices of host group cpu-test:2x2, found 7",
        ),
    ],
)
def test_devices_must_be_those_of_the_stages(
    devices: list[tuple[int, ...] | None], message: str
) -> None:
    cluster = CLUSTERS[1]
    one, two = (
        next(config for config in stage_configs(cluster) if config.num_devices == size)
        for size in (1, 2)
    )
    configs = [
        two if ids is not None and len(ids) == 2 and len(devices[1] or ()) == 2 else one
        for ids in devices
    ]
    with pytest.raises(UserError, match=message):
        plan_file_devices([PlannedStage(devices=ids) for ids in devices], configs, cluster)


def test_stages_with_the_same_devices_share_a_mesh() -> None:
    one = stage_configs(CLUSTERS[1])[0]
    devices = ((0,), (1,), (0,))
    assert (
        plan_file_devices([PlannedStage(devices=ids) for ids in devices], [one] * 3, CLUSTERS[1])
        == devices
    )

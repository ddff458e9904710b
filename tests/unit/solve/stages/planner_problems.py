"""Random stage problems, and all their plans from the definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.stages.baselines.planner import BaselinePlanner
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    evaluate,
    gpipe_in_flight,
    held_copies,
    one_f_one_b_in_flight,
    stage_configs,
)

Allowed = Callable[[StageProblem, Stages], bool]


def all_plans(
    problem: StageProblem, start: int = 0, free: tuple[int, ...] | None = None
) -> Iterator[Stages]:
    """Every exact cover of layers and devices by stages of finite time."""
    free = problem.num_devices if free is None else free
    if start == problem.num_layers:
        yield from [()] * (not any(free))
        return
    for end, (o, config) in itertools.product(
        range(start + 1, problem.num_layers + 1), enumerate(problem.configs)
    ):
        left = tuple(
            count - config.num_devices * (group == config.group) for group, count in enumerate(free)
        )
        if min(left) >= 0 and math.isfinite(problem.seconds[start, end, o]):
            yield from (((start, end, o), *rest) for rest in all_plans(problem, end, left))


def fits(problem: StageProblem, stages: Stages) -> bool:
    copies = held_copies(problem, len(stages))[::-1]
    return all(
        problem.fits(held, start, end)[o]
        for (start, end, o), held in zip(stages, copies, strict=True)
    )


def least(problem: StageProblem, allowed: Allowed = lambda problem, stages: True) -> float | None:
    """The shortest step of the plans that fit and are allowed; None where there is none."""
    steps = [
        evaluate(problem, p).seconds
        for p in all_plans(problem)
        if allowed(problem, p) and fits(problem, p)
    ]
    return min(steps, default=None)


@st.composite
def problems(draw: st.DrawFn, planner: BaselinePlanner | None = None) -> StageProblem:
    """Stage costs of all stages on a small cluster, of the configs that a planner has a use for."""
    cluster = load_cluster(f"cpu-test:{draw(st.sampled_from(['1x1', '1x2', '1x4', '2x2', '3x1']))}")
    kinds = [
        replace(config, recompute=mode)
        for config in stage_configs(cluster)
        for mode in ("none", "full")
    ]
    configs = tuple(kinds) if planner is None else planner.configs(kinds)
    if planner is not None and planner.one_stage:
        configs = tuple(config for config in configs if config.num_devices == cluster.num_devices)
    layers, rng = draw(st.integers(1, 4)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_costs(
        configs or kinds,
        (cluster.num_devices,),
        layers,
        draw(st.integers(1, 6)),
        rng,
        draw(st.booleans()),
    )


def random_costs(
    configs: tuple[StageConfig, ...] | list[StageConfig],
    devices: tuple[int, ...],
    layers: int,
    batches: int,
    rng: np.random.Generator,
    tight: bool,
) -> StageProblem:
    """Random costs; equal ones for configs that agree in everything, so that restrictions can be
    compared."""
    shape = (layers + 1, layers + 1, len(configs))
    seconds = rng.uniform(0.1, 5, shape)
    seconds[rng.random(shape) < 0.1] = np.inf
    fixed = rng.integers(0, 4, shape).astype(float)
    activations = rng.integers(0, 3, shape).astype(float)
    in_flight = one_f_one_b_in_flight if rng.random() < 0.5 else gpipe_in_flight
    return StageProblem(
        num_layers=layers,
        configs=tuple(configs),
        num_devices=devices,
        num_microbatches=batches,
        seconds=seconds,
        forward_seconds=0.4 * seconds,
        fixed_bytes=fixed,
        activation_bytes=activations,
        memory_bytes=(4.0 if tight else 1e9,) * len(devices),
        transfer_seconds=rng.uniform(0, 1, (2, layers + 1)),
        in_flight=in_flight,
    )

"""Small stage problems with every feature, and all their plans from the definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardopt.hardware.cluster import Submesh
from shardopt.schedule.builders.pipedream import pipedream_2bw_ages, pipedream_ages
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageConfig,
    StageProblem,
    Stages,
    gpipe_in_flight,
    one_f_one_b_in_flight,
)


def row(*sizes: int) -> tuple[StageConfig, ...]:
    return tuple(StageConfig(size, Submesh(1, size), (1, size)) for size in sizes)


def additive(
    layers: list[float], sizes: tuple[int, ...], devices: int, batches: int, exponent: float
) -> StageProblem:
    """Stage seconds are the layers' sum / devices ** exponent; no memory."""
    prefix = np.concatenate(([0.0], np.cumsum(layers)))
    seconds = (prefix[None, :] - prefix[:, None])[:, :, None] / np.array(
        sizes, dtype=float
    ) ** exponent
    zeros = np.zeros_like(seconds)
    return StageProblem(
        num_layers=len(layers),
        configs=row(*sizes),
        num_devices=(devices,),
        num_microbatches=batches,
        seconds=seconds,
        forward_seconds=zeros,
        fixed_bytes=zeros,
        activation_bytes=zeros,
        memory_bytes=(1.0,),
    )


def all_plans(problem: StageProblem, num_stages: int | None = None) -> Iterator[Stages]:
    """All cuts and configs that use all devices and fit the memory, from the definition."""
    layers = problem.num_layers
    for count in range(1, layers + 1) if num_stages is None else (num_stages,):
        counts = [
            problem.in_flight(count - k, count, problem.num_microbatches) for k in range(count)
        ]
        ages = problem.weight_ages(count) if problem.weight_ages is not None else (0,) * count
        weights = (
            problem.weight_bytes
            if problem.weight_bytes is not None
            else np.zeros_like(problem.seconds)
        )
        for inner in itertools.combinations(range(1, layers), count - 1):
            pairs = list(itertools.pairwise((0, *inner, layers)))
            for chosen in itertools.product(range(len(problem.configs)), repeat=count):
                used = [0] * len(problem.num_devices)
                for o in chosen:
                    used[problem.configs[o].group] += problem.configs[o].num_devices
                if tuple(used) == problem.num_devices and all(
                    problem.fixed_bytes[i, j, o]
                    + n * problem.activation_bytes[i, j, o]
                    + age * weights[i, j, o]
                    <= problem.memory_bytes[problem.configs[o].group]
                    for (i, j), o, n, age in zip(pairs, chosen, counts, ages, strict=True)
                ):
                    yield tuple((i, j, o) for (i, j), o in zip(pairs, chosen, strict=True))


def step_seconds(problem: StageProblem, stages: Stages) -> float:
    cuts = (
        np.zeros((2, problem.num_layers + 1))
        if problem.transfer_seconds is None
        else problem.transfer_seconds
    )
    stages_seconds = [float(problem.seconds[stage]) for stage in stages]
    cut_seconds = [float(cuts[row, start]) for start, _, _ in stages[1:] for row in (0, 1)]
    longest = (
        (problem.num_microbatches - 1) * max(stages_seconds + cut_seconds)
        if problem.num_microbatches > 1
        else 0.0
    )
    return sum(stages_seconds + cut_seconds) + longest


def brute_force(problem: StageProblem, num_stages: int | None) -> float | None:
    """Least step time over all plans."""
    seconds = [step_seconds(problem, stages) for stages in all_plans(problem, num_stages)]
    return min((each for each in seconds if math.isfinite(each)), default=None)


def interleaved_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """A count that depends on the number of stages, unlike 1F1B and GPipe."""
    return min(num_microbatches, stage_from_end + num_stages / 2)


def one_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    return 1


def later_stages_hold_more(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """Counts that fall towards the begin of the pipeline."""
    return max(1, num_microbatches - stage_from_end)


SCHEDULES: tuple[InFlight, ...] = (
    one_f_one_b_in_flight,
    gpipe_in_flight,
    interleaved_in_flight,
    one_in_flight,
    later_stages_hold_more,
)


def random_problem(seed: int) -> tuple[StageProblem, int | None]:
    """Up to four layers, three sizes in up to two host groups, variants, transfers, any schedule,
    also with older versions of weights, infeasible stages."""
    rng = np.random.default_rng(seed)
    groups, layers = int(rng.choice([1, 1, 2])), int(rng.integers(1, 5))
    devices = tuple(int(rng.integers(1, 6 if groups == 1 else 4)) for _ in range(groups))
    configs = tuple(
        StageConfig(
            size := int(rng.choice([1, 2, 4])),
            Submesh(1, size),
            (1, size),
            int(rng.integers(groups)),
            recompute,
        )
        for recompute in rng.choice(["none", "selective", "layer", "full"], int(rng.integers(1, 6)))
    )
    shape = (layers + 1, layers + 1, len(configs))
    whole = rng.random() < 0.5  # whole numbers tie often
    seconds = rng.integers(1, 6, shape).astype(float) if whole else rng.uniform(0.1, 5, shape)
    seconds[rng.random(shape) < rng.choice([0.0, 0.2])] = np.inf
    problem = StageProblem(
        num_layers=layers,
        configs=configs,
        num_devices=devices,
        num_microbatches=int(rng.integers(1, 9)),
        seconds=seconds,
        forward_seconds=seconds / 3,
        fixed_bytes=rng.integers(0, 4, shape).astype(float),
        activation_bytes=rng.integers(0, 3, shape).astype(float),
        memory_bytes=tuple(float(rng.choice([3.0, 6.0, 1e9])) for _ in devices),
        transfer_seconds=rng.uniform(0, 2, (2, layers + 1)) if rng.random() < 0.5 else None,
        in_flight=SCHEDULES[int(rng.integers(len(SCHEDULES)))],
    )
    if problem.in_flight is one_f_one_b_in_flight and seed % 2:
        ages = (pipedream_ages, pipedream_2bw_ages)[seed // 2 % 2]
        weights = np.random.default_rng(seed).integers(0, 2, shape).astype(float)
        problem = replace(problem, weight_ages=ages, weight_bytes=weights)
    forced = int(rng.integers(1, problem.most_stages + 1)) if rng.random() < 0.3 else None
    return problem, forced

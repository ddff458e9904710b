"""How long the stage DP takes, on random prices that look like those of a transformer.

    python benchmarks/solve/stage_dp.py [--quick]

Options are all submeshes of 8 hosts with 8 devices in all logical shapes, each in three ways to
recompute. Tight memory makes the number of stages matter. Seconds are of the processor, the best of
three calls; the first also loads compiled code. The last two columns start from the optimum, and
look for eight plans."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import TypeVar

import numpy as np

from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.stages.dp.best_plans import best_plans
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import (
    Recompute,
    StageProblem,
    gpipe_in_flight,
    stage_configs,
)

Answer = TypeVar("Answer")

# How much slower a stage gets, and which share of its activations it keeps.
RECOMPUTED: dict[Recompute, tuple[float, float]] = {
    "none": (1.0, 1.0),
    "layer": (1.25, 0.3),
    "full": (1.33, 0.05),
}


def random_problem(layers: int, microbatches: int, memory: float, groups: int = 1) -> StageProblem:
    """Layers of about one second on one device, whose speed grows with the 0.8th power of the
    devices."""
    rng = np.random.default_rng(0)
    base = stage_configs(load_cluster(f"p3.16xlarge:{8 // groups}x8"))
    configs = tuple(
        replace(config, group=group, recompute=mode)
        for group in range(groups)
        for config in base
        for mode in RECOMPUTED
    )
    devices = np.array([config.num_devices for config in configs])
    slower, kept = (
        np.array([RECOMPUTED[config.recompute][k] for config in configs]) for k in (0, 1)
    )
    older = 1 + 0.5 * np.array([config.group for config in configs])
    prefix = np.concatenate(([0.0], rng.uniform(0.5, 1.5, layers).cumsum()))
    span = (prefix[None, :] - prefix[:, None])[:, :, None]
    noise = rng.uniform(1, 1.3, len(configs)) * rng.uniform(
        1, 1.02, (layers + 1, layers + 1, len(configs))
    )
    seconds = span / devices**0.8 * slower * older * noise
    return StageProblem(
        num_layers=layers,
        configs=configs,
        num_devices=(64 // groups,) * groups,
        num_microbatches=microbatches,
        seconds=seconds,
        forward_seconds=seconds / 3,
        fixed_bytes=span / devices,
        activation_bytes=0.2 * span / devices * kept,
        memory_bytes=(memory,) * groups,
        transfer_seconds=np.full((2, layers + 1), 0.02),
    )


def cases(quick: bool) -> dict[str, StageProblem]:
    if quick:
        return {
            "16 layers": random_problem(16, 64, 1e9),
            "16 layers, tight": random_problem(16, 64, 1.5),
        }
    tight = random_problem(48, 64, 2.0)
    return {
        "16 layers": random_problem(16, 64, 1e9),
        "16 layers, tight": random_problem(16, 64, 1.5),
        "32 layers, tight": random_problem(32, 64, 2.0),
        "48 layers": random_problem(48, 64, 1e9),
        "48 layers, tight": tight,
        "48 layers, very tight": random_problem(48, 64, 1.3),
        "48 layers, tight, 1024 microbatches": random_problem(48, 1024, 2.0),
        "48 layers, tight, GPipe": replace(tight, in_flight=gpipe_in_flight),
        "48 layers, tight, two host groups": random_problem(48, 64, 2.0, groups=2),
    }


def least_of(runs: int, call: Callable[[], Answer]) -> tuple[float, Answer]:
    """The least seconds of some calls, and the last answer."""
    least = float("inf")
    for _ in range(runs):
        start = process_time()
        answer = call()
        least = min(least, process_time() - start)
    return least, answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the stage DP.")
    parser.add_argument("--quick", action="store_true", help="two small problems only")
    args = parser.parse_args()
    print(
        f"{'problem':<40}{'configs':>8}{'stages':>8}{'t_max':>7}"
        f"{'solve':>10}{'warm':>10}{'8 best':>10}"
    )
    for name, problem in cases(args.quick).items():
        seconds, plan = least_of(3, lambda problem=problem: solve_stages(problem))
        with_incumbent, _ = least_of(
            3, lambda problem=problem, plan=plan: solve_stages(problem, None, plan.stages)
        )
        best, _ = least_of(1, lambda problem=problem: best_plans(problem, 8))
        print(
            f"{name:<40}{len(problem.configs):>8}{len(plan.stages):>8}{plan.evaluations:>7}", end=""
        )
        print("".join(f"{each * 1e3:>7.0f} ms" for each in (seconds, with_incumbent, best)))


if __name__ == "__main__":
    main()

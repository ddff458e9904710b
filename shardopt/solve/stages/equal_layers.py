"""Baseline: stages of equally many layers on equally many devices, the best option for each."""

from __future__ import annotations

from shardopt.cost.errors import UserError
from shardopt.solve.stages.stage_problem import StageProblem, Stages, StageSolution, evaluate, in_flight_counts


def equal_layer_stages(problem: StageProblem, num_stages: int | None = None) -> StageSolution:
    """Equal layers and equal devices a stage, the best option for each, the best even `num_stages`.

    Raises UserError if no (or not the given) number of stages divides layers and devices and fits the memory.
    """
    layers, devices = problem.num_layers, problem.total_devices
    counts = range(1, problem.most_stages + 1) if num_stages is None else (num_stages,)
    even = [n for n in counts if n > 0 and layers % n == 0 and devices % n == 0]
    plans = [evaluate(problem, stages) for n in even if (stages := _even_stages(problem, n)) is not None]
    if not plans:
        wanted = "any number of" if num_stages is None else str(num_stages)
        raise UserError(f"{layers} layers on {devices} devices cannot be split evenly into {wanted} stages that fit")
    return min(plans, key=lambda plan: plan.seconds)


def _even_stages(problem: StageProblem, count: int) -> Stages | None:
    """Host groups are used up in order; None where a stage would need devices of two."""
    per_stage, devices = problem.num_layers // count, problem.total_devices // count
    if any(size % devices for size in problem.num_devices):
        return None
    groups = [group for group, size in enumerate(problem.num_devices) for _ in range(size // devices)]
    stages = []
    for index, (group, held) in enumerate(zip(groups, in_flight_counts(problem, count)[::-1], strict=True)):
        start, end = index * per_stage, (index + 1) * per_stage
        fits = problem.fits(held, start, end)
        chosen = [
            o
            for o, option in enumerate(problem.options)
            if fits[o] and option.num_devices == devices and option.group == group
        ]
        if not chosen:
            return None
        stages.append((start, end, min(chosen, key=lambda o: float(problem.seconds[start, end, o]))))
    return tuple(stages)

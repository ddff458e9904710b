"""Baselines whose stages have equally many layers and devices: `equal-layer`, `equal-op` and the
grid of Megatron-LM.

* `equal-layer`: the best config for each stage; with layers of equally many operations this is
  `equal-op`.
* `megatron` (Narayanan et al., SC'21, arXiv 2104.04473): every (dp, tp, pp) with dp · tp · pp
  devices and pp equal stages, all of them sharded alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shardopt.solve.stages.baselines.grid import data_or_tensor
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput, with_methods
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
)
from shardopt.support.counts import counted
from shardopt.support.errors import UserError


def equal_layer_stages(problem: StageProblem, request: PlannerInput) -> StageSolution:
    """Equal layers and equal devices a stage, the best config for each, the best even number of
    stages.

    Raises UserError if no (or not the given) number of stages divides layers and devices and fits
    the memory."""
    return _best_even(problem, request)


def megatron_stages(problem: StageProblem, request: PlannerInput) -> StageSolution:
    """As `equal_layer_stages`, with one config for all stages."""
    alike: dict[StageConfig, list[int]] = {}
    for index, config in enumerate(problem.configs):
        # What a config recomputes may differ from stage to stage, and so may the host group.
        alike.setdefault(replace(config, group=0), []).append(index)
    return _best_even(problem, request, alike.values())


def _megatron_configs(configs: Iterable[StageConfig]) -> tuple[StageConfig, ...]:
    return with_methods(configs, data_or_tensor)


EQUAL_LAYER = BaselinePlanner(equal_layer_stages)
MEGATRON = BaselinePlanner(megatron_stages, _megatron_configs)


def even_plans(
    problem: StageProblem, num_stages: int | None, choices: Iterable[Sequence[int]] | None = None
) -> Iterator[StageSolution]:
    """For every even number of stages, or the one asked for, the plan that takes the best configs
    of each of `choices`, by default of all."""
    layers, devices = problem.num_layers, problem.total_devices
    counts = range(1, problem.most_stages + 1) if num_stages is None else (num_stages,)
    even = [n for n in counts if n > 0 and layers % n == 0 and devices % n == 0]
    rows = [range(len(problem.configs))] if choices is None else [*choices]
    candidates = (_even_stages(problem, n, configs) for n in even for configs in rows)
    yield from (evaluate(problem, stages) for stages in candidates if stages is not None)


def _best_even(
    problem: StageProblem,
    request: PlannerInput,
    choices: Iterable[Sequence[int]] | None = None,
) -> StageSolution:
    """The best plan whose stages take their configs from one of `choices`, by default of all."""
    plans = [*even_plans(problem, request.num_stages, choices)]
    if not plans:
        number = request.num_stages
        how_many = "any number of stages" if number is None else counted(number, "stage")
        raise UserError(
            f"{counted(problem.num_layers, 'layer')} on "
            f"{counted(problem.total_devices, 'device')} cannot be split "
            f"evenly into {how_many} that fit"
        )
    return min(plans, key=lambda plan: plan.seconds)


def _even_stages(problem: StageProblem, count: int, configs: Sequence[int]) -> Stages | None:
    """Host groups are used up in order; None where a stage would need devices of two."""
    per_stage, devices = problem.num_layers // count, problem.total_devices // count
    if any(size % devices for size in problem.num_devices):
        return None
    groups = [
        group for group, size in enumerate(problem.num_devices) for _ in range(size // devices)
    ]
    stages = []
    for index, (group, copies) in enumerate(
        zip(groups, held_copies(problem, count)[::-1], strict=True)
    ):
        start, end = index * per_stage, (index + 1) * per_stage
        # Memory is checked per place in the pipeline: the first stages hold the most microbatches.
        fits = problem.fits(copies, start, end)
        chosen = [
            c
            for c in configs
            if fits[c]
            and problem.configs[c].num_devices == devices
            and problem.configs[c].group == group
        ]
        if not chosen:
            return None
        stages.append(
            (start, end, min(chosen, key=lambda c: float(problem.seconds[start, end, c])))
        )
    return tuple(stages)

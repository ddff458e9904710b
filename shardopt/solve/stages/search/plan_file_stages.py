"""Stages that a plan file fixes in whole or in part.

What the file leaves open (layers, submesh, logical shape) is chosen for the same objective as in
the stage DP, T = sum of t_i + (B - 1) · max t_i, but the k-th stage only has the choices that the
k-th entry of the file leaves:

    F(k, i, used) = min over j, config of t(i, j, config) + F(k + 1, j, used + devices of the
    config)

This gives the least sum under a bound of the maximum. The bound is infinite at first, and then the
maximum of the plan before, which the next plan must stay below. The best of these plans is the best
of all: any plan with a smaller sum than one of them has a maximum of its bound or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from shardopt.hardware.cluster import Cluster
from shardopt.planfile.parts import PlannedStage
from shardopt.solve.stages.baselines.planner import BaselinePlanner
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
)
from shardopt.support.errors import UserError

Cut = tuple[int, int, StageConfig]  # (first layer, layer after the last, config)


def fixed_stages(
    file_stages: Sequence[PlannedStage], num_layers: int, cluster: Cluster
) -> tuple[Cut, ...] | None:
    """The stages, if the file leaves nothing open. Raises UserError where they do not cover the
    layers."""
    if not file_stages or not all(stage.is_fixed for stage in file_stages):
        return None
    cuts, behind = [], 0
    for k, stage in enumerate(file_stages):
        assert stage.layers is not None
        first, last = stage.layers
        if first != behind or last < first:
            raise UserError(
                f"field 'stages[{k}].layers': expected layers from {behind} on, found "
                f"{first} to {last}"
            )
        behind = last + 1
        cuts.append((first, behind, _config(stage, k, cluster)))
    if behind != num_layers:
        raise UserError(f"field 'stages': expected all {num_layers} layers, found {behind}")
    return tuple(cuts)


def _config(stage: PlannedStage, k: int, cluster: Cluster) -> StageConfig:
    submesh, shape = stage.place(), stage.logical_shape
    assert submesh is not None and shape is not None
    if prod(shape) != submesh.num_devices:
        raise UserError(
            f"field 'stages[{k}].logical_shape': expected a shape of the {submesh.num_devices} "
            f"devices of submesh {submesh}, found {'x'.join(map(str, shape))}"
        )
    return StageConfig(
        submesh.num_devices,
        submesh,
        shape,
        group_number(stage, k, cluster),
        stage.recompute or "none",
        method=stage.intra_op or "ilp",
        offload=stage.offload or "none",
    )


def group_number(stage: PlannedStage, k: int, cluster: Cluster) -> int:
    """Raises UserError for a group that the cluster does not have."""
    names = [group.name for group in cluster.groups]
    if stage.group is None:
        return 0 if stage.devices is None else cluster.group_index(stage.devices[0])
    if stage.group not in names:
        raise UserError(
            f"field 'stages[{k}].group': expected one of {', '.join(names)}, found '{stage.group}'"
        )
    return names.index(stage.group)


def allows(stage: PlannedStage, k: int, cluster: Cluster, config: StageConfig) -> bool:
    """Whether the file leaves the k-th stage a config, whatever it recomputes and offloads."""
    return (
        (stage.submesh is None or stage.place() == config.submesh)
        and (stage.logical_shape is None or stage.logical_shape == config.logical_shape)
        and (stage.devices is None or len(stage.devices) == config.num_devices)
        and (stage.intra_op is None or stage.intra_op == config.method)
        and (
            (stage.group is None and stage.devices is None)
            or group_number(stage, k, cluster) == config.group
        )
    )


def allows_layers(stage: PlannedStage, start: int, end: int) -> bool:
    return stage.layers is None or stage.layers == (start, end - 1)


def with_plan_file_configs(
    configs: Sequence[StageConfig], file_stages: Sequence[PlannedStage]
) -> tuple[StageConfig, ...]:
    """The configs, and those with the methods and logical shapes that the file names."""
    methods = [stage.intra_op for stage in file_stages if stage.intra_op is not None]
    with_methods = (
        *configs,
        *(replace(config, method=name) for name in methods for config in configs),
    )
    shapes = [stage.logical_shape for stage in file_stages if stage.logical_shape is not None]
    shaped = (
        replace(config, logical_shape=shape)
        for shape in shapes
        for config in with_methods
        if prod(shape) == config.num_devices
    )
    return tuple(dict.fromkeys((*with_methods, *shaped)))


def candidate_filter(
    file_stages: Sequence[PlannedStage], cluster: Cluster
) -> Callable[[int, int, StageConfig], bool] | None:
    """Which candidates (first layer, layer after the last, config) a plan with these stages can
    have."""
    if not file_stages:
        return None

    def is_allowed(start: int, end: int, config: StageConfig) -> bool:
        return any(
            allows_layers(stage, start, end) and allows(stage, k, cluster, config)
            for k, stage in enumerate(file_stages)
        )

    return is_allowed


def plan_file_devices(
    file_stages: Sequence[PlannedStage], chosen: Sequence[StageConfig], cluster: Cluster
) -> tuple[tuple[int, ...], ...] | None:
    """The devices of every stage, if the file names them; stages with the same ones share a mesh.
    Raises UserError where they are not what the stages need."""
    named = [(k, stage.devices) for k, stage in enumerate(file_stages) if stage.devices is not None]
    if not named:
        return None
    if len(named) < len(file_stages):
        raise UserError(
            f"field 'stages': expected devices in all stages or in none, found them in {len(named)}"
        )
    owner: dict[int, int] = {}
    for k, devices in named:
        config, path = chosen[k], f"stages[{k}].devices"
        if len(devices) != config.num_devices:
            raise UserError(
                f"field '{path}': expected {config.num_devices} devices, found {len(devices)}"
            )
        for device in devices:
            if not 0 <= device < cluster.num_devices or cluster.group_index(device) != config.group:
                group = cluster.groups[config.group]
                raise UserError(
                    f"field '{path}': expected devices of host group {group}, found {device}"
                )
            if owner.setdefault(device, k) != k and file_stages[owner[device]].devices != devices:
                raise UserError(f"field '{path}': device {device} is in stage {owner[device]}, too")
        if len(set(devices)) != len(devices):
            raise UserError(
                f"field '{path}': expected every device once, found {', '.join(map(str, devices))}"
            )
    return tuple(devices for _, devices in named)


def plan_file_planner(
    planner: BaselinePlanner, file_stages: Sequence[PlannedStage], cluster: Cluster
) -> BaselinePlanner:
    """A planner with the configs of another one that keeps to the stages of the file."""
    return replace(
        planner,
        solve=lambda problem, _: solve_plan_file(problem, file_stages, cluster),
        one_stage=False,
        by_dp=False,
    )


def solve_plan_file(
    problem: StageProblem, file_stages: Sequence[PlannedStage], cluster: Cluster
) -> StageSolution:
    """The best plan of as many stages as the file has. Raises UserError where there is none."""
    tables = [
        _table(problem, stage, k, len(file_stages), cluster) for k, stage in enumerate(file_stages)
    ]
    best, bound = None, np.inf
    while (stages := _shortest(problem, tables, bound)) is not None:
        plan = evaluate(problem, stages, "optimal")
        if best is None or plan.seconds < best.seconds:
            best = plan
        # A plan of a larger sum pays off only with a smaller maximum, so look strictly below this
        # one.
        bound = plan.slot_seconds
    if best is None:
        raise UserError(
            f"no plan has the {len(file_stages)} stages of the plan file: "
            f"{_reason(problem, tables)}"
        )
    return replace(best, bound=best.seconds)


def _table(
    problem: StageProblem, stage: PlannedStage, k: int, count: int, cluster: Cluster
) -> np.ndarray:
    """Seconds of every interval and config as the k-th stage, inf where it may not be: `[L + 1, L +
    1, O]`."""
    copies = held_copies(problem, count)[::-1][k]
    modes = {config.recompute for config in problem.configs}
    offloads = {config.offload for config in problem.configs}
    configs = np.array(
        [
            allows(stage, k, cluster, config)
            and (stage.recompute not in modes or config.recompute == stage.recompute)
            and (stage.offload not in offloads or config.offload == stage.offload)
            for config in problem.configs
        ]
    )
    table = np.full(problem.seconds.shape, np.inf)
    for start in range(problem.num_layers):
        for end in range(start + 1, problem.num_layers + 1):
            if allows_layers(stage, start, end):
                fits = problem.fits(copies, start, end) & configs
                table[start, end] = np.where(fits, problem.seconds[start, end], np.inf)
    return table


def _shortest(problem: StageProblem, tables: Sequence[np.ndarray], bound: float) -> Stages | None:
    """The plan of the least sum whose stages and cuts all take less than `bound`."""
    cuts, goal = problem.cut_seconds(), tuple(problem.num_devices)
    reached: dict[tuple[int, tuple[int, ...]], tuple[float, Stages]] = {
        (0, (0,) * len(goal)): (0.0, ())
    }
    for table in tables:
        following: dict[tuple[int, tuple[int, ...]], tuple[float, Stages]] = {}
        for (start, used), (spent, stages) in reached.items():
            if cuts[1, start] >= bound:
                continue
            for end, config, seconds in _choices(problem, table, start, bound):
                place = problem.configs[config]
                taken = tuple(
                    n + place.num_devices * (g == place.group) for g, n in enumerate(used)
                )
                total = spent + float(cuts[0, start]) + seconds
                if (
                    all(n <= limit for n, limit in zip(taken, goal, strict=True))
                    and total < following.get((end, taken), (np.inf,))[0]
                ):
                    following[end, taken] = total, (*stages, (start, end, config))
        reached = following
    return reached[problem.num_layers, goal][1] if (problem.num_layers, goal) in reached else None


def _choices(
    problem: StageProblem, table: np.ndarray, start: int, bound: float
) -> Iterator[tuple[int, int, float]]:
    """(end, config, seconds): of each end and number of devices the fastest."""
    for end in range(start + 1, problem.num_layers + 1):
        fastest: dict[tuple[int, int], tuple[float, int]] = {}
        for config in np.flatnonzero(table[start, end] < bound).tolist():
            place, seconds = problem.configs[config], float(table[start, end, config])
            # What follows depends on the devices in use alone, not on how these are arranged.
            key = place.group, place.num_devices
            fastest[key] = min(fastest.get(key, (np.inf, -1)), (seconds, config))
        yield from ((end, config, seconds) for seconds, config in fastest.values())


def _reason(problem: StageProblem, tables: Sequence[np.ndarray]) -> str:
    for k, table in enumerate(tables):
        if not np.isfinite(table).any():
            return (
                f"stage {k} has no layers and submesh that fit its device memory and "
                "what the file says"
            )
    devices = " + ".join(map(str, problem.num_devices))
    return f"they do not cover {problem.num_layers} layers and {devices} devices"

"""Stages that a plan file gives in whole or in part.

What is open of a stage (its layers, its submesh, its logical shape) is chosen as the stage DP does,
T = sum of t_i + (B - 1) · max t_i, but the k-th stage only has the choices that the k-th entry of
the file leaves it:

    F(k, i, used) = min over j, option of t(i, j, option) + F(k + 1, j, used + devices of the
    option)

The maximum is bounded from above, at first not at all, then by less than that of the plan before:
the best of these plans is the best of all, since a plan with a smaller sum has a larger maximum
than the bound it was found under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from shardopt.hardware.cluster import Cluster
from shardopt.planfile.parts import PlannedStage
from shardopt.solve.stages.baselines.planner import Planner
from shardopt.solve.stages.stage_problem import (
    StageOption,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    in_flight_counts,
)
from shardopt.support.errors import UserError

Cut = tuple[int, int, StageOption]  # (first layer, layer after the last, option)


def fixed_stages(
    given: Sequence[PlannedStage], num_layers: int, cluster: Cluster
) -> tuple[Cut, ...] | None:
    """The stages, if the file leaves nothing open. Raises UserError where they do not cover the
    layers."""
    if not given or not all(stage.is_fixed for stage in given):
        return None
    found, behind = [], 0
    for k, stage in enumerate(given):
        assert stage.layers is not None
        first, last = stage.layers
        if first != behind or last < first:
            raise UserError(
                f"field 'stages[{k}].layers': expected layers from {behind} on, found {first} to "
                f"{last}"
            )
        behind = last + 1
        found.append((first, behind, _option(stage, k, cluster)))
    if behind != num_layers:
        raise UserError(f"field 'stages': expected all {num_layers} layers, found {behind}")
    return tuple(found)


def _option(stage: PlannedStage, k: int, cluster: Cluster) -> StageOption:
    submesh, shape = stage.place(), stage.logical_shape
    assert submesh is not None and shape is not None
    if shape[0] * shape[1] != submesh.num_devices:
        raise UserError(
            f"field 'stages[{k}].logical_shape': expected a shape of the {submesh.num_devices} "
            "devices of submesh "
            f"{submesh}, found {shape[0]}x{shape[1]}"
        )
    return StageOption(
        submesh.num_devices,
        submesh,
        shape,
        group_number(stage, k, cluster),
        stage.recompute or "none",  # type: ignore[arg-type]
        method=stage.intra_op or "ilp",
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


def allows(stage: PlannedStage, k: int, cluster: Cluster, option: StageOption) -> bool:
    """Whether the file leaves the k-th stage an option, whatever it recomputes."""
    return (
        (stage.submesh is None or stage.place() == option.submesh)
        and (stage.logical_shape is None or stage.logical_shape == option.logical_shape)
        and (stage.devices is None or len(stage.devices) == option.num_devices)
        and (stage.intra_op is None or stage.intra_op == option.method)
        and (
            (stage.group is None and stage.devices is None)
            or group_number(stage, k, cluster) == option.group
        )
    )


def allows_layers(stage: PlannedStage, start: int, end: int) -> bool:
    return stage.layers is None or stage.layers == (start, end - 1)


def with_given_ways(
    options: Sequence[StageOption], given: Sequence[PlannedStage]
) -> tuple[StageOption, ...]:
    """The options, and those with the methods and logical shapes that the file names."""
    methods = [stage.intra_op for stage in given if stage.intra_op is not None]
    found = (*options, *(replace(option, method=name) for name in methods for option in options))
    shapes = [stage.logical_shape for stage in given if stage.logical_shape is not None]
    shaped = (
        replace(option, logical_shape=shape)
        for shape in shapes
        for option in found
        if prod(shape) == option.num_devices
    )
    return tuple(dict.fromkeys((*found, *shaped)))


def wanted_by(
    given: Sequence[PlannedStage], cluster: Cluster
) -> Callable[[int, int, StageOption], bool] | None:
    """Which candidates (first layer, layer after the last, option) a plan with these stages can
    have."""
    if not given:
        return None

    def wanted(start: int, end: int, option: StageOption) -> bool:
        return any(
            allows_layers(stage, start, end) and allows(stage, k, cluster, option)
            for k, stage in enumerate(given)
        )

    return wanted


def given_devices(
    given: Sequence[PlannedStage], chosen: Sequence[StageOption], cluster: Cluster
) -> tuple[tuple[int, ...], ...] | None:
    """The devices of every stage, if the file names them; stages with the same ones share a mesh.
    Raises UserError where they are not what the stages need."""
    named = [(k, stage.devices) for k, stage in enumerate(given) if stage.devices is not None]
    if not named:
        return None
    if len(named) < len(given):
        raise UserError(
            f"field 'stages': expected devices in all stages or in none, found them in {len(named)}"
        )
    owner: dict[int, int] = {}
    for k, devices in named:
        option, path = chosen[k], f"stages[{k}].devices"
        if len(devices) != option.num_devices:
            raise UserError(
                f"field '{path}': expected {option.num_devices} devices, found {len(devices)}"
            )
        for device in devices:
            if not 0 <= device < cluster.num_devices or cluster.group_index(device) != option.group:
                group = cluster.groups[option.group]
                raise UserError(
                    f"field '{path}': expected devices of host group {group}, found {device}"
                )
            if owner.setdefault(device, k) != k and given[owner[device]].devices != devices:
                raise UserError(f"field '{path}': device {device} is in stage {owner[device]}, too")
        if len(set(devices)) != len(devices):
            raise UserError(
                f"field '{path}': expected every device once, found {', '.join(map(str, devices))}"
            )
    return tuple(devices for _, devices in named)


def given_planner(planner: Planner, given: Sequence[PlannedStage], cluster: Cluster) -> Planner:
    """A planner with the options of another one that keeps to the stages of the file."""
    return replace(
        planner,
        solve=lambda problem, _: solve_given(problem, given, cluster),
        one_stage=False,
        by_dp=False,
    )


def solve_given(
    problem: StageProblem, given: Sequence[PlannedStage], cluster: Cluster
) -> StageSolution:
    """The best plan of as many stages as the file has. Raises UserError where there is none."""
    tables = [_table(problem, stage, k, len(given), cluster) for k, stage in enumerate(given)]
    best, bound = None, np.inf
    while (stages := _shortest(problem, tables, bound)) is not None:
        found = evaluate(problem, stages, "optimal")
        if best is None or found.seconds < best.seconds:
            best = found
        bound = found.max_stage_seconds
    if best is None:
        raise UserError(
            f"no plan has the {len(given)} stages of the plan file: {_reason(problem, tables)}"
        )
    return replace(best, bound=best.seconds)


def _table(
    problem: StageProblem, stage: PlannedStage, k: int, count: int, cluster: Cluster
) -> np.ndarray:
    """Seconds of every interval and option as the k-th stage, inf where it may not be: `[L + 1, L +
    1, O]`."""
    held = in_flight_counts(problem, count)[::-1][k]
    priced = {option.recompute for option in problem.options}
    options = np.array(
        [
            allows(stage, k, cluster, option)
            and (stage.recompute not in priced or option.recompute == stage.recompute)
            for option in problem.options
        ]
    )
    table = np.full(problem.seconds.shape, np.inf)
    for start in range(problem.num_layers):
        for end in range(start + 1, problem.num_layers + 1):
            if allows_layers(stage, start, end):
                fits = problem.fits(held, start, end) & options
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
            for end, option, seconds in _choices(problem, table, start, bound):
                place = problem.options[option]
                taken = tuple(
                    n + place.num_devices * (g == place.group) for g, n in enumerate(used)
                )
                total = spent + float(cuts[0, start]) + seconds
                if (
                    all(n <= limit for n, limit in zip(taken, goal, strict=True))
                    and total < following.get((end, taken), (np.inf,))[0]
                ):
                    following[end, taken] = total, (*stages, (start, end, option))
        reached = following
    return reached[problem.num_layers, goal][1] if (problem.num_layers, goal) in reached else None


def _choices(
    problem: StageProblem, table: np.ndarray, start: int, bound: float
) -> Iterator[tuple[int, int, float]]:
    """(end, option, seconds): of each end and number of devices the fastest."""
    for end in range(start + 1, problem.num_layers + 1):
        fastest: dict[tuple[int, int], tuple[float, int]] = {}
        for option in np.flatnonzero(table[start, end] < bound).tolist():
            place, seconds = problem.options[option], float(table[start, end, option])
            key = place.group, place.num_devices
            fastest[key] = min(fastest.get(key, (np.inf, -1)), (seconds, option))
        yield from ((end, option, seconds) for seconds, option in fastest.values())


def _reason(problem: StageProblem, tables: Sequence[np.ndarray]) -> str:
    for k, table in enumerate(tables):
        if not np.isfinite(table).any():
            return (
                f"stage {k} has no layers and submesh that fit its device memory and what the "
                "file says"
            )
    devices = " + ".join(map(str, problem.num_devices))
    return f"they do not cover {problem.num_layers} layers and {devices} devices"

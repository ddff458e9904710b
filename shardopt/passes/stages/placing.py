"""From the stages that were chosen, by search or by hand, to where they run and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.passes.stages.staging import StagePlacement
from shardopt.planfile.parts import PlanFile, PlannedStage
from shardopt.schedule.schedules import find_schedule, in_flight, stage_homes, usual_schedule
from shardopt.solve.stages.candidates import candidate_mesh
from shardopt.solve.stages.search.plan_file_stages import Cut, plan_file_devices
from shardopt.solve.stages.search.rerank import place_meshes
from shardopt.solve.stages.stage_problem import StageConfig
from shardopt.support.errors import UserError


def cluster_for(named: str, plan_file: PlanFile) -> Cluster:
    """The cluster of an option, else that of a plan file. Raises UserError where neither says
    one."""
    if named:
        return load_cluster(named)
    if plan_file.cluster is None:
        raise UserError("expected option cluster=<file or preset[:HxD]>, found none")
    return plan_file.cluster


def place_stages(
    stages: Sequence[Cut],
    schedule: str,
    file_stages: Sequence[PlannedStage],
    cluster: Cluster,
    num_microbatches: int,
    recompute: str,
) -> StagePlacement:
    """Where each stage runs: on the devices of the plan file, or as the schedule lays stages on
    meshes.

    `recompute` is the mode of all stages, or "auto". Raises UserError for stages of one mesh that
    differ in its shape."""
    configs = [config for _, _, config in stages]
    devices = plan_file_devices(file_stages, configs, cluster)
    if devices is None:
        homes = stage_homes(find_schedule(schedule).planned.name, len(configs))
        devices = tuple(place_meshes(cluster, configs, homes)[home] for home in homes)
    homes = homes_of(devices)
    _check_alike(configs, homes)
    meshes = tuple(
        candidate_mesh(configs[homes.index(home)], ids, f"m{home}")
        for home, ids in zip(homes, devices, strict=True)
    )
    stage_of_layer = tuple(s for s, (start, end, _) in enumerate(stages) for _ in range(start, end))
    file_modes = [stage.recompute for stage in file_stages] or [None] * len(configs)
    default = None if recompute == "auto" else recompute
    modes = tuple(
        file_mode or default or config.recompute
        for file_mode, config in zip(file_modes, configs, strict=True)
    )
    in_flight_counts = _in_flight(schedule, homes, num_microbatches)
    return StagePlacement(
        stage_of_layer, meshes, in_flight_counts, modes, tuple(config.method for config in configs)
    )


def usual_for(file_stages: Sequence[PlannedStage]) -> str:
    """The schedule of stages from a plan file where nobody asks for one; GPipe's, which holds all
    microbatches, where none by name lays stages on meshes so: their tasks are listed later."""
    named = [stage.devices for stage in file_stages if stage.devices is not None]
    return (usual_schedule(homes_of(named)) or "gpipe") if named else "1f1b"


def homes_of(devices: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The mesh of every stage: stages with the same devices share one; meshes in the order of their
    first stages."""
    number: dict[tuple[int, ...], int] = {}
    return tuple(number.setdefault(tuple(ids), len(number)) for ids in devices)


def _check_alike(configs: Sequence[StageConfig], homes: Sequence[int]) -> None:
    for stage, (config, home) in enumerate(zip(configs, homes, strict=True)):
        first = homes.index(home)
        if replace(config, recompute="none") != replace(configs[first], recompute="none"):
            raise UserError(
                f"stages {first} and {stage} share a mesh: expected one logical shape and method, "
                f"found {configs[first]} and {config}"
            )


def _in_flight(schedule: str, homes: tuple[int, ...], num_microbatches: int) -> tuple[int, ...]:
    """Microbatches in flight of each stage; all of them under a schedule that lays stages in
    another way, as an order of tasks that is not known yet may hold so many."""
    kind, meshes = find_schedule(schedule), 1 + max(homes)
    if not kind.suits(len(homes), meshes) or stage_homes(schedule, len(homes), meshes) != homes:
        return (num_microbatches,) * len(homes)
    return in_flight(
        schedule, len(homes), num_microbatches, None if meshes == len(homes) else meshes
    )

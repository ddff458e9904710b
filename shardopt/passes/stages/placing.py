"""From the stages that were chosen, by search or by hand, to where they run and what they hold, and
that as attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import IN_FLIGHT, write_methods, write_topology
from shardopt.dialect.prediction import PlannedPrediction, write_prediction
from shardopt.dialect.program import StepProgram
from shardopt.dialect.stages import PlacedStage, write_stages
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh
from shardopt.planfile.parts import PlannedStage
from shardopt.schedule.schedules import (
    find_schedule,
    model_homes,
    model_in_flight,
    stage_homes,
    usual_schedule,
)
from shardopt.solve.stages.candidates import candidate_mesh
from shardopt.solve.stages.search.plan_file_stages import Cut, plan_file_devices
from shardopt.solve.stages.search.rerank import place_meshes
from shardopt.solve.stages.stage_problem import StageConfig
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class ChosenStages:
    """The stages, by search or from a plan file, the schedule that they are for, and what is
    predicted of them (None for stages made by hand)."""

    stages: tuple[Cut, ...]
    schedule: str
    prediction: PlannedPrediction | None


@dataclass(frozen=True)
class StagesOnMeshes:
    """Stages with their layers and meshes; the meshes, in the order of their first stages; for
    every stage the microbatches that it keeps at once, and how its inside is to be sharded ("ilp",
    or the name of a preset); and what is predicted of them all."""

    stages: tuple[PlacedStage, ...]
    topology: tuple[Mesh, ...]
    in_flight: tuple[int, ...]
    methods: tuple[str, ...]
    prediction: PlannedPrediction | None


def place_stages(
    chosen: ChosenStages,
    file_stages: Sequence[PlannedStage],
    cluster: Cluster,
    num_microbatches: int,
    recompute: str,
    offload: str,
) -> StagesOnMeshes:
    """Where each stage runs: on the devices of the plan file, or as the schedule lays stages on
    meshes.

    `recompute` and `offload` are the modes of all stages, or "auto". Raises UserError for stages of
    one mesh that differ in its shape."""
    configs = [config for _, _, config in chosen.stages]
    devices = plan_file_devices(file_stages, configs, cluster)
    if devices is None:
        homes = model_homes(find_schedule(chosen.schedule).planned.name, len(configs))
        homes = homes[: len(configs)]
        devices = tuple(place_meshes(cluster, configs, homes)[home] for home in homes)
    homes = homes_of(devices)
    _check_alike(configs, homes)
    meshes = {
        home: candidate_mesh(configs[homes.index(home)], ids, f"m{home}")
        for home, ids in zip(homes, devices, strict=True)
    }
    # A plan file decides for its stages, the option for all others, the search for the rest.
    in_file = tuple(file_stages) or (PlannedStage(),) * len(configs)
    modes, offloads = (None if each == "auto" else each for each in (recompute, offload))
    stages = tuple(
        PlacedStage(
            start,
            end - 1,
            meshes[home].name,
            named.recompute or modes or config.recompute,
            named.offload or offloads or config.offload,
        )
        for (start, end, config), home, named in zip(chosen.stages, homes, in_file, strict=True)
    )
    return StagesOnMeshes(
        stages,
        tuple(meshes.values()),
        _in_flight(chosen.schedule, homes, num_microbatches),
        tuple(config.method for config in configs),
        chosen.prediction,
    )


def check_host_links(
    stages: Sequence[PlacedStage], topology: Sequence[Mesh], cluster: Cluster
) -> None:
    """Raises UserError where a stage offloads and nobody said how fast that is."""
    groups = {mesh.name: cluster.group_of(mesh) for mesh in topology}
    for number, stage in enumerate(stages):
        if stage.offload != "none" and groups[stage.mesh].host_link is None:
            raise UserError(
                f"stage {number} offloads to its hosts: expected field 'host_link' of host group "
                f"'{groups[stage.mesh].name}' (docs/guide/cluster.md), found none"
            )


def write_placement(program: StepProgram, placement: StagesOnMeshes) -> None:
    """On `@main` what the next passes obey, on the loop what later phases read."""
    write_topology(program.main, placement.topology, devices=True)
    write_stages(program.main, placement.stages)
    program.loop.attributes[IN_FLIGHT] = ir.DenseI64ArrayAttr.get(list(placement.in_flight))
    write_methods(program.loop, placement.methods)
    if placement.prediction is not None:
        write_prediction(program.loop, placement.prediction)


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
        # Recomputation may differ: it changes what a stage keeps, not how its mesh is laid out. So
        # does what is offloaded.
        first = homes.index(home)
        plain, other = (
            replace(each, recompute="none", offload="none") for each in (config, configs[first])
        )
        if plain != other:
            raise UserError(
                f"stages {first} and {stage} share a mesh: expected one logical shape and method, "
                f"found {configs[first]} and {config}"
            )


def _in_flight(schedule: str, homes: tuple[int, ...], num_microbatches: int) -> tuple[int, ...]:
    """Microbatches in flight of each stage; all of them under a schedule that lays stages in
    another way, as an order of tasks that is not known yet may hold so many."""
    kind, meshes = find_schedule(schedule), 1 + max(homes)
    count = len(homes)
    listed = kind.streams * count
    if not kind.suits(listed, meshes) or stage_homes(schedule, listed, meshes)[:count] != homes:
        return (num_microbatches,) * count
    known = None if meshes == listed else meshes
    return model_in_flight(schedule, count, num_microbatches, known)[:count]

"""What a plan says, read from its exported module: the rows of the stage table, as values and
JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from jaxlib.mlir import ir

from shardopt.cost.compute import dispatch_seconds
from shardopt.cost.traffic import Traffic, total
from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.donation import read_on_host
from shardopt.dialect.mpmd import (
    BODY_KINDS,
    IN_FLIGHT,
    KIND,
    OFFLOAD,
    RECOMPUTE,
    RESHARDING,
    SCHEDULE,
    STAGE,
    parse_mesh_tensor,
    read_topology,
)
from shardopt.dialect.program import StepProgram, body_of, read_program
from shardopt.dialect.schedule import read_peaks
from shardopt.dialect.token_slices import read_token_slices
from shardopt.extract.pipeline_memory import local_bytes
from shardopt.extract.waiting_values import waiting_values
from shardopt.forms.sharded_form import read_cost
from shardopt.hardware.cluster import Cluster
from shardopt.ir.rewriting import defining
from shardopt.mesh.mesh import Mesh

_OUTSIDE = "outside"  # the microbatch loop; beside the kinds of fragments inside


@dataclass(frozen=True)
class StageRow:
    """One stage: where it runs and what one step costs there. Seconds and bytes count all
    microbatches.

    `peak_bytes` is the most a device holds, all stages of its mesh together, of the `memory_bytes`
    that a device of the stage's host group has. `collectives` are those inside the stage by kind
    and mesh axes; `sent_bytes` leave it for other stages each step. `recompute` is what its
    backward computes again: "none", "layer" or "full"; `offload` what it keeps on its hosts, where
    that takes `host_bytes` for each device."""

    stage: int
    layers: tuple[str, ...]
    mesh: str
    logical_shape: tuple[int, ...]
    devices: tuple[int, ...]
    forward_seconds: float
    backward_seconds: float
    outside_seconds: float
    peak_bytes: int
    memory_bytes: int
    collectives: tuple[Traffic, ...]
    collective_bytes: int
    sent_bytes: int
    recompute: str
    offload: str = "none"
    host_bytes: int = 0


@dataclass(frozen=True)
class PlanSummary:
    """The whole plan: its stages and what the simulator predicts for a step. With several pipelines
    (`num_streams`) over the meshes, all stages of the first come first. Where tokens are cut into
    slices of some lengths (`token_slices`), each stage of the model is one for each of them."""

    cluster: str
    num_microbatches: int
    schedule: str
    makespan_seconds: float
    bubble_fraction: float
    stages: tuple[StageRow, ...]
    num_streams: int = 1
    token_slices: tuple[int, ...] = ()

    @property
    def model_stages(self) -> tuple[int, ...]:
        """The stages among `stages` that are those of the model: others are copies, or further
        slices."""
        return tuple(range(len(self.stages) // self.num_streams))[:: len(self.token_slices) or 1]

    @property
    def step_seconds(self) -> float:
        """The whole step: the microbatches, and what every mesh does before and after them."""
        outside_loop: dict[str, float] = {}
        for row in self.stages:
            outside_loop[row.mesh] = outside_loop.get(row.mesh, 0.0) + row.outside_seconds
        return self.makespan_seconds + max(outside_loop.values(), default=0.0)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def summarize(module: ir.Module) -> PlanSummary:
    """Read an exported module. Raises ValueError when a part is missing."""
    program = read_program(module)
    meshes = read_topology(program.main)
    schedule = ir.DictAttr(program.loop.attributes[SCHEDULE])
    cluster = read_cluster(module)
    peaks = read_peaks(program.loop)
    homes = _homes(program, [mesh.name for mesh in meshes])
    firsts = {meshes[home].name: stage for stage, home in reversed([*enumerate(homes)])}
    rows = [
        _row(program, cluster, stage, meshes[home], peaks[home], firsts)
        for stage, home in enumerate(homes)
    ]
    count = len(rows) // program.num_streams
    slices = read_token_slices(program.loop)
    layers = {} if slices is None else slices.model_layers()
    names = {f"layer_{layer}": f"layer_{of_model}" for layer, of_model in layers.items()}
    return PlanSummary(
        cluster=str(cluster),
        num_microbatches=program.num_streams * program.num_microbatches,
        num_streams=program.num_streams,
        token_slices=() if slices is None else slices.lengths,
        schedule=ir.StringAttr(schedule["name"]).value,
        makespan_seconds=ir.FloatAttr(schedule["makespan_seconds"]).value,
        bubble_fraction=ir.FloatAttr(schedule["bubble"]).value,
        # Layers of copies and slices have numbers of their own in the IR.
        stages=tuple(
            replace(row, layers=_of_model(rows[stage % count].layers, names))
            for stage, row in enumerate(rows)
        ),
    )


def _of_model(layers: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(layer, layer) for layer in layers)


def _homes(program: StepProgram, meshes: list[str]) -> tuple[int, ...]:
    """The mesh of every stage; a stage without calls is on the mesh of its number."""
    home_of: dict[int, int] = {}
    for op, _ in _calls(program):
        if op.name == "mpmd.fragment_call":
            mesh = ir.StringAttr(op.attributes["mesh_name"]).value
            home_of[ir.IntegerAttr(op.attributes[STAGE]).value] = meshes.index(mesh)
    count = max(len(meshes), 1 + max(home_of, default=-1))
    return tuple(home_of.get(stage, min(stage, len(meshes) - 1)) for stage in range(count))


def _calls(program: StepProgram) -> Iterator[tuple[ir.Operation, bool]]:
    """Fragment calls and transfers of `@main` and of the body, and whether they are in the body."""
    yield from ((op, False) for op in body_of(program.main_block))
    yield from ((op, True) for op in program.body_ops)


def _row(
    program: StepProgram,
    cluster: Cluster,
    stage: int,
    mesh: Mesh,
    peak_bytes: int,
    firsts: dict[str, int],
) -> StageRow:
    """`firsts` is the first stage of each mesh."""
    seconds = dict.fromkeys((*BODY_KINDS, _OUTSIDE), 0.0)
    layers: dict[str, None] = {}
    collectives: list[Traffic] = []
    sent = 0
    attributes = program.loop.attributes
    recompute, offload = (
        ir.StringAttr(ir.ArrayAttr(attributes[name])[stage]).value if name in attributes else "none"
        for name in (RECOMPUTE, OFFLOAD)
    )
    for op, in_body in _calls(program):
        if (
            op.name == "mpmd.transfer"
            and RESHARDING in op.attributes
            and _source_stage(op, firsts) == stage
        ):
            times = program.num_microbatches if in_body else 1
            sent += times * ir.IntegerAttr(ir.DictAttr(op.attributes[RESHARDING])["bytes"]).value
        if op.name != "mpmd.fragment_call" or ir.IntegerAttr(op.attributes[STAGE]).value != stage:
            continue
        kind = ir.StringAttr(op.attributes[KIND]).value
        cost = read_cost(op)
        # The simulator knows what stays, not what a fragment needs for a time.
        peak_bytes = max(peak_bytes, cost.peak_bytes)
        times = program.num_microbatches if in_body else 1
        seconds[kind if in_body else _OUTSIDE] += times * cost.seconds
        if not in_body:  # those in the loop are part of the simulated tasks
            buffers = len(op.operands) + len(op.results)
            seconds[_OUTSIDE] += dispatch_seconds(cluster.group_of(mesh), mesh.size, buffers)
        collectives += [item.repeated(times) for item in cost.traffic]
        if in_body:
            layers.update((layer, None) for layer in _origins(op) if layer.startswith("layer_"))
    return StageRow(
        stage=stage,
        layers=tuple(layers),
        mesh=mesh.name,
        logical_shape=mesh.shape,
        devices=mesh.devices,
        forward_seconds=seconds["fwd"],
        backward_seconds=sum(seconds[kind] for kind in BODY_KINDS if kind != "fwd"),
        outside_seconds=seconds[_OUTSIDE],
        peak_bytes=peak_bytes,
        memory_bytes=cluster.group_of(mesh).device.memory_bytes,
        collectives=total(collectives),
        collective_bytes=sum(item.bytes for item in collectives),
        sent_bytes=sent,
        recompute=recompute,
        offload=offload,
        host_bytes=_host_bytes(program, mesh) * (firsts[mesh.name] == stage)
        + _waiting_bytes(program, mesh, stage),
    )


def _host_bytes(program: StepProgram, mesh: Mesh) -> int:
    """For each device of a mesh."""
    types = (program.main_block.arguments[k].type for k in read_on_host(program.main))
    return sum(
        local_bytes(each, {mesh.name: mesh})
        for each in types
        if parse_mesh_tensor(each).mesh == mesh.name
    )


def _waiting_bytes(program: StepProgram, mesh: Mesh, stage: int) -> int:
    """For each device of the mesh of a stage, of all microbatches in flight."""
    waiting = waiting_values(program.loop, program.body_ops)
    types = (value.type for value, of_stage in waiting.items() if of_stage == stage)
    in_flight = ir.DenseI64ArrayAttr(program.loop.attributes[IN_FLIGHT])[stage] if waiting else 0
    return in_flight * sum(local_bytes(each, {mesh.name: mesh}) for each in types)


def _source_stage(transfer: ir.Operation, firsts: dict[str, int]) -> int:
    """The stage that makes what is sent; what no call makes is sent by the first stage of its mesh
    (`firsts`)."""
    source = transfer.operands[0]
    maker = defining(source)
    if maker is not None and maker.name == "mpmd.fragment_call":
        return ir.IntegerAttr(maker.attributes[STAGE]).value
    return firsts[parse_mesh_tensor(source.type).mesh]


def _origins(op: ir.Operation) -> list[str]:
    return [str(origin).split('"')[1] for origin in ir.ArrayAttr(op.attributes["origin"])]

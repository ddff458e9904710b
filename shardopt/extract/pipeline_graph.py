"""Read a staged program as a task graph: which fragments exist, what flows between them, how long
things take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir

from shardopt.cost.compute import dispatch_seconds
from shardopt.dialect.cluster import CLUSTER, read_cluster
from shardopt.dialect.mpmd import BACKWARD, COST, KIND, RESHARDING, STAGE, parse_mesh_tensor
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import read_tensor
from shardopt.extract.pipeline_memory import live_values, local_bytes, step_bytes
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.sharing import Sharing, sharing_of
from shardopt.mesh.mesh import Mesh
from shardopt.schedule.exchange import validate
from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.memory import LiveBytes
from shardopt.schedule.schedules import ScheduleText, find_schedule
from shardopt.schedule.simulator import SimulationResult, StepMemory, TransferCosts, simulate
from shardopt.schedule.tasks import Schedule, StageTask, TaskKind
from shardopt.schedule.workload import Workload
from shardopt.support.errors import UserError

_KINDS = {
    "fwd": TaskKind.FORWARD,
    "bwd": TaskKind.BACKWARD,
    "bwd_input": TaskKind.BACKWARD_INPUT,
    "bwd_weight": TaskKind.BACKWARD_WEIGHT,
}


@dataclass(frozen=True)
class PipelineGraph:
    """The loop body as tasks: seconds of each, calls included, transfer seconds of each edge, bytes
    a device keeps from a task on.

    `edge_links` are the NICs that the transfers of each edge use: number 2h is what host h sends
    through, 2h + 1 what it receives through. `fixed_bytes[m]` is what a device of mesh m holds all
    step long: arguments of the step, what lives across the loop, and accumulators; `live` is what
    it holds for each microbatch, `outside_bytes[m]` the most that it holds before and behind the
    loop."""

    graph: StageGraph
    task_seconds: dict[StageTask, float]
    transfer_seconds: tuple[float, ...]
    activation_bytes: dict[StageTask, int]
    fixed_bytes: tuple[int, ...]
    num_stages: int
    stage_to_mesh: tuple[int, ...]
    edge_links: tuple[tuple[int, ...], ...] = ()
    sharing: Sharing | None = None
    live: tuple[LiveBytes, ...] = ()
    outside_bytes: tuple[int, ...] = ()

    @property
    def num_meshes(self) -> int:
        return len(self.fixed_bytes)


def is_task(op: ir.Operation) -> bool:
    """Whether a fragment has a place in the loop."""
    return KIND in op.attributes and ir.StringAttr(op.attributes[KIND]).value in _KINDS


def task_of(op: ir.Operation) -> StageTask:
    """The schedule task a body fragment belongs to. Raises ValueError for a kind that has no place
    in the loop."""
    kind = ir.StringAttr(op.attributes[KIND]).value
    if kind not in _KINDS:
        raise ValueError(
            f"expected a fragment of kind {' or '.join(_KINDS)} in the loop body, found '{kind}'"
        )
    return StageTask(_KINDS[kind], _stage_of(op))


def _stage_of(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["stage_id" if op.name == "mpmd.fragment" else STAGE]).value


def _mesh_of(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["mesh_name"]).value


def read_pipeline(program: StepProgram, meshes: tuple[Mesh, ...]) -> PipelineGraph:
    """Raises ValueError when a fragment has no predicted cost or no place in a schedule."""
    by_name = {mesh.name: mesh for mesh in meshes}
    cluster = (
        read_cluster(program.module) if CLUSTER in program.module.operation.attributes else None
    )
    read = _Dataflow(by_name, cluster)
    for op in program.body_ops:
        read.add(op)
    num_stages = max((task.stage for task in read.seconds), default=0) + 1
    homes = {_stage_of(op): _mesh_of(op) for op in program.body_ops if op.name != "mpmd.transfer"}
    numbers = {mesh.name: number for number, mesh in enumerate(meshes)}
    held = step_bytes(program, by_name)
    return PipelineGraph(
        graph=StageGraph(
            tuple(read.seconds),
            tuple(StageEdge(*ends, way.bytes) for ends, way in read.ways.items()),
            frozenset(_stage_of(op) for op in program.body_ops if BACKWARD in op.attributes),
        ),
        task_seconds=read.seconds,
        transfer_seconds=tuple(way.seconds for way in read.ways.values()),
        activation_bytes=read.kept,
        fixed_bytes=held.in_loop,
        num_stages=num_stages,
        stage_to_mesh=tuple(
            numbers[homes[stage]] if stage in homes else min(stage, len(meshes) - 1)
            for stage in range(num_stages)
        ),
        edge_links=tuple(tuple(sorted(way.nics)) for way in read.ways.values()),
        sharing=sharing_of(cluster, [mesh.devices for mesh in meshes])
        if cluster is not None
        else None,
        live=live_values(program, by_name, task_of),
        outside_bytes=held.outside_loop,
    )


class _Way(NamedTuple):
    """From one task to another: bytes that change meshes, seconds of the longest transfer, NICs of
    all."""

    bytes: int = 0
    seconds: float = 0.0
    nics: frozenset[int] = frozenset()


class _Origin(NamedTuple):
    """The task that makes a value, seconds of the transfers since, and the NICs that these use."""

    task: StageTask
    seconds: float = 0.0
    nics: frozenset[int] = frozenset()


class _Dataflow:
    """Tasks of a loop body, and what flows between them, operation by operation."""

    def __init__(self, meshes: dict[str, Mesh], cluster: Cluster | None) -> None:
        self.meshes, self.cluster = meshes, cluster
        self.seconds: dict[StageTask, float] = {}
        self.ways: dict[tuple[StageTask, StageTask], _Way] = {}
        self.kept: dict[StageTask, int] = {}
        self._origins: dict[ir.Value, _Origin] = {}
        self._counted: set[ir.Value] = set()

    def add(self, op: ir.Operation) -> None:
        if op.name == "mpmd.transfer":
            self._add_transfer(op)
            return
        task = task_of(op)
        took = fragment_seconds(op) + _call_seconds(op, self.meshes, self.cluster)
        self.seconds[task] = self.seconds.get(task, 0.0) + took
        for value in op.operands:
            origin = self._origins.get(value)
            if origin is not None and origin.task != task:
                self._add_read(value, origin, task)
        self._origins.update((result, _Origin(task)) for result in op.results)

    def _add_transfer(self, op: ir.Operation) -> None:
        origin = self._origins.get(op.operands[0])
        if origin is not None:
            nics = origin.nics | _nics(op, self.cluster)
            seconds = origin.seconds + _transfer_seconds(op)
            self._origins[op.results[0]] = _Origin(origin.task, seconds, nics)

    def _add_read(self, value: ir.Value, origin: _Origin, task: StageTask) -> None:
        source, way = origin.task, self.ways.get((origin.task, task), _Way())
        crosses = source.stage != task.stage
        moved = read_tensor(parse_mesh_tensor(value.type).tensor).size_bytes if crosses else 0
        # Each value of a message has the seconds of all of it: they count once.
        longest = max(way.seconds, origin.seconds)
        self.ways[source, task] = _Way(way.bytes + moved, longest, way.nics | origin.nics)
        # What the backward of a stage reads of its forward is held in between, once for all
        # readers.
        if not crosses and value not in self._counted:
            self._counted.add(value)
            self.kept[source] = self.kept.get(source, 0) + local_bytes(value.type, self.meshes)


def simulate_pipeline(
    text: ScheduleText, pipeline: PipelineGraph, num_microbatches: int
) -> SimulationResult:
    """Build, validate and simulate a schedule. Raises UserError (unknown name, order against the
    dataflow)."""
    schedule = valid_schedule(text, pipeline, num_microbatches)
    return simulate(
        schedule,
        pipeline.graph,
        pipeline.task_seconds,
        TransferCosts(pipeline.transfer_seconds, links=pipeline.edge_links),
        StepMemory(pipeline.activation_bytes, fixed_bytes=pipeline.fixed_bytes, live=pipeline.live),
        sharing=pipeline.sharing,
    )


def peak_bytes(pipeline: PipelineGraph, result: SimulationResult) -> tuple[int, ...]:
    """The most that a device of each mesh holds in a step."""
    return tuple(
        max(profile.peak_bytes, most)
        for profile, most in zip(result.memory, pipeline.outside_bytes, strict=True)
    )


def workload(pipeline: PipelineGraph, num_microbatches: int) -> Workload:
    """The pipeline as the list scheduler wants it, without a memory limit."""
    return Workload(
        graph=pipeline.graph,
        stage_to_mesh=pipeline.stage_to_mesh,
        num_microbatches=num_microbatches,
        task_seconds=pipeline.task_seconds,
        transfer_seconds=pipeline.transfer_seconds,
        activation_bytes=pipeline.activation_bytes,
        edge_links=pipeline.edge_links,
        sharing=pipeline.sharing,
        live=pipeline.live,
    )


def valid_schedule(text: ScheduleText, pipeline: PipelineGraph, num_microbatches: int) -> Schedule:
    """The schedule that `text` is for this pipeline. Raises UserError as `simulate_pipeline`."""
    if not text.rows:
        _check_backward(text.name, pipeline.graph)
    schedule = text.build(pipeline.num_stages, num_microbatches, pipeline.num_meshes)
    if schedule.stage_to_mesh != pipeline.stage_to_mesh:
        expected, actual = (
            ", ".join(map(str, homes)) for homes in (schedule.stage_to_mesh, pipeline.stage_to_mesh)
        )
        raise UserError(
            f"schedule '{text.name}': expected the stages on meshes {expected}, "
            f"found them on {actual}"
        )
    applied = next(
        (task for row in schedule.tasks for task in row if task.kind is TaskKind.APPLY), None
    )
    if applied is not None:
        raise UserError(
            f"schedule '{text.name}': task {applied} changes weights within a step, which "
            "plans cannot run"
        )
    validate(schedule, pipeline.graph)
    return schedule


def _check_backward(name: str, graph: StageGraph) -> None:
    """Raise UserError where a schedule splits backwards and the program does not, or the other way
    round, or has none and the program does."""
    kinds = {task.kind for task in graph.tasks}
    halves = {TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT}
    backwards = kinds & {TaskKind.BACKWARD, *halves}
    schedule = find_schedule(name)
    if backwards:
        schedule.check_backward()
    split_kinds = halves.intersection(schedule.kinds)
    if split_kinds and TaskKind.BACKWARD in kinds:
        raise UserError(
            f"schedule '{name}' orders the halves of a backward: expected fragments of kind "
            "bwd_input and bwd_weight "
            f"(run shardopt-split-backward after the stage phase), found bwd"
        )
    if not split_kinds and kinds & halves:
        raise UserError(
            f"schedule '{name}' orders whole backwards: expected fragments of kind "
            "bwd, found halves"
        )


def fragment_seconds(op: ir.Operation) -> float:
    """Of one execution. Raises ValueError where the shard phase has written none."""
    if COST not in op.attributes:
        raise ValueError(
            f"expected attribute '{COST}' on every fragment (written by the shard "
            "phase), found none"
        )
    return _read_seconds(op, COST)


def _read_seconds(op: ir.Operation, key: str) -> float:
    fields = ir.DictAttr(op.attributes[key])
    if "seconds" not in fields:
        raise ValueError(f"expected seconds in '{key}' of '{op.name}', found {fields}")
    return ir.FloatAttr(fields["seconds"]).value


def _call_seconds(op: ir.Operation, meshes: dict[str, Mesh], cluster: Cluster | None) -> float:
    """What the call of a fragment takes beside its work."""
    if cluster is None:
        return 0.0
    mesh = meshes[ir.StringAttr(op.attributes["mesh_name"]).value]
    return dispatch_seconds(cluster.group_of(mesh), mesh.size, len(op.operands) + len(op.results))


def _nics(op: ir.Operation, cluster: Cluster | None) -> frozenset[int]:
    """The NICs that a planned transfer between hosts uses, numbered as in
    `PipelineGraph`."""
    if cluster is None or RESHARDING not in op.attributes:
        return frozenset()
    rows = np.array(ir.DenseIntElementsAttr(ir.DictAttr(op.attributes[RESHARDING])["steps"]))
    pairs = {
        (cluster.host_of(int(source)), cluster.host_of(int(target)))
        for _, source, target, *_ in rows
    }
    crossing = [(source, target) for source, target in pairs if source != target]
    return frozenset(
        {2 * source for source, _ in crossing} | {2 * target + 1 for _, target in crossing}
    )


def _transfer_seconds(op: ir.Operation) -> float:
    if RESHARDING not in op.attributes:
        return 0.0
    return _read_seconds(op, RESHARDING)

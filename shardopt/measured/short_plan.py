"""The plan of a few blocks on a few stages, by the passes that plan any model: what a pipeline of
equal blocks is put together from (`shardopt.measured.stretch`)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.hardware.cluster import Cluster, HostGroup
from shardopt.hardware.cluster_file import describe
from shardopt.models.computing import Computing
from shardopt.models.specs import ResnetSpec, Spec, block_layers
from shardopt.planfile.parts import VERSION

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from shardopt.cost.summary import CostSummary
    from shardopt.dialect.program import StepProgram
    from shardopt.extract.pipeline_graph import PipelineGraph
    from shardopt.frontend.plans.plan import Plan


@dataclass(frozen=True)
class ShortPlan:
    """A planned pipeline of `blocks` blocks a stage, one stage a mesh. `outside_seconds` is what
    each stage does before and behind the microbatches, `outside_communication` the part of that in
    which it communicates and computes nothing, `fragment_bytes` the most that a device holds within
    one of its fragments. `summed_bytes` is what it would hold if all that a microbatch sums over
    devices was summed at once: its arguments, its terms, and its part of what is scattered."""

    blocks: int
    cluster: Cluster
    pipeline: PipelineGraph
    outside_seconds: tuple[float, ...]
    outside_communication: tuple[float, ...]
    fragment_bytes: tuple[int, ...]
    summed_bytes: tuple[int, ...]


@dataclass(frozen=True)
class ShortCase:
    """What a short plan is made of: a model whose `layers` and `batch` are those of the short
    plan, which computes as `how` says, and stages of devices as `shape`, sharded by `intra_op`,
    within a fraction of a device's memory; 0 stands for no limit."""

    spec: Spec
    dtype: str
    how: Computing
    machine: HostGroup
    stages: int
    shape: tuple[int, ...]
    intra_op: str
    recompute: str
    microbatches: int
    memory_fraction: float = 0.0

    @property
    def cluster(self) -> Cluster:
        """As many hosts as the stages need."""
        width, total = self.machine.devices_per_host, self.stages * prod(self.shape)
        group = replace(self.machine, hosts=-(-total // width), devices_per_host=min(width, total))
        return Cluster(group.name, (group,))


def short_plan(case: ShortCase) -> ShortPlan:
    """Raises UserError where the method does not apply to the model."""
    from shardopt.dialect.mpmd import read_topology
    from shardopt.dialect.program import read_program
    from shardopt.extract.pipeline_graph import read_pipeline

    plan = finished_plan(case)
    with plan.loaded as modules:
        program = read_program(modules[plan.module])
        return ShortPlan(
            case.spec.layers // (case.stages * block_layers(case.spec)),
            case.cluster,
            read_pipeline(program, read_topology(program.main)),
            tuple(row.outside_seconds for row in plan.summary.stages),
            _outside_communication(program, case.stages),
            _fragment_bytes(program, case.stages),
            _summed_bytes(program, case),
        )


def finished_plan(case: ShortCase) -> Plan:
    """Raises UserError where the method does not apply to the model."""
    from shardopt.frontend.planning.make_plan import make_plan
    from shardopt.frontend.plans.from_plan_file import options_after
    from shardopt.ir.trial import made_here
    from shardopt.models.build import bytecode

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "short.plan.json"
        file.write_text(json.dumps(plan_document(case)))
        model = made_here(bytecode(case.spec, case.dtype, how=case.how))
        return make_plan(model, options_after(str(file), {}), cache=False)


def plan_document(case: ShortCase) -> dict[str, Any]:
    """The plan file: equally many blocks on each stage, and nothing left to choose but what the
    method leaves open."""
    width, host = prod(case.shape), case.cluster.groups[0].devices_per_host
    submesh = f"1x{width}" if width < host else f"{width // host}x{host}"
    layers = 1 if isinstance(case.spec, ResnetSpec) else case.spec.layers
    blocks = layers // case.stages
    stages = [
        {
            "layers": [blocks * stage, blocks * (stage + 1) - 1],
            "submesh": submesh,
            "logical_shape": "x".join(map(str, case.shape)),
            "intra_op": case.intra_op,
            "recompute": case.recompute,
        }
        for stage in range(case.stages)
    ]
    options = {
        "microbatches": case.microbatches,
        "batch_coupling": "per-microbatch",  # batch normalization takes what a microbatch has
        "microbatch_sums": "own",  # what libraries keep wide, their steps convert
        "schedule": "1f1b",
        "memory_fraction": case.memory_fraction,
    }
    return {
        "version": VERSION,
        "options": options,
        "cluster": describe(case.cluster),
        "layers": {
            "count": layers,
            "starts": [rf"\bblock_{block}\b" for block in range(1, layers)],
        },
        "stages": stages,
    }


def _outside_communication(program: StepProgram, stages: int) -> tuple[float, ...]:
    from shardopt.dialect.program import body_of

    seconds = [0.0] * stages
    for stage, cost in _costs(body_of(program.main_block)):
        seconds[stage] += cost.communication_seconds - cost.hidden_seconds
    return tuple(seconds)


def _fragment_bytes(program: StepProgram, stages: int) -> tuple[int, ...]:
    from shardopt.dialect.program import body_of

    most = [0] * stages
    for stage, cost in _costs((*body_of(program.main_block), *program.body_ops)):
        most[stage] = max(most[stage], cost.peak_bytes)
    return tuple(most)


def _summed_bytes(program: StepProgram, case: ShortCase) -> tuple[int, ...]:
    """Results have the type of their terms, and those that are not scattered their place."""
    from shardopt.dialect.mpmd import parse_mesh_tensor, read_topology
    from shardopt.extract.pipeline_memory import local_bytes

    meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
    stage_of = {name: stage for stage, name in enumerate(meshes)}
    held = [0.0] * case.stages
    for argument in program.main_block.arguments:
        mesh = parse_mesh_tensor(argument.type).mesh
        held[stage_of[mesh]] += local_bytes(argument.type, meshes)
    for stage, cost in _costs(program.body_ops):
        held[stage] += cost.summed_bytes + cost.scattered_bytes / prod(case.shape)
    return tuple(map(round, held))


def _costs(ops: Iterable[ir.Operation]) -> Iterator[tuple[int, CostSummary]]:
    """Of each fragment among them, with its stage."""
    from jaxlib.mlir import ir

    from shardopt.dialect.mpmd import STAGE
    from shardopt.forms.sharded_form import read_cost

    for op in ops:
        if op.name == "mpmd.fragment_call":
            yield ir.IntegerAttr(op.attributes[STAGE]).value, read_cost(op)

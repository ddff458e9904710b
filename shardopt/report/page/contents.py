"""What the page of a plan shows, read from its exported module as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.mpmd import LAYER, RESHARDING, parse_mesh_tensor, read_topology
from shardopt.dialect.program import StepProgram, body_of, read_program
from shardopt.forms.exported_form import read_exported
from shardopt.forms.sharded_form import read_cost
from shardopt.mesh.mesh import Mesh
from shardopt.report.page.collective_shares import CollectiveShare, FragmentRun, collective_shares
from shardopt.report.page.layers import LayerWork, read_layers
from shardopt.report.page.placement import ArgumentGroup, grouped, place
from shardopt.report.plan_summary import PlanSummary, summarize


@dataclass(frozen=True)
class MeshTransfers:
    """What one mesh sends to another in a step. `seconds` are those of the transfers one after
    another, without what overlaps with compute."""

    source: str
    target: str
    in_loop: bool
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class PlanContents:
    """`layers` is None where the module behind clustering was not kept."""

    summary: PlanSummary
    meshes: tuple[Mesh, ...]
    placements: tuple[ArgumentGroup, ...]
    collective_shares: tuple[CollectiveShare, ...]
    routes: tuple[MeshTransfers, ...]
    layers: LayerWork | None


def read_contents(module: ir.Module, clustered: ir.Module | None = None) -> PlanContents:
    """`module` is an exported module, `clustered` the same step behind clustering. Raises
    ValueError when a part is missing."""
    program = read_program(module)
    meshes = read_topology(program.main)
    return PlanContents(
        summary=summarize(module),
        meshes=meshes,
        placements=grouped(place(read_exported(module).arguments, meshes)),
        collective_shares=collective_shares(_runs(program, meshes), read_cluster(module)),
        routes=_routes(program),
        layers=None if clustered is None else _layers(clustered),
    )


def _layers(clustered: ir.Module) -> LayerWork | None:
    program = read_program(clustered)
    has_layers = all(LAYER in op.attributes for op in program.body_ops)
    return read_layers(program) if has_layers else None


def _runs(program: StepProgram, meshes: Sequence[Mesh]) -> list[FragmentRun]:
    by_name = {mesh.name: mesh for mesh in meshes}
    return [
        FragmentRun(by_name[ir.StringAttr(op.attributes["mesh_name"]).value], read_cost(op), times)
        for op, times in _ops(program)
        if op.name == "mpmd.fragment_call"
    ]


def _ops(program: StepProgram) -> list[tuple[ir.Operation, int]]:
    """Calls and transfers, and how often a step runs them."""
    outside = [(op, 1) for op in body_of(program.main_block)]
    return [*outside, *((op, program.num_microbatches) for op in program.body_ops)]


def _routes(program: StepProgram) -> tuple[MeshTransfers, ...]:
    """In the order of the program; transfers inside a mesh are none."""
    in_body = set(program.body_ops)
    sums: dict[tuple[str, str, bool], tuple[int, int, float]] = {}
    for op, times in _ops(program):
        if op.name != "mpmd.transfer" or RESHARDING not in op.attributes:
            continue
        source = parse_mesh_tensor(op.operands[0].type).mesh
        target = parse_mesh_tensor(op.results[0].type).mesh
        if source == target:
            continue
        planned = ir.DictAttr(op.attributes[RESHARDING])
        key = (source, target, op in in_body)
        tensors, size, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (
            tensors + times,
            size + times * ir.IntegerAttr(planned["bytes"]).value,
            seconds + times * ir.FloatAttr(planned["seconds"]).value,
        )
    return tuple(MeshTransfers(*key, *amounts) for key, amounts in sums.items())

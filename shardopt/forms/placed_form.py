"""What a module looks like when its stages are chosen: the clustered form, with a stage for every
layer and a mesh for every stage; nothing obeys it yet.

    module attributes {shardopt.cluster = {…}} {
      func.func public @main(…) attributes {
          shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0", recompute = "full"},
                             {layers = array<i64: 2, 2>, mesh = "m1"}],
          topology = #mpmd.topology<<"m0" : <["x"=2]>>, …>, shardopt.devices = […]} {
        mpmd.for … {shardopt.in_flight = array<i64: 2, 1>} …

Stages are runs of layers, in order, and stages may share a mesh. A stage runs forward what depends
on no later stage, then backward the rest: what it makes backward is read by no later stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.mpmd import IN_FLIGHT, LAYER, read_methods, read_topology
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import STAGES, PlacedStage, read_stages, stage_of_layers
from shardopt.extract.cut_reads import CutReads
from shardopt.extract.layered_body import read_body
from shardopt.extract.op_graph import reads
from shardopt.forms import clustered_form
from shardopt.forms.imported_form import Violation
from shardopt.forms.mesh_checks import mesh_errors
from shardopt.graph.offloading import MODE_TEXT as OFFLOAD_TEXT
from shardopt.graph.offloading import MODES as OFFLOAD_MODES
from shardopt.graph.op_graph import SHARED
from shardopt.graph.recomputed_units import MODE_TEXT, is_mode
from shardopt.mesh.mesh import Mesh


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form; those from the clustered form, and a missing cluster, topology
    or list of stages, are reported alone."""
    clustered = list(clustered_form.violations(module))
    if clustered:
        yield from clustered
        return
    program = read_program(module)
    try:
        cluster = read_cluster(module)
        meshes = read_topology(program.main)
        stages = read_stages(program.main)
        methods = read_methods(program.loop, len(stages))
    except (ValueError, KeyError) as error:
        yield Violation(program.main, str(error))
        return
    messages = [*mesh_errors(meshes, cluster), *_of_stages(program, stages, meshes)]
    yield from (Violation(program.main, message) for message in messages)
    yield from _of_in_flight(program, len(methods))
    # The order asks for the stage of every layer, which wrong rows do not tell.
    if not messages:
        yield from order_violations(program, stages)


def _of_stages(
    program: StepProgram, stages: Sequence[PlacedStage], meshes: Sequence[Mesh]
) -> Iterator[str]:
    names = [mesh.name for mesh in meshes]
    next_layer = 0
    for number, stage in enumerate(stages):
        where = f"in stage {number} of '{STAGES}'"
        if stage.first != next_layer or stage.last < stage.first:
            yield (
                f"expected layers from {next_layer} on {where}, found {stage.first} to {stage.last}"
            )
        if stage.mesh not in names:
            yield (
                f"expected a mesh of the topology ({', '.join(names)}) {where}, found "
                f"'{stage.mesh}'"
            )
        if not is_mode(stage.recompute):
            yield f"expected recompute as one of {MODE_TEXT} {where}, found '{stage.recompute}'"
        if stage.offload not in OFFLOAD_MODES:
            yield f"expected offload as {OFFLOAD_TEXT} {where}, found '{stage.offload}'"
        next_layer = stage.last + 1
    ops = (*program.body_ops, *program.prologue, *program.epilogue)
    layers = 1 + max((ir.IntegerAttr(op.attributes[LAYER]).value for op in ops), default=SHARED)
    if layers != next_layer:
        yield f"expected all {layers} layers in '{STAGES}', found {next_layer}"


def _of_in_flight(program: StepProgram, num_stages: int) -> Iterator[Violation]:
    if IN_FLIGHT not in program.loop.attributes:
        yield Violation(program.loop, f"expected attribute '{IN_FLIGHT}' on the loop, found none")
        return
    counts = list(ir.DenseI64ArrayAttr(program.loop.attributes[IN_FLIGHT]))
    if len(counts) != num_stages or min(counts, default=0) < 1:
        yield Violation(
            program.loop,
            f"expected a number from 1 for each of {num_stages} stages in '{IN_FLIGHT}', "
            f"found {counts}",
        )


def order_violations(program: StepProgram, stages: Sequence[PlacedStage]) -> Iterator[Violation]:
    """Operations that their stage cannot run in time, as all its forward runs before all its
    backward, and the backward of later stages before that. What is computed again never goes on to
    a later stage (`shardopt.extract.cut_reads`)."""
    rows, stage_of = read_body(program), stage_of_layers(stages)
    cut = CutReads(program, lambda layer: stage_of.get(layer, SHARED))
    made_backward: dict[ir.Value, int] = {
        value: stage_of[layer]
        for op, layer, reached in zip(rows.ops, rows.body.layers, rows.body.reached, strict=True)
        if layer != SHARED and reached > stages[stage_of[layer]].last
        for value in op.results
    }
    for op, layer in zip(rows.ops, rows.body.layers, strict=True):
        if layer == SHARED:
            continue
        stage, instead = stage_of[layer], cut.of(op)
        for value in (instead.get(value, value) for value in reads(op)):
            if made_backward.get(value, stage) < stage:
                yield Violation(
                    op,
                    f"expected '{op.name}' of stage {stage} to read backward values of stages from "
                    f"{stage} on, found one of stage {made_backward[value]}",
                )
                break

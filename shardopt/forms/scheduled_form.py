"""What a module looks like after the schedule phase: the loop names a schedule that can run, and
fits the memory.

    mpmd.for (…) {iterations = 8 : ui32, shardopt.schedule = {name = "1f1b", makespan_seconds = 0.1
                  : f64, bubble = 0.27 : f64, peak_bytes = array<i64: 4096, 2048>}} …

Seconds are those of one step; bytes are the peak of one device of each mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.mpmd import SCHEDULE, read_topology
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.schedule import read_schedule
from shardopt.extract.pipeline_graph import peak_bytes, read_pipeline, simulate_pipeline
from shardopt.forms.figures import figure_violations
from shardopt.forms.imported_form import Violation
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh
from shardopt.schedule.schedules import ScheduleText
from shardopt.support.errors import UserError

_KEYS = {
    "name": ir.StringAttr,
    "makespan_seconds": ir.FloatAttr,
    "bubble": ir.FloatAttr,
    "peak_bytes": ir.DenseI64ArrayAttr,
}


def violations(module: ir.Module, limits_memory: bool = True) -> Iterator[Violation]:
    """All departures from the form; a missing loop, cluster, topology or schedule is reported
    alone. Peaks have to lie within the memory of the devices unless no plan has to."""
    try:
        program = read_program(module)
        cluster = read_cluster(module)
        meshes = read_topology(program.main)
    except (ValueError, KeyError) as error:
        yield Violation(module.operation, str(error))
        return
    malformed = _malformed(program.loop)
    if malformed:
        yield Violation(program.loop, malformed)
        return
    if impossible := list(figure_violations(module, {mesh.name: mesh for mesh in meshes})):
        yield from impossible  # the simulator adds them up
        return
    schedule = ir.DictAttr(program.loop.attributes[SCHEDULE])
    text = read_schedule(program.loop)
    assert text is not None  # else malformed
    written = tuple(ir.DenseI64ArrayAttr(schedule["peak_bytes"]))
    if limits_memory:
        yield from _of_memory(program, meshes, cluster, written)
    yield from _of_order(program, meshes, text, written)


def _malformed(loop: ir.Operation) -> str:
    if SCHEDULE not in loop.attributes:
        return f"expected attribute '{SCHEDULE}' on the microbatch loop, found none"
    schedule = ir.DictAttr(loop.attributes[SCHEDULE])
    wrong = [
        key
        for key, class_ in _KEYS.items()
        if key not in schedule or not isinstance(schedule[key], class_)
    ]
    return (
        f"expected {', '.join(_KEYS)} in '{SCHEDULE}', found no valid {', '.join(wrong)}"
        if wrong
        else ""
    )


def _of_order(
    program: StepProgram, meshes: Sequence[Mesh], text: ScheduleText, written: tuple[int, ...]
) -> Iterator[Violation]:
    """What the order forbids, and whether it holds what is written of it: that follows from the
    lists alone."""
    try:
        pipeline = read_pipeline(program, tuple(meshes))
        result = simulate_pipeline(text, pipeline, program.num_microbatches)
    except (UserError, ValueError) as error:
        yield Violation(program.loop, str(error))
        return
    for mesh, held, peak in zip(meshes, peak_bytes(pipeline, result), written, strict=False):
        if held != peak:
            yield Violation(
                program.loop,
                f"expected a peak of {held} bytes on mesh '{mesh.name}', which its tasks "
                f"hold, found {peak}",
            )


def _of_memory(
    program: StepProgram, meshes: Sequence[Mesh], cluster: Cluster, written: tuple[int, ...]
) -> Iterator[Violation]:
    for mesh, peak in zip(meshes, written, strict=True):
        limit = cluster.group_of(mesh).device.memory_bytes
        if peak > limit:
            yield Violation(
                program.loop,
                f"expected at most {limit} bytes on a device of cluster {cluster}, "
                f"found a peak of {peak} bytes on mesh '{mesh.name}'",
            )

"""The events of all workers on one clock, with what the program says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Copy,
    Instruction,
    MeshProgram,
    Move,
    Program,
    Recv,
    Reshard,
    Route,
    Run,
    Send,
)
from shardopt.runtime.program.labels import task_of
from shardopt.runtime.program.memory import mesh_memory
from shardopt.runtime.program.text import brief_instruction
from shardopt.runtime.tracing.recorder import DO, EXECUTE, TRANSMIT
from shardopt.schedule.tasks import Task

# The rows that between them show every instruction of the worker's own thread once.
OWN_THREAD = ("worker", "receive")  # and SENDs that devices do

_TIMES = (3, 4, 5)  # fields of an event that are moments of the worker's clock

Row = Literal["compute", "send", "receive", "worker"]


@dataclass(frozen=True)
class Span:
    """One instruction of one step on one worker; seconds from the first event of the trace.

    It waits from `start` to `ready` (for its values, for a message, for the device), then works
    until `end`. `row` is where it is drawn: the execution of a RUN, the sending of a SEND, RECV and
    what completes it, and, as "worker", every instruction as the worker's own thread goes through
    it."""

    worker: str
    step: int
    position: int
    row: Row
    text: str
    start_seconds: float
    ready_seconds: float
    end_seconds: float
    bytes: int
    peer: str  # the worker that a message is for, where it was sent by a thread
    tag: int | None
    task: Task | None


def route_bytes(route: Route) -> int:
    """What travels by a route, each piece once."""
    elements = sum(prod(limit - start for start, limit in piece.slice) for piece in route.pieces)
    return elements * numpy_dtype(route.source.dtype).itemsize


def spans_of(program: Program, traces: Mapping[str, Mapping[str, Any]]) -> tuple[Span, ...]:
    """`traces` are those of `Recorder`, by worker: the name of a mesh, or of a host of one,
    `mesh/0`."""
    parts = {part.mesh.name: part for part in program.meshes}
    rows = [
        (
            worker,
            [value + trace["offset_ns"] if k in _TIMES else value for k, value in enumerate(event)],
        )
        for worker, trace in traces.items()
        for event in trace["events"]
    ]
    sent = {(worker, event[0], event[1]) for worker, event in rows if event[2] == TRANSMIT}
    zero = min((event[3] for _, event in rows), default=0)
    spans = (
        _span(
            program,
            parts[worker.partition("/")[0]],
            worker,
            event,
            zero,
            (worker, event[0], event[1]) in sent,
        )
        for worker, event in rows
    )
    return tuple(
        sorted(spans, key=lambda span: (span.start_seconds, span.worker, span.position, span.row))
    )


def _span(
    program: Program, part: MeshProgram, worker: str, event: list[Any], zero: int, apart: bool
) -> Span:
    """`apart`: another event tells of the sending, which was not done by the worker's own
    thread."""
    step, position, what, began, ready, ended, bytes_, peer = event
    each = part.instructions[position] if position < len(part.instructions) else None
    bytes_ = bytes_ or _received(program, each)
    start, arrived, end = ((moment - zero) * 1e-9 for moment in (began, ready, ended))
    return Span(
        worker=worker,
        step=step,
        position=position,
        row=_row(what, each, apart),
        text="end of step" if each is None else brief_instruction(each),
        start_seconds=start,
        ready_seconds=arrived,
        end_seconds=end,
        bytes=bytes_,
        peer=peer,
        tag=each.tag if isinstance(each, Send | Recv) else None,
        task=task_of(each.label) if isinstance(each, Run) and what == EXECUTE else None,
    )


def _row(what: int, each: Instruction | None, apart: bool) -> Row:
    if what == EXECUTE:
        return "compute"
    if what == TRANSMIT:
        return "send"
    assert what == DO
    if isinstance(each, Send) and not apart:  # devices do it, in a stream of theirs
        return "send"
    receives = isinstance(each, Recv | Allgather | Broadcast | Reshard | Copy | Move)
    return "receive" if receives else "worker"


def _received(program: Program, each: Instruction | None) -> int:
    match each:
        case Recv(routes=routes):
            return sum(route_bytes(program.routes[route]) for route in routes)
        case Reshard(route=route):
            return route_bytes(program.routes[route])
    return 0


def task_times(spans: Iterable[Span], step: int) -> dict[Task, tuple[float, float]]:
    """Start and end of every task of a step: of the first of its executions, and of the last."""
    times: dict[Task, tuple[float, float]] = {}
    for span in spans:
        if span.task is not None and span.step == step:
            start, end = times.get(span.task, (span.ready_seconds, span.end_seconds))
            times[span.task] = (min(start, span.ready_seconds), max(end, span.end_seconds))
    return times


def memory_over_time(
    program: Program, spans: Iterable[Span], step: int
) -> dict[str, tuple[tuple[float, int], ...]]:
    """By mesh, when in a step its first worker was done with an instruction, and what a device held
    then."""
    bytes_after = {part.mesh.name: mesh_memory(part).after for part in program.meshes}
    points_of: dict[str, list[tuple[float, int]]] = {name: [] for name in bytes_after}
    for span in spans:
        mesh, _, host = span.worker.partition("/")
        if (
            span.step == step
            and span.row in OWN_THREAD
            and host in ("", "0")
            and span.position < len(bytes_after[mesh])
        ):
            points_of[mesh].append((span.end_seconds, bytes_after[mesh][span.position]))
    return {name: tuple(sorted(points)) for name, points in points_of.items()}

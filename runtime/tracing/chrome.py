"""A measured run as a Chrome trace, to be opened in Perfetto or chrome://tracing.

Each worker is a process with rows for what it computes, sends and receives, and for its own thread.
Arrows lead from SEND to RECV. Under them is what a device of the mesh holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.memory import mesh_memory
from shardopt.runtime.tracing.spans import OWN_THREAD, Span

_MICROSECONDS = 1e6  # the unit of `ts` and `dur`
_ROWS = ("compute", "send", "receive", "worker")


def run_trace(program: Program, spans: Sequence[Span]) -> dict[str, Any]:
    """The trace as a value for `json.dump`, times in microseconds."""
    workers = sorted({span.worker for span in spans})
    pids = {worker: number for number, worker in enumerate(workers)}
    events = [
        *_names(pids),
        *_boxes(pids, spans),
        *_arrows(pids, spans),
        *_memory(pids, program, spans),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    for worker, pid in pids.items():
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"mesh {worker}"}}
        for tid, row in enumerate(_ROWS):
            yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": row}}


def _boxes(pids: dict[str, int], spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    for span in spans:
        # An execution is drawn from where the device is free for it; all others with what they wait
        # for.
        start = span.ready_seconds if span.row == "compute" else span.start_seconds
        yield {
            "name": span.text,
            "cat": span.row,
            "ph": "X",
            "pid": pids[span.worker],
            "tid": _ROWS.index(span.row),
            "ts": start * _MICROSECONDS,
            "dur": (span.end_seconds - start) * _MICROSECONDS,
            "args": {
                "step": span.step,
                "instruction": span.position,
                "waits_us": (span.ready_seconds - span.start_seconds) * _MICROSECONDS,
                "bytes": span.bytes,
            },
        }


def _arrows(pids: dict[str, int], spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """From each message to the RECVs of its tag on the worker that it is for; where devices send,
    to all of them."""
    taken: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        if span.tag is not None and span.row == "receive":
            taken.setdefault((span.step, span.tag), []).append(span)
    number = 0
    for span in spans:
        if span.tag is None or span.row != "send":
            continue
        for target in taken.get((span.step, span.tag), ()):
            if span.peer not in ("", target.worker):
                continue
            common = {"name": f"message #{span.tag}", "cat": "message", "id": number}
            ends = (("s", span, span.ready_seconds), ("f", target, target.end_seconds))
            for phase, end, seconds in ends:
                at = {
                    "pid": pids[end.worker],
                    "tid": _ROWS.index(end.row),
                    "ts": seconds * _MICROSECONDS,
                }
                yield {**common, "ph": phase, **({"bp": "e"} if phase == "f" else {}), **at}
            number += 1


def _memory(
    pids: dict[str, int], program: Program, spans: Sequence[Span]
) -> Iterator[dict[str, Any]]:
    """Buffers live from instruction to instruction of the worker's own thread."""
    after = {part.mesh.name: mesh_memory(part).after for part in program.meshes}
    for span in spans:
        bytes_after = after[span.worker.partition("/")[0]]
        if span.row not in OWN_THREAD or span.position >= len(bytes_after):
            continue
        yield {
            "name": "bytes of a device",
            "ph": "C",
            "pid": pids[span.worker],
            "ts": span.end_seconds * _MICROSECONDS,
            "args": {"bytes": bytes_after[span.position]},
        }

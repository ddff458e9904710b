"""A simulated step as a Chrome trace, to be opened in Perfetto or chrome://tracing.

Each mesh is a thread with its tasks, transfers are asynchronous events (they overlap), memory is a
counter per mesh."""

from __future__ import annotations

from typing import Any

from shardopt.schedule.simulator import SimulationResult

_MICROSECONDS = 1e6  # the unit of `ts` and `dur` in the trace event format
_PROCESS = 0


def chrome_trace(result: SimulationResult) -> dict[str, Any]:
    """The trace as a value for `json.dump`, times in microseconds."""
    events = (
        _thread_names(result)
        + _task_events(result)
        + _transfer_events(result)
        + _memory_events(result)
    )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": result.schedule.name,
            "makespan_seconds": result.makespan_seconds,
            "bubble_fraction": result.bubble_fraction,
        },
    }


def _thread_names(result: SimulationResult) -> list[dict[str, Any]]:
    return [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": _PROCESS,
            "tid": mesh,
            "args": {"name": f"mesh {mesh}"},
        }
        for mesh in range(result.schedule.num_meshes)
    ]


def _task_events(result: SimulationResult) -> list[dict[str, Any]]:
    return [
        {
            "name": str(span.task),
            "cat": span.task.kind.name.lower(),
            "ph": "X",
            "pid": _PROCESS,
            "tid": span.mesh,
            "ts": span.start_seconds * _MICROSECONDS,
            "dur": (span.end_seconds - span.start_seconds) * _MICROSECONDS,
            "args": {"stage": span.task.stage, "microbatch": span.task.microbatch},
        }
        for span in result.spans()
    ]


def _transfer_events(result: SimulationResult) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{transfer.src} to {transfer.dst}",
            "cat": "transfer",
            "ph": phase,
            "id": number,
            "pid": _PROCESS,
            "tid": result.schedule.stage_to_mesh[transfer.src.stage],
            "ts": seconds * _MICROSECONDS,
        }
        for number, transfer in enumerate(result.transfers)
        for phase, seconds in (("b", transfer.start_seconds), ("e", transfer.end_seconds))
    ]


def _memory_events(result: SimulationResult) -> list[dict[str, Any]]:
    return [
        {
            "name": f"memory of mesh {mesh}",
            "ph": "C",
            "pid": _PROCESS,
            "ts": seconds * _MICROSECONDS,
            "args": {"bytes": held},
        }
        for mesh, profile in enumerate(result.memory)
        if any(profile.bytes)
        for seconds, held in zip(profile.seconds, profile.bytes, strict=True)
    ]

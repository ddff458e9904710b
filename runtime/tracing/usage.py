"""What a step took of a worker: the time that its devices computed, and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Of one worker, in the newest step and at its end.

    busy_seconds   in which some execution of the mesh ran
    task_seconds   of these, those of the schedule's tasks of microbatches
    device_bytes   that one device of the mesh holds in arrays that are alive
    process_bytes  of memory that the worker's process has (its resident set); workers that are
                   threads of one process all tell the same
    """

    busy_seconds: float
    task_seconds: float
    device_bytes: int
    process_bytes: int


def usage_of(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Usage]:
    """By worker, from what `Worker.usage` answers."""
    return {worker: Usage(**answer) for worker, answer in answers.items()}


def busy_shares(usage: Mapping[str, Usage], seconds: float) -> dict[str, float]:
    """By mesh, the share of a step of `seconds` in which its devices computed."""
    busy = _of_meshes({worker: each.busy_seconds for worker, each in usage.items()})
    # On a machine with other work the thread that awaits executions notes their ends late.
    return {mesh: min(each / seconds, 1.0) for mesh, each in busy.items()}


def task_seconds(usage: Mapping[str, Usage]) -> dict[str, float]:
    """By mesh."""
    return _of_meshes({worker: each.task_seconds for worker, each in usage.items()})


def _of_meshes(values: Mapping[str, float]) -> dict[str, float]:
    """The mean of the hosts of each mesh."""
    of_meshes: dict[str, list[float]] = {}
    for worker, value in values.items():
        of_meshes.setdefault(worker.partition("/")[0], []).append(value)
    return {mesh: sum(each) / len(each) for mesh, each in of_meshes.items()}


def process_bytes() -> int:
    """The resident set of this process; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

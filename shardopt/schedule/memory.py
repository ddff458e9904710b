"""How long things stay in memory under a schedule: microbatches in flight, and bytes over time.

On one mesh tasks run one after the other, so what is alive depends only on the order of the mesh's list; times come in
only when the profile is drawn over seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.tasks import StageTask, Task


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one mesh as a step function: from `seconds[i]` until `seconds[i + 1]` it holds `bytes[i]` bytes."""

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes)


def peak_in_flight(tasks: Sequence[Task]) -> int:
    """Largest number of (stage, microbatch) pairs alive at once in a list, each from its first task to its last."""
    last = {(task.stage, task.microbatch): position for position, task in enumerate(tasks)}
    alive: set[tuple[int, int]] = set()
    peak = 0
    for position, task in enumerate(tasks):
        if task.kind.runs_once:
            continue
        unit = (task.stage, task.microbatch)
        alive.add(unit)
        peak = max(peak, len(alive))
        if last[unit] == position:
            alive.remove(unit)
    return peak


def release_positions(tasks: Sequence[Task], graph: StageGraph) -> tuple[int, ...]:
    """For each task of a mesh's list, the position of the task after which what it allocated is free.

    A task's activations live until the last task of the same stage and microbatch that reads them according to the
    graph, or until its own end if there is none. The readers are direct ones: a backward-weight task keeps alive what
    it has an edge from.
    """
    position_of = {task: position for position, task in enumerate(tasks)}
    readers: dict[StageTask, list[StageTask]] = {}
    for edge in graph.edges:
        if edge.src.stage == edge.dst.stage and not edge.dst.kind.runs_once:
            readers.setdefault(edge.src, []).append(edge.dst)
    releases = []
    for position, task in enumerate(tasks):
        reads = (Task(reader.kind, reader.stage, task.microbatch) for reader in readers.get(task.stage_task, ()))
        releases.append(max((position_of[read] for read in reads), default=position))
    return tuple(releases)


def memory_profile(
    tasks: Sequence[Task],
    graph: StageGraph,
    activation_bytes: Mapping[StageTask, int],
    fixed_bytes: int,
    start_seconds: Sequence[float],
    end_seconds: Sequence[float],
) -> MemoryProfile:
    """Bytes over time of one mesh: `fixed_bytes`, plus `activation_bytes` of each task from its start to its release.

    Kinds without an entry in `activation_bytes` allocate nothing. Values in transit between meshes are not counted.
    """
    count = len(tasks)
    allocated = np.array([activation_bytes.get(task.stage_task, 0) for task in tasks], dtype=np.int64)
    released = np.zeros(count, dtype=np.int64)
    np.add.at(released, np.array(release_positions(tasks, graph), dtype=np.int64), allocated)
    after = fixed_bytes + np.cumsum(allocated - released)
    levels = np.empty(2 * count + 1, dtype=np.int64)
    times = np.zeros(2 * count + 1)
    levels[0] = fixed_bytes
    levels[1::2], levels[2::2] = after + released, after  # while a task runs, and from its end on
    times[1::2], times[2::2] = start_seconds, end_seconds
    return MemoryProfile(tuple(times.tolist()), tuple(levels.tolist()))

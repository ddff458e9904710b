"""How long things stay in memory under a schedule: microbatches in flight, and bytes over time.

On one mesh tasks run one after the other, so what is alive depends only on the order of the mesh's list; times come in
only when the profile is drawn over seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardopt.schedule.tasks import ONCE, StageTask, Task
from shardopt.schedule.validate import LinkedSchedule


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
    last: dict[tuple[int, int], int] = {}
    for position, task in enumerate(tasks):
        if task.microbatch != ONCE:
            last[task.stage, task.microbatch] = position
    ends = set(last.values())
    alive: set[tuple[int, int]] = set()
    peak = 0
    for position, task in enumerate(tasks):
        if task.microbatch == ONCE:
            continue
        alive.add((task.stage, task.microbatch))
        peak = max(peak, len(alive))
        if position in ends:
            alive.remove((task.stage, task.microbatch))
    return peak


def release_nodes(linked: LinkedSchedule) -> list[int]:
    """For each node the one after which what it allocated is free.

    A task's activations live until the last task of the same stage and microbatch that reads them according to the
    graph, or until its own end if there is none. The readers are direct ones: a backward-weight task keeps alive what
    it has an edge from.
    """
    edges = linked.graph.edges
    stays = [edge.src.stage == edge.dst.stage and not edge.dst.kind.runs_once for edge in edges]
    releases = list(range(len(linked.nodes)))
    for node, sources in enumerate(linked.predecessors):
        for source, edge in sources:
            if stays[edge] and node > releases[source]:
                releases[source] = node
    return releases


def memory_profiles(
    linked: LinkedSchedule,
    activation_bytes: Mapping[StageTask, int],
    fixed_bytes: Sequence[int],
    start_seconds: Sequence[Sequence[float]],
    end_seconds: Sequence[Sequence[float]],
) -> Iterator[MemoryProfile]:
    """Bytes over time of each mesh: its `fixed_bytes`, plus `activation_bytes` of each task from its start to its
    release.

    Kinds without an entry in `activation_bytes` allocate nothing. Values in transit between meshes are not counted.
    """
    if not any(activation_bytes.values()):
        yield from (MemoryProfile((0.0,), (fixed,)) for fixed in fixed_bytes)
        return
    sizes = {(task.kind, task.stage): size for task, size in activation_bytes.items()}
    allocated = np.array([sizes.get((task.kind, task.stage), 0) for task in linked.nodes], dtype=np.int64)
    released = np.zeros(len(linked.nodes), dtype=np.int64)
    np.add.at(released, np.array(release_nodes(linked), dtype=np.int64), allocated)
    position = 0
    for mesh, tasks in enumerate(linked.schedule.tasks):
        own = slice(position, position + len(tasks))
        position += len(tasks)
        yield _profile(allocated[own], released[own], fixed_bytes[mesh], start_seconds[mesh], end_seconds[mesh])


def _profile(
    allocated: np.ndarray, released: np.ndarray, fixed: int, starts: Sequence[float], ends: Sequence[float]
) -> MemoryProfile:
    """The levels while each task runs and from its end on."""
    after = fixed + np.cumsum(allocated - released)
    levels = np.empty(2 * len(allocated) + 1, dtype=np.int64)
    times = np.zeros(2 * len(allocated) + 1)
    levels[0] = fixed
    levels[1::2], levels[2::2] = after + released, after
    times[1::2], times[2::2] = starts, ends
    return MemoryProfile(tuple(times.tolist()), tuple(levels.tolist()))

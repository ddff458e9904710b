"""How long things stay in memory under a schedule: microbatches in flight, and bytes over time.

On one mesh tasks run one after the other, so what is alive depends only on the order of the mesh's
list; times come in only when the profile is drawn over seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.tasks import ONCE, StageTask, Task, TaskKind
from shardopt.schedule.validate import LinkedSchedule


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one mesh as a step function: from `seconds[i]` until `seconds[i + 1]` it holds
    `bytes[i]` bytes."""

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]

    @cached_property
    def peak_bytes(self) -> int:
        return max(self.bytes)


def peak_in_flight(tasks: Sequence[Task]) -> int:
    """Largest number of (stage, microbatch) pairs alive at once in a list, each from its first task
    to its last."""
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


def in_flight_beside(tasks: Sequence[Task]) -> dict[tuple[StageTask, int], int]:
    """For each task of a list and each other stage in it: the most microbatches of that stage that
    are alive, each from its first task to its last, while the task runs."""
    alive_until: dict[tuple[int, int], int] = {}
    for position, task in enumerate(tasks):
        if task.microbatch != ONCE:
            alive_until[task.stage, task.microbatch] = position
    stages = dict.fromkeys(stage for stage, _ in alive_until)
    alive = dict.fromkeys(stages, 0)
    seen: set[tuple[int, int]] = set()
    most: dict[tuple[StageTask, int], int] = {}
    for position, task in enumerate(tasks):
        if task.microbatch == ONCE:
            continue
        pair = task.stage, task.microbatch
        alive[task.stage] += pair not in seen
        seen.add(pair)
        for stage in stages:
            if stage != task.stage:
                key = task.stage_task, stage
                most[key] = max(most.get(key, 0), alive[stage])
        alive[task.stage] -= alive_until[pair] == position
    return most


@dataclass(frozen=True)
class LiveBytes:
    """`bytes` that a device of a mesh holds for each microbatch, from the start of the first of
    `tasks`, which are all of that mesh, to the end of the last. Where `taken_over`, only to its
    start: what it makes takes the memory. What `stays` is there to the end of all."""

    tasks: tuple[StageTask, ...]
    bytes: int
    taken_over: bool = False
    stays: bool = False


def live_for_readers(
    activation_bytes: Mapping[StageTask, int], graph: StageGraph
) -> tuple[LiveBytes, ...]:
    """What each task allocates lives until the last task of the same stage and microbatch that
    reads it according to the graph, or until its own end if there is none. The readers are direct
    ones: a backward-weight task keeps alive what it has an edge from."""
    readers: dict[StageTask, list[StageTask]] = {}
    for edge in graph.edges:
        if edge.src.stage == edge.dst.stage and not edge.dst.kind.runs_once:
            readers.setdefault(edge.src, []).append(edge.dst)
    return tuple(
        LiveBytes((task, *readers.get(task, ())), size)
        for task, size in activation_bytes.items()
        if size
    )


def memory_profiles(
    linked: LinkedSchedule,
    live: Sequence[LiveBytes],
    fixed_bytes: Sequence[int],
    start_seconds: Sequence[Sequence[float]],
    end_seconds: Sequence[Sequence[float]],
) -> Iterator[MemoryProfile]:
    """Bytes over time of each mesh: its `fixed_bytes`, and what is live for every microbatch."""
    if not live:
        yield from (MemoryProfile((0.0,), (fixed,)) for fixed in fixed_bytes)
        return
    nodes = _nodes_of({task for each in live for task in each.tasks}, linked)
    allocated = np.zeros(len(linked.nodes), dtype=np.int64)
    released = np.zeros(len(linked.nodes), dtype=np.int64)
    for each in live:
        # Nodes of a mesh are numbered in the order of its list: the smallest one runs first.
        of_tasks = np.array([nodes[task] for task in each.tasks if nodes[task]])
        if of_tasks.size:
            # No node twice: each is of another microbatch.
            allocated[of_tasks.min(axis=0)] += each.bytes
            last = of_tasks.max(axis=0)
            if each.taken_over:
                allocated[last] -= each.bytes
            elif not each.stays:
                released[last] += each.bytes
    position = 0
    for mesh, tasks in enumerate(linked.schedule.tasks):
        nodes_of_mesh = slice(position, position + len(tasks))
        position += len(tasks)
        yield _profile(
            allocated[nodes_of_mesh],
            released[nodes_of_mesh],
            fixed_bytes[mesh],
            start_seconds[mesh],
            end_seconds[mesh],
        )


def _nodes_of(tasks: Set[StageTask], linked: LinkedSchedule) -> dict[StageTask, list[int]]:
    """The nodes of some tasks by microbatch; none of tasks that the schedule does not list."""
    by_task: dict[tuple[TaskKind, int], list[tuple[int, int]]] = {
        (task.kind, task.stage): [] for task in tasks
    }
    for node, task in enumerate(linked.nodes):
        runs = by_task.get((task.kind, task.stage))
        if runs is not None:
            runs.append((task.microbatch, node))
    return {task: [node for _, node in sorted(by_task[task.kind, task.stage])] for task in tasks}


def _profile(
    allocated: np.ndarray,
    released: np.ndarray,
    fixed: int,
    starts: Sequence[float],
    ends: Sequence[float],
) -> MemoryProfile:
    """The levels while each task runs and from its end on."""
    after = fixed + np.cumsum(allocated - released)
    levels = np.empty(2 * len(allocated) + 1, dtype=np.int64)
    times = np.zeros(2 * len(allocated) + 1)
    levels[0] = fixed
    # What a task releases is there until it ends.
    levels[1::2], levels[2::2] = after + released, after
    times[1::2], times[2::2] = starts, ends
    return MemoryProfile(tuple(times.tolist()), tuple(levels.tolist()))

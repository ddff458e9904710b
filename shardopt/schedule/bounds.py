"""How short a step can be at best, whatever the order of tasks.

`lower_bound_seconds` is quick: the busiest mesh with its fill and drain, and the longest chain of
one microbatch. `one_machine_bound_seconds` looks at each mesh more closely. The k-th run of a task
cannot start before k + 1 microbatches are through everything it waits for, and after it the rest of
the microbatches have to get through everything that waits for it: every run has a release time and
a tail. The shortest schedule of one mesh with interruptions allowed is found by Jackson's rule
(among the released, the longest tail first; Carlier 1982), and no real schedule is shorter."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.tasks import StageTask
from shardopt.schedule.workload import Workload


@dataclass(frozen=True)
class LongestPaths:
    """Longest paths through the graph of one microbatch, for each task: `head` seconds up to its
    start, `tail` seconds from its end. `before` and `behind`: the longest repeated task on any path
    up to it and from it, the least by which runs of two microbatches follow each other."""

    head: Mapping[StageTask, float]
    tail: Mapping[StageTask, float]
    before: Mapping[StageTask, float]
    behind: Mapping[StageTask, float]
    order: tuple[StageTask, ...]


def lower_bound_seconds(work: Workload) -> float:
    """No schedule is shorter: the busiest mesh with the shortest paths to its first and from its
    last task, and the longest chain of tasks and transfers of one microbatch."""
    paths = longest_paths(work)
    longest = max(
        (paths.head[task] + work.task_seconds[task] + paths.tail[task] for task in paths.order),
        default=0.0,
    )
    busiest = 0.0
    for mesh in range(work.num_meshes):
        tasks = [task for task in paths.order if work.stage_to_mesh[task.stage] == mesh]
        if tasks:
            busy = sum(_runs(work, task) * work.task_seconds[task] for task in tasks)
            busiest = max(
                busiest,
                min(paths.head[task] for task in tasks)
                + busy
                + min(paths.tail[task] for task in tasks),
            )
    return max(longest, busiest)


def one_machine_bound_seconds(work: Workload) -> float:
    """At least `lower_bound_seconds`, and no schedule is shorter; O(tasks log tasks)."""
    paths, bound = longest_paths(work), lower_bound_seconds(work)
    for mesh in range(work.num_meshes):
        jobs = []
        for task in paths.order:
            if work.stage_to_mesh[task.stage] != mesh:
                continue
            count = _runs(work, task)
            for run in range(count):
                release = paths.head[task] + run * paths.before[task]
                tail = paths.tail[task] + (count - 1 - run) * paths.behind[task]
                jobs.append((release, work.task_seconds[task], tail))
        bound = max(bound, _jackson(jobs))
    return bound


def _runs(work: Workload, task: StageTask) -> int:
    return 1 if task.kind.runs_once else work.num_microbatches


def _jackson(jobs: list[tuple[float, float, float]]) -> float:
    """The least time by which all (release, seconds, tail) are through their tails, with
    interruptions."""
    waiting = sorted(jobs, reverse=True)
    ready: list[tuple[float, float]] = []  # (-tail, seconds left)
    now = latest = 0.0
    while waiting or ready:
        if not ready:
            now = max(now, waiting[-1][0])
        while waiting and waiting[-1][0] <= now:
            _, seconds, tail = waiting.pop()
            heapq.heappush(ready, (-tail, seconds))
        negative, left = heapq.heappop(ready)
        pause = waiting[-1][0] - now if waiting else left
        if left > pause:
            heapq.heappush(ready, (negative, left - pause))
            now += pause
        else:
            now += left
            latest = max(latest, now - negative)
    return latest


def longest_paths(work: Workload) -> LongestPaths:
    """Of all tasks of a graph; `order` has every source before its readers."""
    into: dict[StageTask, list[tuple[StageTask, float]]] = {task: [] for task in work.graph.tasks}
    out: dict[StageTask, list[tuple[StageTask, float]]] = {task: [] for task in work.graph.tasks}
    for edge, delay in zip(work.graph.edges, work.transfer_seconds, strict=True):
        into[edge.dst].append((edge.src, delay))
        out[edge.src].append((edge.dst, delay))
    order = _program_order(work.graph, out)
    seconds = work.task_seconds.__getitem__
    head, before = _longest(order, into, seconds)
    tail, behind = _longest(order[::-1], out, seconds)
    return LongestPaths(head, tail, before, behind, order)


def _longest(
    order: tuple[StageTask, ...],
    sources: Mapping[StageTask, list[tuple[StageTask, float]]],
    seconds: Callable[[StageTask], float],
) -> tuple[dict[StageTask, float], dict[StageTask, float]]:
    """The longest path up to each task, and the longest task on paths there that runs for every
    microbatch."""
    seconds_to: dict[StageTask, float] = {}
    most: dict[StageTask, float] = {}
    for task in order:
        seconds_to[task] = max(
            (seconds_to[source] + seconds(source) + delay for source, delay in sources[task]),
            default=0.0,
        )
        passed = (
            max(most[source], seconds(source))
            for source, _ in sources[task]
            if not source.kind.runs_once
        )
        most[task] = 0.0 if task.kind.runs_once else max(passed, default=0.0)
    return seconds_to, most


def _program_order(
    graph: StageGraph, out: Mapping[StageTask, list[tuple[StageTask, float]]]
) -> tuple[StageTask, ...]:
    """The tasks with every source before its readers."""
    waits = dict.fromkeys(graph.tasks, 0)
    for edge in graph.edges:
        waits[edge.dst] += 1
    ready = [task for task in graph.tasks if not waits[task]]
    for task in ready:
        for target, _ in out[task]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return tuple(ready)

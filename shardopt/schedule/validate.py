"""Check that a schedule can run, and join it with its dependences into plain integers.

`link` is the one place where schedule and graph meet. It checks that

1. each mesh lists only tasks of its own stages and existing microbatches, none twice;
2. every task of the graph is listed, for every microbatch;
3. all meshes reach the end of their lists when each waits, before a task, for the values the task
   needs.

The third check sweeps over the lists once, in O(tasks + edges), and so finds a global order in
which all can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.tasks import ONCE, Schedule, StageTask, Task
from shardopt.support.errors import UserError

T = TypeVar("T")

_MAX_BLOCKED_SHOWN = 4  # a deadlock of 64 meshes is understood from the first few


class ScheduleError(UserError):
    """A schedule that cannot run on the given graph."""


@dataclass(frozen=True)
class LinkedSchedule:
    """A checked schedule over integers: node n is the n-th task, counting through mesh 0's list,
    then mesh 1's, …

    `predecessors[n]` are (node, index into graph.edges) pairs; `order` lists all nodes, each after
    its predecessors and after the earlier tasks of its mesh."""

    schedule: Schedule
    graph: StageGraph
    nodes: tuple[Task, ...]
    mesh_of: tuple[int, ...]
    predecessors: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[int, ...]

    @cached_property
    def readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each node the (node, index into graph.edges) pairs that read what it makes."""
        readers_of: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for node, sources in enumerate(self.predecessors):
            for source, edge in sources:
                readers_of[source].append((node, edge))
        return tuple(map(tuple, readers_of))

    def rows(self, values: Sequence[T]) -> tuple[tuple[T, ...], ...]:
        """Values of all nodes by mesh."""
        by_mesh, position = [], 0
        for tasks in self.schedule.tasks:
            by_mesh.append(tuple(values[position : position + len(tasks)]))
            position += len(tasks)
        return tuple(by_mesh)


def link(schedule: Schedule, graph: StageGraph) -> LinkedSchedule:
    """Check `schedule` against `graph` and return both as integers; raises ScheduleError."""
    # First, as the tables below are indexed by the numbers of tasks.
    _check_tasks(schedule)
    nodes = tuple(task for tasks in schedule.tasks for task in tasks)
    mesh_of = tuple(mesh for mesh, tasks in enumerate(schedule.tasks) for _ in tasks)
    predecessors = _predecessors(graph, _node_table(schedule, graph, nodes), len(nodes))
    order = _sweep(schedule, nodes, mesh_of, predecessors)
    return LinkedSchedule(schedule, graph, nodes, mesh_of, predecessors, order)


def _check_tasks(schedule: Schedule) -> None:
    num_stages = schedule.num_stages
    num_microbatches = schedule.num_microbatches
    homes = schedule.stage_to_mesh
    for mesh, tasks in enumerate(schedule.tasks):
        where = f"schedule '{schedule.name}', mesh {mesh}"
        for task in tasks:
            if task.stage >= num_stages or task.microbatch >= num_microbatches:
                raise ScheduleError(
                    f"{where}: task {task} does not exist: the schedule has {num_stages} stages "
                    f"and {num_microbatches} microbatches"
                )
            if homes[task.stage] != mesh:
                raise ScheduleError(
                    f"{where}: task {task} belongs to mesh {homes[task.stage]}, where its stage is"
                )
        if len(set(tasks)) != len(tasks):
            twice = next(task for position, task in enumerate(tasks) if task in tasks[:position])
            raise ScheduleError(f"{where}: task {twice} is listed twice")


def _node_table(
    schedule: Schedule, graph: StageGraph, nodes: tuple[Task, ...]
) -> dict[StageTask, list[int]]:
    """Nodes of each task of the graph, by microbatch."""
    count = schedule.num_microbatches
    table = {task: [-1] * (1 if task.kind.runs_once else count) for task in graph.tasks}
    by_numbers = {(task.kind, task.stage): runs for task, runs in table.items()}
    for node, node_task in enumerate(nodes):
        runs_of_task = by_numbers.get((node_task.kind, node_task.stage))
        if runs_of_task is not None:
            # ONCE is the last, and only, entry of its list.
            runs_of_task[node_task.microbatch] = node
    for task, runs in table.items():
        if -1 in runs:
            missing = Task(task.kind, task.stage, ONCE if task.kind.runs_once else runs.index(-1))
            raise ScheduleError(
                f"schedule '{schedule.name}': task {missing} is not listed on any mesh"
            )
    return table


def _predecessors(
    graph: StageGraph, table: dict[StageTask, list[int]], num_nodes: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    predecessors: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    for index, edge in enumerate(graph.edges):
        sources, targets = table[edge.src], table[edge.dst]
        if edge.dst.kind.runs_once:
            predecessors[targets[0]].extend((source, index) for source in sources)
        else:
            for source, target in zip(sources, targets, strict=True):
                predecessors[target].append((source, index))
    return tuple(map(tuple, predecessors))


def _sweep(
    schedule: Schedule,
    nodes: tuple[Task, ...],
    mesh_of: tuple[int, ...],
    predecessors: tuple[tuple[tuple[int, int], ...], ...],
) -> tuple[int, ...]:
    """Run each mesh until it waits, and wake it by the task it waits for; an order of all nodes, or
    ScheduleError."""
    position: list[int] = []
    stop: list[int] = []
    for tasks in schedule.tasks:
        position.append(stop[-1] if stop else 0)
        stop.append(position[-1] + len(tasks))
    done = bytearray(len(nodes))
    waiting: dict[int, list[int]] = {}
    order: list[int] = []
    runnable = deque(range(schedule.num_meshes))
    while runnable:
        mesh = runnable.popleft()
        while position[mesh] < stop[mesh]:
            node, blocker = position[mesh], -1
            for source, _ in predecessors[node]:
                if not done[source]:
                    blocker = source
                    break
            if blocker >= 0:
                waiting.setdefault(blocker, []).append(mesh)
                break
            done[node] = True
            order.append(node)
            # Only those who wait for this task are woken, so every list is walked once.
            runnable.extend(waiting.pop(node, ()))
            position[mesh] += 1
    if waiting:
        blocked = {
            mesh: (position[mesh], blocker)
            for blocker, meshes in waiting.items()
            for mesh in meshes
        }
        raise ScheduleError(_blocked_message(schedule, nodes, mesh_of, blocked))
    return tuple(order)


def _blocked_message(
    schedule: Schedule,
    nodes: tuple[Task, ...],
    mesh_of: tuple[int, ...],
    blocked: dict[int, tuple[int, int]],
) -> str:
    """Name the circle of waits: follow, from mesh to mesh, who waits for whom."""
    # An order within one mesh first: that is wrong whatever the others do.
    for mesh, (node, blocker) in sorted(blocked.items()):
        if mesh_of[blocker] == mesh:
            place = _place(schedule, mesh, nodes[node])
            wrong = (
                f"mesh {mesh} runs {nodes[node]} {place} before {nodes[blocker]}, which it needs"
            )
            return f"schedule '{schedule.name}': {wrong}"
    circle = [min(blocked)]
    while (following := mesh_of[blocked[circle[-1]][1]]) not in circle:
        circle.append(following)
    circle = circle[circle.index(following) :]
    waits = [
        f"mesh {mesh} waits before {nodes[node]} {_place(schedule, mesh, nodes[node])} for "
        f"{nodes[blocker]}"
        for mesh, (node, blocker) in ((mesh, blocked[mesh]) for mesh in circle[:_MAX_BLOCKED_SHOWN])
    ]
    more = f", and {len(circle) - len(waits)} more" if len(circle) > len(waits) else ""
    return f"schedule '{schedule.name}': deadlock: {', '.join(waits)}{more}"


def _place(schedule: Schedule, mesh: int, task: Task) -> str:
    return f"(task {schedule.tasks[mesh].index(task) + 1} of {len(schedule.tasks[mesh])})"

"""The event simulator: when each task of a schedule runs, given how long tasks and transfers take.

Meshes run their lists in order, one task at a time. A task starts when its mesh is free and all its values have
arrived; a transfer starts when its source task ends and every link that it uses is free, and overlaps with all compute.
A link carries one transfer at a time, first come, first served. Meshes of one host may share what they compute with
(`shardopt.cost.sharing`): a task is then faster while others rest. Tasks that the graph does not have take no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardopt.cost.sharing import Sharing
from shardopt.schedule.clocks import Clock, FixedClock, SharedClock
from shardopt.schedule.graph import StageGraph
from shardopt.schedule.memory import MemoryProfile, memory_profile, peak_in_flight
from shardopt.schedule.tasks import Schedule, StageTask, Task
from shardopt.schedule.validate import LinkedSchedule, link


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """One task on the time axis."""

    mesh: int
    task: Task
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """One transfer on the time axis, from when it has its links until its value is on the mesh of `dst`."""

    src: Task
    dst: Task
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class SimulationResult:
    """What the simulator found. Per-mesh tuples follow the meshes of `schedule`; times are seconds from the start.

    `start_seconds[mesh][i]` and `end_seconds[mesh][i]` belong to `schedule.tasks[mesh][i]`. `bubble_fraction` is the
    share of mesh time until the makespan in which no task runs, every mesh counted alike whatever its size. `transfers`
    lists those that take time. `peak_in_flight` counts, per mesh, (stage, microbatch) pairs with live activations.
    """

    schedule: Schedule
    graph: StageGraph
    makespan_seconds: float
    bubble_fraction: float
    busy_seconds: tuple[float, ...]
    start_seconds: tuple[tuple[float, ...], ...]
    end_seconds: tuple[tuple[float, ...], ...]
    transfers: tuple[TransferSpan, ...]
    peak_in_flight: tuple[int, ...]
    memory: tuple[MemoryProfile, ...]

    def spans(self) -> Iterator[TaskSpan]:
        """All tasks that the graph has, by mesh and then in time."""
        exists = frozenset(self.graph.tasks)
        for mesh, tasks in enumerate(self.schedule.tasks):
            for task, start, end in zip(tasks, self.start_seconds[mesh], self.end_seconds[mesh], strict=True):
                if task.stage_task in exists:
                    yield TaskSpan(mesh, task, start, end)


def simulate(
    schedule: Schedule,
    graph: StageGraph,
    task_seconds: Mapping[StageTask, float],
    transfer_seconds: Sequence[float] | None = None,
    activation_bytes: Mapping[StageTask, int] | None = None,
    fixed_bytes: Sequence[int] | None = None,
    edge_links: Sequence[Sequence[int]] | None = None,
    sharing: Sharing | None = None,
) -> SimulationResult:
    """Simulate one step.

    `task_seconds` has an entry for each task of `graph`; `transfer_seconds` one for each edge of `graph`, in its order
    (default 0), and `edge_links` the numbers of the links that its transfers use (default none: transfers never wait
    for each other); `activation_bytes` says what a task allocates (default 0), see `memory_profile` for how long;
    `fixed_bytes` is per mesh (default 0); `sharing` says how fast tasks run while meshes of their hosts rest (default:
    no faster). Raises ScheduleError if the schedule cannot run on the graph, ValueError if
    durations are missing or negative.
    """
    transfers = tuple(transfer_seconds) if transfer_seconds is not None else (0.0,) * len(graph.edges)
    fixed = tuple(fixed_bytes) if fixed_bytes is not None else (0,) * schedule.num_meshes
    links = tuple(tuple(own) for own in edge_links) if edge_links is not None else ((),) * len(graph.edges)
    _check_costs(graph, task_seconds, transfers, fixed, schedule.num_meshes)
    if len(links) != len(graph.edges):
        raise ValueError(f"links given for {len(links)} edges, the stage graph has {len(graph.edges)}")
    linked = link(schedule, graph)
    run = _Run(linked, [task_seconds.get(task.stage_task, 0.0) for task in linked.nodes], transfers, links, sharing)
    starts, ends = run.starts, run.ends
    start_seconds, end_seconds = _per_mesh(schedule, starts), _per_mesh(schedule, ends)
    busy = tuple(
        sum(end - start for start, end in zip(own_starts, own_ends, strict=True))
        for own_starts, own_ends in zip(start_seconds, end_seconds, strict=True)
    )
    makespan = max(ends, default=0.0)
    exists = frozenset(graph.tasks)
    return SimulationResult(
        schedule=schedule,
        graph=graph,
        makespan_seconds=makespan,
        bubble_fraction=1.0 - sum(busy) / (makespan * len(busy)) if makespan > 0 else 0.0,
        busy_seconds=busy,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        transfers=tuple(run.spans()),
        peak_in_flight=tuple(
            peak_in_flight([task for task in tasks if task.stage_task in exists]) for tasks in schedule.tasks
        ),
        memory=tuple(
            memory_profile(tasks, graph, activation_bytes or {}, fixed[mesh], start_seconds[mesh], end_seconds[mesh])
            for mesh, tasks in enumerate(schedule.tasks)
        ),
    )


def makespan_seconds(
    linked: LinkedSchedule,
    task_seconds: Mapping[StageTask, float],
    transfer_seconds: Sequence[float],
    edge_links: Sequence[Sequence[int]],
    sharing: Sharing | None = None,
) -> float:
    """The makespan that `simulate` finds, alone; for callers that try many durations on one linked schedule."""
    seconds = [task_seconds.get(task.stage_task, 0.0) for task in linked.nodes]
    return max(_Run(linked, seconds, transfer_seconds, edge_links, sharing).ends, default=0.0)


def _check_costs(
    graph: StageGraph,
    task_seconds: Mapping[StageTask, float],
    transfer_seconds: tuple[float, ...],
    fixed_bytes: tuple[int, ...],
    num_meshes: int,
) -> None:
    missing = next((task for task in graph.tasks if task not in task_seconds), None)
    if missing is not None:
        raise ValueError(f"no duration given for task {missing}")
    foreign = next((task for task in task_seconds if task not in set(graph.tasks)), None)
    if foreign is not None:
        raise ValueError(f"a duration is given for task {foreign}, which the stage graph does not have")
    if len(transfer_seconds) != len(graph.edges):
        raise ValueError(f"{len(transfer_seconds)} transfer durations given for {len(graph.edges)} edges")
    if len(fixed_bytes) != num_meshes:
        raise ValueError(f"fixed bytes given for {len(fixed_bytes)} meshes, the schedule has {num_meshes}")
    if not all(seconds >= 0 for seconds in (*task_seconds.values(), *transfer_seconds)):
        raise ValueError("durations must be numbers of at least 0")


class _Run:
    """All tasks in the order in which they end. `starts` and `ends` are by node; a node waits for what it reads and for
    the task before it on its mesh."""

    def __init__(
        self,
        linked: LinkedSchedule,
        node_seconds: Sequence[float],
        transfer_seconds: Sequence[float],
        links: Sequence[Sequence[int]],
        sharing: Sharing | None,
    ) -> None:
        self.linked = linked
        self.starts, self.ends = [0.0] * len(linked.nodes), [0.0] * len(linked.nodes)
        self.transfers: list[tuple[int, int, float, float]] = []  # source node, target node, start, end
        waits = [len(sources) for sources in linked.predecessors]
        readers: list[list[tuple[int, int]]] = [[] for _ in linked.nodes]  # (node, edge)
        for node, sources in enumerate(linked.predecessors):
            for source, edge in sources:
                readers[source].append((node, edge))
        following = [node + 1 for node in range(len(linked.nodes))]  # on the same mesh, or none
        for node, mesh in enumerate(linked.mesh_of):
            if node + 1 == len(linked.nodes) or linked.mesh_of[node + 1] != mesh:
                following[node] = -1
            else:
                waits[node + 1] += 1
        free = dict.fromkeys((number for own in links for number in own), 0.0)
        clock: Clock = FixedClock() if sharing is None else SharedClock(sharing)
        for node, count in enumerate(waits):
            if count == 0:
                clock.push(node, linked.mesh_of[node], 0.0, node_seconds[node])
        while (ended := clock.pop()) is not None:
            now, source = ended
            self.ends[source] = now
            arrivals = [
                (node, self._arrival(source, node, now, transfer_seconds[edge], links[edge], free))
                for node, edge in readers[source]
            ]
            if following[source] >= 0:
                arrivals.append((following[source], now))
            for node, seconds in arrivals:
                self.starts[node] = max(self.starts[node], seconds)
                waits[node] -= 1
                if not waits[node]:
                    clock.push(node, linked.mesh_of[node], self.starts[node], node_seconds[node])

    def _arrival(
        self, source: int, node: int, now: float, seconds: float, links: Sequence[int], free: dict[int, float]
    ) -> float:
        """When what `source` sends at `now` is there."""
        if seconds <= 0:
            return now
        start = max((now, *(free[number] for number in links)))
        free.update((number, start + seconds) for number in links)
        self.transfers.append((source, node, start, start + seconds))
        return start + seconds

    def spans(self) -> Iterator[TransferSpan]:
        """The transfers by destination and then by source, as in the lists."""
        nodes = self.linked.nodes
        for source, node, start, end in sorted(self.transfers, key=lambda row: row[1]):
            yield TransferSpan(nodes[source], nodes[node], start, end)


def _per_mesh(schedule: Schedule, values: list[float]) -> tuple[tuple[float, ...], ...]:
    rows, position = [], 0
    for tasks in schedule.tasks:
        rows.append(tuple(values[position : position + len(tasks)]))
        position += len(tasks)
    return tuple(rows)

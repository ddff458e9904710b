"""The event simulator: when each task of a schedule runs, given how long tasks and transfers take.

Meshes run their lists in order, one task at a time. A task starts when its mesh is free and all its
values have arrived; a transfer starts when its source task ends and every link that it uses is
free, and overlaps with all compute. A link carries one transfer at a time, first come, first
served. Meshes of one host may share what they compute with (`shardopt.hardware.sharing`): a task is
then faster while others rest. Tasks that the graph does not have take no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardopt.hardware.sharing import Sharing
from shardopt.schedule.events import NodeCosts, Times
from shardopt.schedule.graph import StageGraph
from shardopt.schedule.memory import (
    LiveBytes,
    MemoryProfile,
    live_for_readers,
    memory_profiles,
    peak_in_flight,
)
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
    """One transfer on the time axis, from when it has its links until its value is on the mesh of
    `dst`."""

    src: Task
    dst: Task
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class SimulationResult:
    """What the simulator found. Per-mesh tuples follow the meshes of `schedule`; times are seconds
    from the start.

    `start_seconds[mesh][i]` and `end_seconds[mesh][i]` belong to `schedule.tasks[mesh][i]`.
    `bubble_fraction` is the share of mesh time until the makespan in which no task runs, every mesh
    counted alike whatever its size. `peak_in_flight` counts, per mesh, (stage, microbatch) pairs
    with live activations."""

    schedule: Schedule
    graph: StageGraph
    makespan_seconds: float
    bubble_fraction: float
    busy_seconds: tuple[float, ...]
    start_seconds: tuple[tuple[float, ...], ...]
    end_seconds: tuple[tuple[float, ...], ...]
    peak_in_flight: tuple[int, ...]
    memory: tuple[MemoryProfile, ...]
    linked: LinkedSchedule = field(repr=False, compare=False)
    times: Times = field(repr=False, compare=False)

    @cached_property
    def transfers(self) -> tuple[TransferSpan, ...]:
        """Those that take time, by destination and then by source, as in the lists."""
        nodes = self.linked.nodes
        moved = self.times.transfers(self.linked)
        return tuple(
            TransferSpan(nodes[source], nodes[node], start, end)
            for source, node, start, end in moved
        )

    def spans(self) -> Iterator[TaskSpan]:
        """All tasks that the graph has, by mesh and then in time."""
        exists = frozenset(self.graph.tasks)
        for mesh, tasks in enumerate(self.schedule.tasks):
            for task, start, end in zip(
                tasks, self.start_seconds[mesh], self.end_seconds[mesh], strict=True
            ):
                if task.stage_task in exists:
                    yield TaskSpan(mesh, task, start, end)


@dataclass(frozen=True)
class TransferCosts:
    """What the transfers of a stage graph cost, edge by edge in its order: `seconds` of one (None:
    0), and the numbers of the `links` that it uses (None: transfers never wait for each other).
    Without `overlap` a mesh computes nothing while it sends."""

    seconds: Sequence[float] | None = None
    links: Sequence[Sequence[int]] | None = None
    overlap: bool = True


@dataclass(frozen=True)
class StepMemory:
    """What a step holds: `activation_bytes` that a task allocates (0 for others), as long as
    `live_for_readers` says, or value by value what is `live`; and `fixed_bytes` all the time, by
    mesh (None: 0)."""

    activation_bytes: Mapping[StageTask, int] = field(default_factory=dict)
    fixed_bytes: Sequence[int] | None = None
    live: Sequence[LiveBytes] | None = None


FREE_TRANSFERS, NO_MEMORY = TransferCosts(), StepMemory()


def simulate(
    schedule: Schedule,
    graph: StageGraph,
    task_seconds: Mapping[StageTask, float],
    transfers: TransferCosts = FREE_TRANSFERS,
    memory: StepMemory = NO_MEMORY,
    sharing: Sharing | None = None,
) -> SimulationResult:
    """Simulate one step.

    `task_seconds` has an entry for each task of `graph`; `sharing` says how fast tasks run while
    meshes of their hosts rest (default: no faster). Raises ScheduleError if the schedule cannot run
    on the graph, ValueError if durations are missing or negative."""
    num_edges = len(graph.edges)
    seconds = (0.0,) * num_edges if transfers.seconds is None else tuple(transfers.seconds)
    links = ((),) * num_edges if transfers.links is None else tuple(map(tuple, transfers.links))
    fixed = (0,) * schedule.num_meshes if memory.fixed_bytes is None else tuple(memory.fixed_bytes)
    _check_costs(graph, task_seconds, seconds, fixed, schedule.num_meshes)
    if len(links) != len(graph.edges):
        raise ValueError(
            f"links given for {len(links)} edges, the stage graph has {len(graph.edges)}"
        )
    linked = link(schedule, graph)
    times = Times.of(
        linked,
        NodeCosts(_node_seconds(linked, task_seconds), seconds, links, sharing, transfers.overlap),
    )
    start_seconds, end_seconds = linked.rows(times.starts), linked.rows(times.ends)
    busy = tuple(
        sum(end - start for start, end in zip(starts, ends, strict=True))
        for starts, ends in zip(start_seconds, end_seconds, strict=True)
    )
    makespan = max(times.ends, default=0.0)
    live = memory.live
    if live is None:
        live = live_for_readers(memory.activation_bytes, graph)
    exists = frozenset((task.kind, task.stage) for task in graph.tasks)
    return SimulationResult(
        schedule=schedule,
        graph=graph,
        makespan_seconds=makespan,
        bubble_fraction=1.0 - sum(busy) / (makespan * len(busy)) if makespan > 0 else 0.0,
        busy_seconds=busy,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        peak_in_flight=tuple(
            peak_in_flight([task for task in tasks if (task.kind, task.stage) in exists])
            for tasks in schedule.tasks
        ),
        memory=tuple(memory_profiles(linked, live, fixed, start_seconds, end_seconds)),
        linked=linked,
        times=times,
    )


def makespan_seconds(
    linked: LinkedSchedule,
    task_seconds: Mapping[StageTask, float],
    transfer_seconds: Sequence[float],
    edge_links: Sequence[Sequence[int]],
    sharing: Sharing | None = None,
) -> float:
    """The makespan that `simulate` finds, alone; for callers that try many durations on one linked
    schedule."""
    costs = NodeCosts(_node_seconds(linked, task_seconds), transfer_seconds, edge_links, sharing)
    return max(Times.of(linked, costs).ends, default=0.0)


def _node_seconds(linked: LinkedSchedule, task_seconds: Mapping[StageTask, float]) -> list[float]:
    seconds = {(task.kind, task.stage): value for task, value in task_seconds.items()}
    return [seconds.get((task.kind, task.stage), 0.0) for task in linked.nodes]


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
        raise ValueError(
            f"a duration is given for task {foreign}, which the stage graph does not have"
        )
    if len(transfer_seconds) != len(graph.edges):
        raise ValueError(
            f"{len(transfer_seconds)} transfer durations given for {len(graph.edges)} edges"
        )
    if len(fixed_bytes) != num_meshes:
        raise ValueError(
            f"fixed bytes given for {len(fixed_bytes)} meshes, the schedule has {num_meshes}"
        )
    if not all(seconds >= 0 for seconds in (*task_seconds.values(), *transfer_seconds)):
        raise ValueError("durations must be numbers of at least 0")

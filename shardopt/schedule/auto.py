"""The shortest schedule for given durations: those of the list scheduler and the named ones that fit, simulated.

Nothing is proven beyond `lower_bound_seconds`; in exchange it takes part in no contest that a named schedule wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardopt.cost.errors import UserError
from shardopt.schedule.graph import StageGraph
from shardopt.schedule.list_scheduling import Workload, list_schedule, rules
from shardopt.schedule.schedules import AUTO, SCHEDULES, build_schedule
from shardopt.schedule.simulator import SimulationResult, simulate
from shardopt.schedule.tasks import Schedule, StageTask


@dataclass(frozen=True)
class Chosen:
    """The best schedule found, what it was called before (or the rule that made it), and its simulation."""

    schedule: Schedule
    origin: str
    result: SimulationResult

    @property
    def is_named(self) -> bool:
        return self.origin in SCHEDULES


def auto_schedule(work: Workload) -> Chosen:
    """The schedule with the least makespan among those that keep activations within `work.memory_bytes`.

    Ties go to named schedules, in the order of the registry. Raises UserError if none fits the memory.
    """
    best: Chosen | None = None
    for origin, schedule in _candidates(work):
        result = run_workload(schedule, work)
        if _fits(result, work) and (best is None or result.makespan_seconds < best.result.makespan_seconds):
            best = Chosen(replace(schedule, name=AUTO), origin, result)
    if best is None:
        limits = ", ".join(map(str, work.memory_bytes or ()))
        raise UserError(f"no schedule keeps the activations within {limits} bytes a mesh")
    return best


def run_workload(schedule: Schedule, work: Workload) -> SimulationResult:
    """Simulate `schedule` with the durations of `work`."""
    return simulate(
        schedule,
        work.graph,
        work.task_seconds,
        work.transfer_seconds,
        work.activation_bytes,
        edge_links=work.edge_links or None,
        sharing=work.sharing,
        held=work.held,
    )


def _candidates(work: Workload) -> Iterator[tuple[str, Schedule]]:
    kinds = {task.kind for task in work.graph.tasks if not task.kind.runs_once}
    stages, meshes = len(work.stage_to_mesh), work.num_meshes
    for kind in SCHEDULES.values():
        if kinds <= set(kind.kinds) and kind.suits(stages, meshes) and not kind.simulated_only:
            schedule = build_schedule(kind.name, stages, work.num_microbatches, meshes)
            if schedule.stage_to_mesh == work.stage_to_mesh:
                yield kind.name, schedule
    for rule in rules(several_stages=meshes < stages):
        listed = list_schedule(work, rule)
        if listed is not None:
            yield str(rule), listed


def _fits(result: SimulationResult, work: Workload) -> bool:
    if work.memory_bytes is None:
        return True
    return all(own.peak_bytes <= limit for own, limit in zip(result.memory, work.memory_bytes, strict=True))


def lower_bound_seconds(work: Workload) -> float:
    """No schedule is shorter: the busiest mesh with the shortest way to its first and from its last task, and the
    longest chain of tasks and transfers of one microbatch."""
    into: dict[StageTask, list[tuple[StageTask, float]]] = {task: [] for task in work.graph.tasks}
    out: dict[StageTask, list[tuple[StageTask, float]]] = {task: [] for task in work.graph.tasks}
    for edge, delay in zip(work.graph.edges, work.transfer_seconds, strict=True):
        into[edge.dst].append((edge.src, delay))
        out[edge.src].append((edge.dst, delay))
    order = _program_order(work.graph)
    head: dict[StageTask, float] = {}
    for task in order:
        head[task] = max(
            (head[source] + work.task_seconds[source] + delay for source, delay in into[task]), default=0.0
        )
    tail: dict[StageTask, float] = {}
    for task in reversed(order):
        tail[task] = max((delay + work.task_seconds[target] + tail[target] for target, delay in out[task]), default=0.0)
    longest = max((head[task] + work.task_seconds[task] + tail[task] for task in order), default=0.0)
    busiest = 0.0
    for mesh in range(work.num_meshes):
        own = [task for task in order if work.stage_to_mesh[task.stage] == mesh]
        if own:
            times = (1 if task.kind.runs_once else work.num_microbatches for task in own)
            busy = sum(count * work.task_seconds[task] for count, task in zip(times, own, strict=True))
            busiest = max(busiest, min(head[task] for task in own) + busy + min(tail[task] for task in own))
    return max(longest, busiest)


def _program_order(graph: StageGraph) -> list[StageTask]:
    """The tasks with every source before its readers."""
    waits = dict.fromkeys(graph.tasks, 0)
    for edge in graph.edges:
        waits[edge.dst] += 1
    ready = [task for task in graph.tasks if not waits[task]]
    for task in ready:
        for edge in graph.edges:
            if edge.src == task:
                waits[edge.dst] -= 1
                if not waits[edge.dst]:
                    ready.append(edge.dst)
    return ready

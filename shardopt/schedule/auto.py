"""The shortest schedule for given durations: those of the list scheduler and the named ones that
fit, simulated.

Nothing is proven beyond `bounds.py`; in exchange it takes part in no contest that a named schedule
wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.list_scheduling import list_schedule, rules
from shardopt.schedule.schedules import AUTO, SCHEDULES, build_schedule
from shardopt.schedule.simulator import SimulationResult, StepMemory, TransferCosts, simulate
from shardopt.schedule.tasks import Schedule
from shardopt.schedule.workload import Workload
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class Chosen:
    """The best schedule found, what it was called before (or the rule that made it), and its
    simulation."""

    schedule: Schedule
    origin: str
    result: SimulationResult

    @property
    def is_named(self) -> bool:
        return self.origin in SCHEDULES


def auto_schedule(work: Workload) -> Chosen:
    """The schedule with the least makespan among those that keep activations within
    `work.memory_bytes`.

    Ties go to named schedules, in the order of the registry. Raises UserError if none fits the
    memory."""
    best: Chosen | None = None
    for origin, schedule in _candidates(work):
        result = run_workload(schedule, work)
        if _fits(result, work) and (
            best is None or result.makespan_seconds < best.result.makespan_seconds
        ):
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
        TransferCosts(work.transfer_seconds, links=work.edge_links or None),
        StepMemory(work.activation_bytes, live=work.live),
        sharing=work.sharing,
    )


def _candidates(work: Workload) -> Iterator[tuple[str, Schedule]]:
    kinds = {task.kind for task in work.graph.tasks if not task.kind.runs_once}
    stages, meshes = len(work.stage_to_mesh), work.num_meshes
    for kind in SCHEDULES.values():
        suits = kinds <= set(kind.kinds) and kind.suits(stages, meshes)
        if suits and kind.is_offered and _are_apart(work.graph, stages // kind.streams):
            schedule = build_schedule(kind.name, stages, work.num_microbatches, meshes)
            # Some lay stages on meshes in their own way (a V): their order does not suit others.
            if schedule.stage_to_mesh == work.stage_to_mesh:
                yield kind.name, schedule
    for rule in rules(several_stages=meshes < stages):
        listed = list_schedule(work, rule)
        if listed is not None:
            yield str(rule), listed


def _are_apart(graph: StageGraph, num_stages: int) -> bool:
    """Whether nothing passes between pipelines of `num_stages` stages each."""
    return all(edge.src.stage // num_stages == edge.dst.stage // num_stages for edge in graph.edges)


def _fits(result: SimulationResult, work: Workload) -> bool:
    if work.memory_bytes is None:
        return True
    return all(
        profile.peak_bytes <= limit
        for profile, limit in zip(result.memory, work.memory_bytes, strict=True)
    )

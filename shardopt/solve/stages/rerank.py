"""The step of a plan as the event simulator sees it, under a schedule: the judge over the plans of the stage DP.

The sum plus (B - 1) times the maximum is what a pipeline takes whose stages only go forwards. In a schedule that turns
round, uneven stages, transfers that nothing hides and forwards that differ from backwards by stage make it longer. The
simulator runs the tasks of the schedule, with the devices that `place` gives the stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardopt.cost.placement import place
from shardopt.cost.sharing import sharing_of
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import build_schedule, find_schedule
from shardopt.schedule.simulator import makespan_seconds
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.schedule.validate import LinkedSchedule, link
from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.stage_problem import StageProblem, StageSolution, stage_memory_bytes


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan of the stage DP under a schedule, and the seconds of a step by the simulator."""

    plan: StageSolution
    schedule: str
    step_seconds: float
    peak_bytes: float  # of the fullest device


def simulate_plan(problem: StageProblem, plan: StageSolution, schedule: str, transfers: CutTransfers) -> SimulatedPlan:
    """One step of `plan`. Raises UserError where its stages cannot be placed."""
    linked = _linked(schedule, len(plan.stages), problem.num_microbatches)
    backwards = find_schedule(schedule).kinds[1:]
    seconds = {}
    for stage, where in enumerate(plan.stages):
        whole = float(problem.seconds[where])
        forward = min(float(problem.forward_seconds[where]), whole) if backwards else whole
        seconds[StageTask(TaskKind.FORWARD, stage)] = forward
        seconds |= {StageTask(kind, stage): (whole - forward) / len(backwards) for kind in backwards}
    options = [problem.options[option] for _, _, option in plan.stages]
    devices = place(transfers.cluster, [(option.group, option.submesh) for option in options])
    cuts = [
        transfers.between(start, devices[stage], devices[stage + 1])
        for stage, (start, _, _) in enumerate(plan.stages[1:])
    ]
    delays = []
    for edge in linked.graph.edges:
        way = edge.dst.stage - edge.src.stage
        delays.append(cuts[min(edge.src.stage, edge.dst.stage)][0 if way > 0 else 1] if way else 0.0)
    peak = max(stage_memory_bytes(problem, plan.stages))
    makespan = makespan_seconds(linked, seconds, tuple(delays), sharing_of(transfers.cluster, devices))
    return SimulatedPlan(plan, schedule, makespan, peak)


@lru_cache(maxsize=8)
def _linked(schedule: str, num_stages: int, num_microbatches: int) -> LinkedSchedule:
    """Plans of as many stages differ only in their times."""
    graph = chain_graph(num_stages, find_schedule(schedule).kinds)
    return link(build_schedule(schedule, num_stages, num_microbatches), graph)

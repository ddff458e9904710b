"""The step time of a plan under a schedule, by the event simulator, which ranks the plans of the
stage DP.

The formula of the DP, sum + (B - 1) · maximum, is exact for a pipeline that only goes forwards.
With a backward pass a step is longer where stages are uneven, where forward and backward differ by
stage, and where no computation hides a transfer. It is shorter where transfers go both ways at
once. Every call has a launch time, too. The simulator runs the tasks of the schedule on the devices
that `place` gives the stages. Transfers of a host queue for its NIC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle

from shardopt.cost.compute import dispatch_seconds
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.sharing import sharing_of
from shardopt.schedule.bounds import lower_bound_seconds
from shardopt.schedule.graph import StageGraph
from shardopt.schedule.schedules import build_schedule, find_schedule, model_homes
from shardopt.schedule.simulator import makespan_seconds
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.schedule.validate import LinkedSchedule, link
from shardopt.schedule.workload import Workload
from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.search.placement import place
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    StageSolution,
    stage_memory_bytes,
)

# Microbatches for each stage by which a pipeline runs evenly, and some more to see how fast.
_WARM = (4, 6)


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan of the stage DP under a schedule, the seconds of a step by the simulator, and the
    bytes of the fullest device."""

    plan: StageSolution
    schedule: str
    step_seconds: float
    peak_bytes: float


def simulate_plan(
    problem: StageProblem,
    plan: StageSolution,
    schedule: str,
    transfers: CutTransfers,
    best: float = float("inf"),
) -> SimulatedPlan | None:
    """One step of `plan`, or None if no schedule could make it shorter than `best` seconds.

    Raises UserError where the stages cannot be placed, or do not suit the schedule.
    """
    homes = model_homes(schedule, len(plan.stages))
    meshes = place_meshes(
        transfers.cluster, [problem.configs[config] for _, _, config in plan.stages], homes
    )
    work = _workload(problem, plan, schedule, transfers, [meshes[home] for home in homes])
    sharing = sharing_of(transfers.cluster, meshes)
    # With a host to itself a stage is faster than its cost says.
    if sharing is None and lower_bound_seconds(work) >= best:
        return None
    linked = _linked(schedule, len(plan.stages), work.num_microbatches)
    seconds = makespan_seconds(
        linked, work.task_seconds, work.transfer_seconds, work.edge_links, sharing
    )
    mesh_bytes = [0.0] * len(meshes)
    for home, size in zip(homes, cycle(stage_memory_bytes(problem, plan.stages)), strict=False):
        mesh_bytes[home] += size
    return SimulatedPlan(plan, schedule, seconds, max(mesh_bytes))


def estimate_step(
    problem: StageProblem, plan: StageSolution, schedule: str, transfers: CutTransfers
) -> float:
    """Nearly the seconds of `simulate_plan`, of a schedule with one stage a mesh, sooner where
    there are many microbatches: each further one of a pipeline that runs takes as long as the one
    before. Raises UserError as `simulate_plan`."""

    def seconds(microbatches: int) -> float:
        some = replace(problem, num_microbatches=microbatches)
        simulated = simulate_plan(some, plan, schedule, transfers)
        assert simulated is not None, "nothing is shorter than infinity"
        return simulated.step_seconds

    few, more = (times * len(plan.stages) for times in _WARM)
    if problem.num_microbatches <= 2 * more:
        return seconds(problem.num_microbatches)
    first, second = seconds(few), seconds(more)
    return second + (problem.num_microbatches - more) * (second - first) / (more - few)


def place_meshes(
    cluster: Cluster, configs: Sequence[StageConfig], homes: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """The devices of every mesh, where stage s has a config and mesh `homes[s]`. Raises
    UserError."""
    first = {home: stage for stage, home in reversed([*enumerate(homes)])}
    mesh_configs = [configs[first[mesh]] for mesh in range(len(first))]
    return place(cluster, [(config.group, config.submesh) for config in mesh_configs])


def _workload(
    problem: StageProblem,
    plan: StageSolution,
    schedule: str,
    transfers: CutTransfers,
    devices: Sequence[Sequence[int]],
) -> Workload:
    count, kind = len(plan.stages), find_schedule(schedule)
    graph = _graph(schedule, count)
    backwards = kind.kinds[1:]
    seconds = {}
    for stage, where in enumerate(plan.stages * kind.streams):
        config, whole = problem.configs[where[2]], float(problem.seconds[where])
        # The shard phase knows the buffers of a call; here nothing is known of them yet.
        call = dispatch_seconds(
            transfers.cluster.groups[config.group], config.num_devices, buffers=0
        )
        forward = problem.likely_forward_seconds(where) if backwards else whole
        seconds[StageTask(TaskKind.FORWARD, stage)] = forward + call
        # Forward and backward of the last stage are one fragment.
        called = call if stage % count < count - 1 else 0.0
        seconds |= {
            StageTask(each, stage): (whole - forward) / len(backwards) + called
            for each in backwards
        }
    delays, links = [], []
    for edge in graph.edges:
        source, target = edge.src.stage, edge.dst.stage
        cut = plan.stages[max(source, target) % count][0]
        crosses = devices[source] != devices[target]
        delays.append(
            transfers.seconds(cut, devices[source], devices[target], source < target)
            if crosses
            else 0.0
        )
        links.append(transfers.nics(devices[source], devices[target]) if crosses else ())
    return Workload(
        graph,
        model_homes(schedule, count),
        kind.listed_microbatches(problem.num_microbatches),
        seconds,
        tuple(delays),
        edge_links=tuple(links),
    )


@lru_cache(maxsize=64)
def _graph(schedule: str, num_stages: int) -> StageGraph:
    kind, homes = find_schedule(schedule), model_homes(schedule, num_stages)
    return kind.graph(len(homes), 1 + max(homes), kind.kinds)


@lru_cache(maxsize=8)
def _linked(schedule: str, num_stages: int, num_microbatches: int) -> LinkedSchedule:
    """Plans of as many stages differ only in their times."""
    listed = find_schedule(schedule).streams * num_stages
    return link(build_schedule(schedule, listed, num_microbatches), _graph(schedule, num_stages))

"""Schedules by name on a pipeline whose meshes all have the same work: for comparisons, without a
model.

Seconds and bytes are those of one microbatch on one whole mesh. Where a mesh has several stages
each takes its share; where several pipelines share the meshes (Chimera) a stage is as large as a
mesh's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardopt.schedule.auto import auto_schedule
from shardopt.schedule.builders.pipedream import weight_versions
from shardopt.schedule.graph import StageGraph, chain_graph
from shardopt.schedule.schedules import AUTO, SEVERAL, ScheduleKind, build_schedule, find_schedule
from shardopt.schedule.simulator import SimulationResult, StepMemory, TransferCosts, simulate
from shardopt.schedule.tasks import Schedule, TaskKind
from shardopt.schedule.token_slices import token_slices
from shardopt.schedule.workload import Workload

_WORK = (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)


@dataclass(frozen=True)
class EvenPipeline:
    """`chunks`: stages a mesh where a schedule takes any number. `weight_share` of a backward is
    its weight half.

    `slices`, for TeraPipe, are the shares of a microbatch's time that its slices of tokens take
    (default: equal ones, `chunks` of them)."""

    num_meshes: int
    num_microbatches: int
    chunks: int = 2
    forward_seconds: float = 1.0
    backward_seconds: float = 2.0
    transfer_seconds: float = 0.0
    activation_bytes: int = 0
    weight_share: float = 0.5
    slices: tuple[float, ...] = ()
    overlap: bool = True

    def with_slices(self, table: Sequence[Sequence[float]]) -> EvenPipeline:
        """The slices of tokens with the shortest step for TeraPipe, whose seconds `token_slices`
        describes: forward and backward together, shared as before."""
        sliced = token_slices(np.array(table), self.num_meshes, self.num_microbatches)
        total = self.forward_seconds + self.backward_seconds
        return replace(self, slices=tuple(seconds / total for seconds in sliced.seconds))

    def build(self, name: str) -> Schedule:
        """Raises UserError for an unknown name, and for numbers that do not suit the schedule."""
        kind = find_schedule(name)
        count = kind.listed_microbatches(self.num_microbatches)
        stages = self.num_meshes * self.stages_per_mesh(kind)
        return build_schedule(name, stages, count, self.num_meshes, training=True)

    def stages_per_mesh(self, kind: ScheduleKind) -> int:
        if kind.stages_per_mesh != SEVERAL:
            return kind.stages_per_mesh
        return len(self.slices) or self.chunks

    def simulate(self, name: str) -> SimulationResult:
        """Raises UserError as `build`. `auto` chooses among orders of whole backwards."""
        if name == AUTO:
            chain = chain_graph(self.num_meshes)
            return auto_schedule(
                self.workload(chain, tuple(range(self.num_meshes)), self.num_microbatches)
            ).result
        kind, schedule = find_schedule(name), self.build(name)
        graph = kind.graph(schedule.num_stages, self.num_meshes, kind.kinds)
        shares = (
            self.slices
            if name == "terapipe" and self.slices
            else (kind.streams / self.stages_per_mesh(kind),)
        )
        return self._run(schedule, graph, shares)

    def simulate_tasks(self, schedule: Schedule) -> SimulationResult:
        """Of tasks in any order, on a chain. Raises ScheduleError if they cannot run."""
        kinds = {task.kind for tasks in schedule.tasks for task in tasks}
        return self._run(
            schedule,
            chain_graph(schedule.num_stages, tuple(kind for kind in _WORK if kind in kinds)),
        )

    def activations(self, kind: ScheduleKind, result: SimulationResult) -> float:
        """The most that a mesh keeps, in activations of one microbatch on a whole mesh."""
        return max(result.peak_in_flight) * kind.streams / self.stages_per_mesh(kind)

    def weights(self, kind: ScheduleKind, schedule: Schedule) -> int:
        """The most copies and versions of a mesh's weights, in weights of a whole mesh."""
        return kind.streams * max(weight_versions(tasks, kind.delayed) for tasks in schedule.tasks)

    def workload(
        self,
        graph: StageGraph,
        homes: tuple[int, ...],
        num_microbatches: int,
        shares: Sequence[float] = (),
    ) -> Workload:
        """`shares` of a mesh's work for its stages, in turn; by default equal ones."""
        share = {}
        for mesh in range(1 + max(homes)):
            stages = [stage for stage, home in enumerate(homes) if home == mesh]
            for number, stage in enumerate(stages):
                share[stage] = shares[number % len(shares)] if shares else 1 / len(stages)
        crossing = [homes[edge.src.stage] != homes[edge.dst.stage] for edge in graph.edges]
        kept = [task for task in graph.tasks if task.kind is TaskKind.FORWARD]
        return Workload(
            graph=graph,
            stage_to_mesh=homes,
            num_microbatches=num_microbatches,
            task_seconds={
                task: self._seconds(task.kind) * share[task.stage] for task in graph.tasks
            },
            transfer_seconds=tuple(
                self.transfer_seconds if crosses else 0.0 for crosses in crossing
            ),
            activation_bytes={
                task: round(self.activation_bytes * share[task.stage]) for task in kept
            },
        )

    def _seconds(self, kind: TaskKind) -> float:
        of_mesh = (
            self.forward_seconds,
            self.backward_seconds,
            self.backward_seconds * (1 - self.weight_share),
            self.backward_seconds * self.weight_share,
        )
        return of_mesh[_WORK.index(kind)]

    def _run(
        self, schedule: Schedule, graph: StageGraph, shares: Sequence[float] = ()
    ) -> SimulationResult:
        work = self.workload(graph, schedule.stage_to_mesh, schedule.num_microbatches, shares)
        return simulate(
            schedule,
            graph,
            work.task_seconds,
            TransferCosts(work.transfer_seconds, overlap=self.overlap),
            StepMemory(work.activation_bytes),
        )


def least_bubble_first(names: Iterable[str]) -> list[str]:
    """Schedules by their step on four meshes, with four microbatches a mesh; transfers as long as a
    twentieth of a forward tell those apart that are equal without any. `interleaved:3` has its own
    number of stages a mesh."""

    def seconds(name: str) -> float:
        chunks = 1 if name == AUTO else max(find_schedule(name).stages_per_mesh, 1)
        pipeline = EvenPipeline(4, 16, chunks, transfer_seconds=0.05)
        return pipeline.simulate(name).makespan_seconds

    return sorted(names, key=seconds)

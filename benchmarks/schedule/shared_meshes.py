"""How well the formula for several stages a mesh ranks cuts of the layers, and how good those cuts
are that the planner simulates.

    python -m benchmarks.schedule.shared_meshes [--cuts 1500]

Layers that are equal, with a long last one, with a short first and a long last one, or of random
seconds are cut in all ways (or in so many, drawn at random) into stages, and each cut runs in the
simulator, without transfers. A column is the share that the longest stage has in the slot
(`shardopt.solve.stages.stage_problem.LONGEST_SHARE`), 1 being the formula of Narayanan et al.: by
how much the shortest of the best eight cuts by that formula exceeds the shortest of all, in the
mean and in the worst case. The last column says it of the eight plans that the planner hands to the
simulator."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from shardopt.hardware.cluster import Submesh
from shardopt.schedule.schedules import ScheduleKind, build_schedule, find_schedule, model_homes
from shardopt.schedule.simulator import makespan_seconds
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.schedule.validate import LinkedSchedule, link
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.search.shared_meshes import mean_in_flight, near_sharing
from shardopt.solve.stages.stage_problem import Places, StageConfig, StageProblem, places_of

_SCHEDULES = ("interleaved:2", "interleaved:3", "zb-v", "v-half", "v-min", "dualpipe-v", "chimera")
_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 1.0)
_SIZES = ((2, 8), (4, 10), (4, 14))  # meshes and layers
_MICROBATCHES = (8, 16)
_FORWARD = 1 / 3  # of the seconds of a layer
_PLANS = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=1500)
    args = parser.parse_args()
    table = Table("schedule", *(f"{share:g}" for share in _SHARES), "planner")
    for name in _SCHEDULES:
        rows = np.array(list(_excesses(find_schedule(name), args.cuts)))
        cells = zip(rows.mean(axis=0), rows.max(axis=0), strict=True)
        table.add_row(name, *(f"{mean:.1%} ({worst:.1%})" for mean, worst in cells))
    Console(width=120).print(table)


def _excesses(kind: ScheduleKind, most_cuts: int) -> Iterator[list[float]]:
    """By share and for the planner, of each pipeline."""
    rng = np.random.default_rng(0)
    for meshes, layers in _SIZES:
        count = meshes * kind.model_stages_per_mesh
        if count > layers:
            continue
        for microbatches, seconds in itertools.product(_MICROBATCHES, _layers(layers, rng)):
            pipeline = _Pipeline(kind, count, microbatches, seconds)
            cuts = np.array([*itertools.combinations(range(1, layers), count - 1)])
            if len(cuts) > most_cuts:
                cuts = cuts[np.sort(rng.choice(len(cuts), most_cuts, replace=False))]
            steps = np.array([pipeline.simulate(cut) for cut in cuts])
            by_plan = [pipeline.simulate(cut) for cut in pipeline.planned()]
            least = min(steps.min(), *by_plan)
            row = []
            for share in _SHARES:
                best = np.argsort([pipeline.formula(cut, share) for cut in cuts], kind="stable")
                row.append(float(steps[best[:_PLANS]].min() / least - 1))
            yield [*row, float(min(by_plan) / least - 1)]


def _layers(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    ones = np.ones(count)
    yield ones
    yield np.append(ones[1:], 2.0)
    yield np.concatenate([[0.3], ones[2:], [1.7]])
    yield np.round(rng.uniform(0.5, 1.5, count), 2)


class _Pipeline:
    """A pipeline of `count` stages of layers that take some `seconds`."""

    def __init__(
        self, kind: ScheduleKind, count: int, microbatches: int, seconds: np.ndarray
    ) -> None:
        self.kind, self.count, self.microbatches = kind, count, microbatches
        self.before = np.concatenate([[0.0], np.cumsum(seconds)])
        homes = model_homes(kind.name, count)
        self.places: Places = places_of(homes, count)
        self.graph = kind.graph(len(homes), 1 + max(homes), kind.kinds)
        listed = kind.listed_microbatches(microbatches)
        schedule = build_schedule(kind.name, len(homes), listed)
        self.linked: LinkedSchedule = link(schedule, self.graph)

    def simulate(self, cut: np.ndarray) -> float:
        seconds, backwards = self._seconds(cut), len(self.kind.kinds) - 1
        tasks: dict[StageTask, float] = {}
        for task in self.graph.tasks:
            share = _FORWARD if task.kind is TaskKind.FORWARD else (1 - _FORWARD) / backwards
            tasks[task] = share * float(seconds[task.stage % self.count])
        edges = self.graph.edges
        return makespan_seconds(self.linked, tasks, (0.0,) * len(edges), ((),) * len(edges), None)

    def formula(self, cut: np.ndarray, share: float) -> float:
        seconds, each = self._seconds(cut), self.kind.model_stages_per_mesh
        busiest = self.places.loads(seconds, np.zeros(self.count)).max() / each
        slot = (1 - share) * busiest + share * seconds.max()
        return float(seconds.sum() / each + (each * self.microbatches - 1) * slot)

    def planned(self) -> list[np.ndarray]:
        """The cuts that the planner hands to the simulator."""
        layers, each = len(self.before) - 1, self.kind.model_stages_per_mesh
        lengths = self.before - self.before[:, None]
        seconds = np.where(lengths > 0, lengths, np.inf)[..., None]
        zeros = np.zeros_like(seconds)
        problem = StageProblem(
            num_layers=layers,
            configs=(StageConfig(1, Submesh(1, 1), (1, 1)),),
            num_devices=(self.count // each,),
            num_microbatches=self.microbatches,
            seconds=seconds,
            forward_seconds=zeros,
            fixed_bytes=zeros,
            activation_bytes=zeros,
            memory_bytes=(np.inf,),
            in_flight=mean_in_flight(self.kind.name),
            stages_per_mesh=each,
            homes=partial(model_homes, self.kind.name),
        )
        plans = near_sharing(problem, PlannerInput(self.count), _PLANS, self.kind.mesh_multiple)
        return [np.array([start for start, _, _ in plan.stages[1:]]) for plan in plans]

    def _seconds(self, cut: np.ndarray) -> np.ndarray:
        return np.diff(self.before[[0, *cut, len(self.before) - 1]])


if __name__ == "__main__":
    main()

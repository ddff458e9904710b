"""How long schedules take to build, to check and to simulate.

    python -m benchmarks.schedules [--repeat 5]

CPU seconds of this process, the least of several runs, for chains of stages with one stage or two stages a mesh.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

from rich.console import Console
from rich.table import Table

from shardopt.schedule.auto import auto_schedule
from shardopt.schedule.exchange import validate
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.list_scheduling import Workload
from shardopt.schedule.schedules import SCHEDULES, ScheduleKind, build_schedule
from shardopt.schedule.simulator import simulate
from shardopt.schedule.tasks import TaskKind

_SECONDS = {TaskKind.FORWARD: 1.0, TaskKind.BACKWARD: 2.0, TaskKind.BACKWARD_INPUT: 1.0, TaskKind.BACKWARD_WEIGHT: 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    table = Table("schedule", "meshes × microbatches", title="CPU seconds")
    for column in ("build", "check", "simulate", "auto"):
        table.add_column(column, justify="right")
    for meshes, microbatches, with_auto in ((4, 8, True), (16, 128, True), (64, 1024, False)):
        for kind in SCHEDULES.values():
            times = _measure(kind, meshes, microbatches, args.repeat if meshes < 64 else 1, with_auto)
            table.add_row(kind.name, f"{meshes} × {microbatches}", *times)
    Console().print(table)


def _measure(kind: ScheduleKind, meshes: int, microbatches: int, repeat: int, with_auto: bool) -> list[str]:
    stages = meshes * (kind.stages_per_mesh if kind.stages_per_mesh > 0 else 2)
    graph = chain_graph(stages, kind.kinds)
    schedule = build_schedule(kind.name, stages, microbatches, meshes)
    seconds = {task: _SECONDS[task.kind] for task in graph.tasks}
    work = Workload(graph, schedule.stage_to_mesh, microbatches, seconds, (0.1,) * len(graph.edges))
    jobs: list[Callable[[], object]] = [
        lambda: build_schedule(kind.name, stages, microbatches, meshes),
        lambda: validate(schedule, graph),
        lambda: simulate(schedule, graph, seconds, work.transfer_seconds),
    ]
    found = [_least(job, repeat) for job in jobs]
    return [f"{value:.3f}" for value in found] + (
        [f"{_least(lambda: auto_schedule(work), 1):.2f}"] if with_auto else ["–"]
    )


def _least(job: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        begin = process_time()
        job()
        best = min(best, process_time() - begin)
    return best


if __name__ == "__main__":
    main()

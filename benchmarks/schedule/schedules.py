"""How long schedules take to build, to check and to simulate, and how good `auto` is.

    python -m benchmarks.schedule.schedules [--repeat 5] python -m benchmarks.schedule.schedules
    --auto [--seeds 5] [--meshes 2,4,8,16] [--rounds 1,2,4,8]

The first gives CPU seconds of this process, the least of several runs, for chains of stages with
one stage or two stages a mesh. The second sets the makespan of `auto` against the best named
schedule and against a lower bound that no schedule undercuts, over random durations and transfers:
forwards of 0.5 to 1.5 s, backwards of 1.5 to 2.5 times that, and transfers of 0, 0.1 or 0.5 s, with
rounds · meshes microbatches; without a limit on memory, and within that of 1F1B."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import process_time

import numpy as np
from rich.console import Console
from rich.table import Table

from shardopt.schedule.auto import auto_schedule, run_workload
from shardopt.schedule.bounds import one_machine_bound_seconds
from shardopt.schedule.exchange import validate
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import SCHEDULES, SEVERAL, ScheduleKind, build_schedule
from shardopt.schedule.simulator import TransferCosts, simulate
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.schedule.workload import Workload

_SECONDS = {
    TaskKind.FORWARD: 1.0,
    TaskKind.BACKWARD: 2.0,
    TaskKind.BACKWARD_INPUT: 1.0,
    TaskKind.BACKWARD_WEIGHT: 1.0,
}
_WHOLE = (TaskKind.FORWARD, TaskKind.BACKWARD)
_HALVES = (TaskKind.FORWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--meshes", type=_numbers, default=(2, 4, 8, 16))
    parser.add_argument("--rounds", type=_numbers, default=(1, 2, 4, 8))
    args = parser.parse_args()
    table = _auto(args.meshes, args.rounds, args.seeds) if args.auto else _times(args.repeat)
    Console(width=120).print(table)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


# ---- how long ----


def _times(repeat: int) -> Table:
    table = Table("schedule", "meshes × microbatches", title="CPU seconds")
    for column in ("build", "check", "simulate", "with links", "auto"):
        table.add_column(column, justify="right")
    for meshes, microbatches, with_auto in ((4, 8, True), (16, 128, True), (64, 1024, False)):
        for kind in SCHEDULES.values():
            times = _measure(kind, meshes, microbatches, repeat if meshes < 64 else 1, with_auto)
            table.add_row(kind.name, f"{meshes} × {microbatches}", *times)
    return table


def _measure(
    kind: ScheduleKind, meshes: int, microbatches: int, repeat: int, with_auto: bool
) -> list[str]:
    stages = meshes * (2 if kind.stages_per_mesh == SEVERAL else kind.stages_per_mesh)
    count = microbatches // kind.streams
    graph = kind.graph(stages, meshes, kind.kinds)
    schedule = build_schedule(kind.name, stages, count, meshes)
    seconds = {task: _SECONDS[task.kind] for task in graph.tasks}
    delays = (0.1,) * len(graph.edges)
    links = tuple((edge.src.stage % 4, 4 + edge.dst.stage % 4) for edge in graph.edges)
    work = Workload(graph, schedule.stage_to_mesh, count, seconds, delays)
    jobs: list[Callable[[], object]] = [
        lambda: build_schedule(kind.name, stages, count, meshes),
        lambda: validate(schedule, graph),
        lambda: simulate(schedule, graph, seconds, TransferCosts(delays)),
        lambda: simulate(schedule, graph, seconds, TransferCosts(delays, links=links)),
    ]
    job_seconds = [_least(job, repeat) for job in jobs]
    shown = with_auto and not kind.cuts_tokens
    return [f"{value:.3f}" for value in job_seconds] + (
        [f"{_least(lambda: auto_schedule(work), 1):.2f}"] if shown else ["–"]
    )


def _least(job: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        begin = process_time()
        job()
        best = min(best, process_time() - begin)
    return best


# ---- how good ----


def _auto(meshes: tuple[int, ...], rounds: tuple[int, ...], seeds: int) -> Table:
    title = f"makespan of auto, worst (mean) of {seeds} random pipelines"
    table = Table("backward", "meshes", "microbatches", title=title)
    for column in ("/ best named", "/ lower bound", "memory of 1F1B: / named", "/ lower bound"):
        table.add_column(column, justify="right")
    for kinds, label in ((_WHOLE, "whole"), (_HALVES, "halves")):
        for count in meshes:
            for each in rounds:
                rows = [
                    _ratios(random_workload(count, each * count, seed, kinds))
                    for seed in range(seeds)
                ]
                shown = [
                    f"{max(ratios):.3f} ({sum(ratios) / len(ratios):.3f})"
                    for ratios in zip(*rows, strict=True)
                ]
                table.add_row(label, str(count), str(each * count), *shown)
    return table


def random_workload(
    meshes: int, microbatches: int, seed: int, kinds: tuple[TaskKind, ...]
) -> Workload:
    """See the head of the file; every forward keeps one byte."""
    rng = np.random.default_rng(seed)
    graph = chain_graph(meshes, kinds)
    forward = rng.uniform(0.5, 1.5, meshes)
    backward = forward * rng.uniform(1.5, 2.5, meshes)
    share = {TaskKind.FORWARD: forward, TaskKind.BACKWARD: backward}
    share |= dict.fromkeys(_HALVES[1:], backward / 2)
    crossing = [edge.src.stage != edge.dst.stage for edge in graph.edges]
    return Workload(
        graph,
        tuple(range(meshes)),
        microbatches,
        {task: float(share[task.kind][task.stage]) for task in graph.tasks},
        tuple(float(rng.choice([0.0, 0.1, 0.5])) if crosses else 0.0 for crosses in crossing),
        {StageTask(TaskKind.FORWARD, stage): 1 for stage in range(meshes)},
    )


def _ratios(work: Workload) -> Iterator[float]:
    """Against the best named schedule and the bound, first with any memory, then with that of 1F1B
    (which is the memory of the zero-bubble schedule on every stage where backwards are split)."""
    bound = one_machine_bound_seconds(work)
    meshes, halves = work.num_meshes, len({task.kind for task in work.graph.tasks}) == len(_HALVES)
    some = tuple(
        min(meshes if halves else meshes - mesh, work.num_microbatches) for mesh in range(meshes)
    )
    for memory in (None, some):
        limited = replace(work, memory_bytes=memory)
        makespan = auto_schedule(limited).result.makespan_seconds
        named = []
        for kind in SCHEDULES.values():
            if {task.kind for task in work.graph.tasks} == set(kind.kinds) and kind.suits(
                meshes, meshes
            ):
                result = run_workload(
                    build_schedule(kind.name, meshes, work.num_microbatches), work
                )
                peaks = [profile.peak_bytes for profile in result.memory]
                fits = all(peak <= most for peak, most in zip(peaks, memory or peaks, strict=True))
                if fits and not kind.cuts_tokens:
                    named.append(result.makespan_seconds)
        yield makespan / min(named)
        yield makespan / bound


if __name__ == "__main__":
    main()

"""The schedule built from durations: optimal on small cases, never behind a named one, within
memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.schedule.auto import auto_schedule, run_workload
from shardopt.schedule.bounds import lower_bound_seconds, one_machine_bound_seconds
from shardopt.schedule.exchange import validate
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.list_scheduling import list_schedule, rules
from shardopt.schedule.schedules import SCHEDULES, build_schedule
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind
from shardopt.schedule.validate import ScheduleError
from shardopt.schedule.workload import Workload
from shardopt.support.errors import UserError
from tests.draws import draws

F, B, I, W = TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT


def workload(
    stages: int,
    microbatches: int,
    seed: int,
    kinds: tuple[TaskKind, ...] = (F, B),
    meshes: int | None = None,
    in_flight: int | None = None,
) -> Workload:
    """Random durations, a backward about twice its forward; every forward keeps 10 bytes."""
    rng = np.random.default_rng(seed)
    graph = chain_graph(stages, kinds)
    forward = rng.uniform(0.5, 1.5, stages)
    backward = forward * rng.uniform(1.5, 2.5, stages)
    share = {F: forward, B: backward, I: backward / 2, W: backward / 2}
    seconds = {task: float(share[task.kind][task.stage]) for task in graph.tasks}
    crossing = [edge.src.stage != edge.dst.stage for edge in graph.edges]
    transfers = tuple(
        float(rng.choice([0.0, 0.1, 0.5])) if crosses else 0.0 for crosses in crossing
    )
    homes = tuple(stage % (meshes or stages) for stage in range(stages))
    kept = {StageTask(F, stage): 10 for stage in range(stages)}
    memory = None if in_flight is None else (10 * in_flight,) * (meshes or stages)
    return Workload(
        graph=graph,
        stage_to_mesh=homes,
        num_microbatches=microbatches,
        task_seconds=seconds,
        transfer_seconds=transfers,
        activation_bytes=kept,
        memory_bytes=memory,
    )


def every_schedule(work: Workload) -> Iterator[Schedule]:
    """All orders of forwards and backwards, with the microbatches of a kind ascending."""
    count, rows = work.num_microbatches, []
    for stage in range(len(work.stage_to_mesh)):
        orders = []
        for places in combinations(range(2 * count), count):
            forwards, backwards = iter(range(count)), iter(range(count))
            orders.append(
                tuple(
                    Task(F, stage, next(forwards))
                    if place in places
                    else Task(B, stage, next(backwards))
                    for place in range(2 * count)
                )
            )
        rows.append(orders)
    yield from (Schedule("any", count, work.stage_to_mesh, tasks) for tasks in product(*rows))


def least_makespan(work: Workload) -> float:
    best = float("inf")
    for schedule in every_schedule(work):
        try:
            result = run_workload(schedule, work)
        except ScheduleError:
            continue
        limits = work.memory_bytes or [profile.peak_bytes for profile in result.memory]
        if all(
            profile.peak_bytes <= limit
            for profile, limit in zip(result.memory, limits, strict=True)
        ):
            best = min(best, result.makespan_seconds)
    return best


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6), in_flight=st.sampled_from([None, 1, 2]))
def test_it_is_optimal_on_two_stages(seed: int, in_flight: int | None) -> None:
    work = workload(2, 3, seed, in_flight=in_flight)
    makespan, best = auto_schedule(work).result.makespan_seconds, least_makespan(work)
    assert makespan == pytest.approx(best)
    assert lower_bound_seconds(work) <= one_machine_bound_seconds(work) <= best + 1e-9


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_bounds_hold_on_three_stages(seed: int) -> None:
    work = workload(3, 2, seed)
    assert (
        lower_bound_seconds(work) <= one_machine_bound_seconds(work) <= least_makespan(work) + 1e-9
    )


@settings(deadline=None, max_examples=draws(20))
@given(
    seed=st.integers(0, 10**6),
    stages=st.sampled_from([2, 4, 8]),
    rounds=st.sampled_from([1, 2, 4]),
    kinds=st.sampled_from([(F, B), (F, I, W)]),
)
def test_no_named_schedule_is_shorter(
    seed: int, stages: int, rounds: int, kinds: tuple[TaskKind, ...]
) -> None:
    work = workload(stages, stages * rounds, seed, kinds)
    chosen = auto_schedule(work)
    validate(chosen.schedule, work.graph)
    bound = one_machine_bound_seconds(work)
    assert (
        bound - 1e-9
        <= chosen.result.makespan_seconds
        <= (1.08 if rounds == 1 and W in kinds else 1.05) * bound
    )
    for kind in SCHEDULES.values():
        if set(kind.kinds) == set(kinds) and kind.suits(stages, stages):
            named = build_schedule(kind.name, stages, stages * rounds)
            assert chosen.result.makespan_seconds <= run_workload(named, work).makespan_seconds


@settings(deadline=None, max_examples=draws(20))
@given(seed=st.integers(0, 10**6), in_flight=st.integers(1, 6))
def test_memory_is_kept(seed: int, in_flight: int) -> None:
    result = auto_schedule(workload(4, 8, seed, in_flight=in_flight)).result
    assert max(profile.peak_bytes for profile in result.memory) <= 10 * in_flight


def test_memory_for_nothing_is_an_error() -> None:
    with pytest.raises(
        UserError, match="no schedule keeps the activations within 0, 0 bytes a mesh"
    ):
        auto_schedule(workload(2, 2, 0, in_flight=0))


@settings(deadline=None, max_examples=draws(20))
@given(seed=st.integers(0, 10**6), chunks=st.sampled_from([2, 3]))
def test_several_stages_a_mesh(seed: int, chunks: int) -> None:
    work = workload(2 * chunks, 4, seed, meshes=2)
    chosen = auto_schedule(work)
    validate(chosen.schedule, work.graph)
    named = build_schedule("interleaved", 2 * chunks, 4, 2)
    assert chosen.result.makespan_seconds <= run_workload(named, work).makespan_seconds


def test_a_rule_lists_every_task_once_and_in_ascending_microbatches() -> None:
    work = workload(3, 5, 1, (F, I, W))
    for rule in rules():
        schedule = list_schedule(work, rule)
        assert schedule is not None
        validate(schedule, work.graph)
        for tasks in schedule.tasks:
            for kind in (F, I, W):
                assert [task.microbatch for task in tasks if task.kind is kind] == list(range(5))

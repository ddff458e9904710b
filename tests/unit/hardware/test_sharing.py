"""Meshes that share hosts: how fast each runs while others rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.hardware.profile import Profile
from shardopt.hardware.sharing import Sharing, most_speed, sharing_of
from shardopt.schedule.clocks import SharedClock
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import build_schedule
from shardopt.schedule.simulator import SimulationResult, simulate
from shardopt.schedule.tasks import TaskKind
from tests.draws import draws

DEVICE = Device("d", {"f32": 1e12}, 2**30, 1e11)
LINK = Link(0.0, 1e9)
CORES = Profile("d", 4, (), (4.0, 2.0, 1.5, 1.0))  # four devices on what one can use alone


def cluster(profile: Profile | None, hosts: int = 1) -> Cluster:
    return Cluster.uniform("c", hosts, 4, replace(DEVICE, profile=profile), LINK, LINK, 0.0)


def meshes(*sizes: int) -> list[range]:
    ends = list(accumulate(sizes))
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def speeds(sharing: Sharing, busy: list[int]) -> dict[int, float]:
    load: Counter[int] = Counter()
    for mesh in busy:
        load.update(dict(sharing.hosts[mesh]))
    return {mesh: sharing.speed(mesh, load) for mesh in busy}


def run(schedule: str, stages: int, microbatches: int, sharing: Sharing | None) -> SimulationResult:
    graph = chain_graph(stages)
    seconds = {task: 2.0 if task.kind is TaskKind.BACKWARD else 1.0 for task in graph.tasks}
    return simulate(build_schedule(schedule, stages, microbatches), graph, seconds, sharing=sharing)


def test_speeds_follow_the_devices_at_work() -> None:
    sharing = sharing_of(cluster(CORES, hosts=2), meshes(1, 1, 2, 4))
    assert sharing is not None
    assert speeds(sharing, [0]) == {0: 4.0}
    assert speeds(sharing, [0, 2, 3]) == {0: 1.5, 2: 1.5, 3: 1.0}  # the last is a host of its own
    both = sharing_of(cluster(CORES, hosts=2), [(0, 4, 5), (1, 2)])
    assert both is not None
    assert speeds(both, [0]) == {0: 2.0}  # the busier of its hosts
    assert speeds(both, [0, 1]) == {0: 1.5, 1: 1.5}


def test_what_a_stage_may_gain() -> None:
    assert most_speed(cluster(CORES)) == 4.0
    assert most_speed(cluster(None)) == 1.0


def test_devices_of_their_own_share_nothing() -> None:
    assert sharing_of(cluster(None), meshes(2, 2)) is None
    assert sharing_of(cluster(Profile("d", 4, (), (1.0,) * 4)), meshes(2, 2)) is None


def test_a_stage_alone_has_the_host_to_itself() -> None:
    """Two stages of one device, one microbatch: one at a time, each four times as fast."""
    result = run("1f1b", 2, 1, sharing_of(cluster(CORES), meshes(1, 1)))
    assert result.makespan_seconds == pytest.approx(6 / 4)
    assert run("1f1b", 2, 1, None).makespan_seconds == 6


def test_tasks_slow_down_when_others_begin() -> None:
    """GPipe, two stages, two microbatches. F0 of stage 0 alone: 1/4; then F1 beside F0 of stage 1
    at half that speed: 1/2; then stage 1 alone: F1 1/4, B0 1/2; B1 of stage 1 beside B0 of stage 0:
    1; B1 of stage 0 alone: 1/2."""
    result = run("gpipe", 2, 2, sharing_of(cluster(CORES), meshes(1, 1)))
    assert result.makespan_seconds == pytest.approx(1 / 4 + 1 / 2 + 1 / 4 + 1 / 2 + 1 + 1 / 2)


@settings(deadline=None, max_examples=draws(40))
@given(st.sampled_from(["gpipe", "1f1b"]), st.sampled_from([1, 2, 4]), st.integers(1, 6))
def test_shared_cores_do_the_sum_of_the_work(schedule: str, stages: int, microbatches: int) -> None:
    """Where k devices are k times as slow, the step takes as long as all work on one, whatever the
    order."""
    fair = Profile("d", 4, (), (4.0, 2.0, 4 / 3, 1.0))
    sharing = sharing_of(cluster(fair), meshes(*(1,) * stages))
    assert run(schedule, stages, microbatches, sharing).makespan_seconds == pytest.approx(
        3 * stages * microbatches / 4
    )
    # The clock of shared hosts is the other one where nobody is faster.
    constant = Sharing(((((0, 1)),),) * stages, (Profile("d", 1, (), (1.0,)),) * stages)
    alone = run(schedule, stages, microbatches, constant)
    plain = run(schedule, stages, microbatches, None)
    assert alone.makespan_seconds == pytest.approx(plain.makespan_seconds)
    for starts, expected in zip(alone.start_seconds, plain.start_seconds, strict=True):
        assert starts == pytest.approx(expected)


def by_small_steps(work: list[tuple[int, float, float]], sharing: Sharing) -> dict[int, float]:
    """The ends of tasks given as (mesh, start, seconds), one a mesh: advance to whatever starts or
    ends next."""
    now, ends = 0.0, {}
    left = {mesh: seconds for mesh, _, seconds in work}
    start = {mesh: begin for mesh, begin, _ in work}
    while left:
        speed = speeds(sharing, [mesh for mesh in left if start[mesh] <= now])
        coming = [start[mesh] - now for mesh in left if start[mesh] > now]
        step = min([left[mesh] / each for mesh, each in speed.items()] + coming)
        for mesh, each in speed.items():
            left[mesh] -= step * each
        now += step
        for mesh in [mesh for mesh in speed if left[mesh] <= 1e-9]:
            ends[mesh] = now
            del left[mesh]
    return ends


@settings(deadline=None, max_examples=draws(60))
@given(
    tasks=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=4),
    wide=st.booleans(),
)
def test_the_clock_is_that_of_small_steps(tasks: list[tuple[int, int]], wide: bool) -> None:
    """Up to four meshes on two hosts, one of which may have devices on both."""
    devices = [(0, 4) if wide else (0,), (1,), (2, 3), (5, 6)]
    sharing = sharing_of(cluster(CORES, hosts=2), devices)
    assert sharing is not None
    clock = SharedClock(sharing)
    work = [(mesh, float(start), float(seconds)) for mesh, (start, seconds) in enumerate(tasks)]
    for mesh, start, seconds in work:
        clock.push(mesh, mesh, start, seconds)
    ends = {}
    while (ended := clock.pop()) is not None:
        ends[ended[1]] = ended[0]
    assert ends == pytest.approx(by_small_steps(work, sharing))

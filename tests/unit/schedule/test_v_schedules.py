"""ZB-V, V-Half and V-Min: what their papers say of bubbles and memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.schedule.graph import chain_graph
from shardopt.schedule.memory import peak_in_flight
from shardopt.schedule.schedules import build_schedule
from shardopt.schedule.simulator import StepMemory, TransferCosts, simulate
from shardopt.schedule.tasks import StageTask, TaskKind
from tests.draws import draws

F = TaskKind.FORWARD
I = TaskKind.BACKWARD_INPUT
W = TaskKind.BACKWARD_WEIGHT
NAMES = ("zb-v", "v-half", "v-min")


def most_microbatches(name: str, meshes: int) -> int:
    """Activations of so many microbatches on a whole mesh: arXiv 2405.15362, table 1."""
    return {"zb-v": meshes, "v-half": (meshes + 2) // 2, "v-min": (meshes + 4) // 3}[name]


def idle_slots(name: str, meshes: int, microbatches: int, seconds: dict[TaskKind, float]) -> float:
    """What the step takes beyond the work of a mesh, each of whose two stages takes `seconds`."""
    graph = chain_graph(2 * meshes, (F, I, W))
    schedule = build_schedule(name, 2 * meshes, microbatches)
    result = simulate(schedule, graph, {task: seconds[task.kind] for task in graph.tasks})
    return result.makespan_seconds - 2 * microbatches * sum(seconds.values())


@pytest.mark.parametrize("meshes", range(2, 17))
def test_formulas_of_bubbles_and_memory(meshes: int) -> None:
    """F = I = W. ZB-V has no bubble but the fill; the bubbles of V-Half and V-Min are about p / 2m
    and 2p / 3m of the work."""
    equal = {F: 1.0, I: 1.0, W: 1.0}
    idle = {
        "zb-v": meshes - 1,
        "v-half": max(3 * meshes - (4 if meshes % 2 else 7), 1),
        "v-min": 4 * meshes - (5 if meshes % 3 else 7),
    }
    for microbatches in (meshes, 2 * meshes + 1, 4 * meshes):
        for name in NAMES:
            assert idle_slots(name, meshes, microbatches, equal) == idle[name]
            peaks = map(peak_in_flight, build_schedule(name, 2 * meshes, microbatches).tasks)
            assert max(peaks) == 2 * most_microbatches(name, meshes)  # two stages a mesh


@pytest.mark.parametrize("meshes", [2, 3, 4, 5, 8])
def test_no_bubbles_grow_with_microbatches_where_the_paper_says_so(meshes: int) -> None:
    """V-Half where W + 2 I ≥ 2 F and W + 2 F ≥ 2 I (section 3.3), ZB-V for any durations."""
    for inputs, weights in ((0.7, 1.0), (1.3, 0.7), (1.5, 1.1), (0.3, 0.2), (3.0, 0.2)):
        seconds = {F: 1.0, I: inputs, W: weights}
        grows = {
            name: idle_slots(name, meshes, 8 * meshes, seconds)
            - idle_slots(name, meshes, 4 * meshes, seconds)
            for name in NAMES
        }
        assert grows["zb-v"] == pytest.approx(0, abs=1e-9)
        if weights + 2 * inputs >= 2 and weights + 2 >= 2 * inputs:
            assert grows["v-half"] == pytest.approx(0, abs=1e-9)


@settings(deadline=None, max_examples=draws(60))
@given(data=st.data(), meshes=st.integers(1, 9), microbatches=st.integers(1, 24))
def test_unequal_tasks_keep_to_the_memory(
    data: st.DataObject, meshes: int, microbatches: int
) -> None:
    graph = chain_graph(2 * meshes, (F, I, W))
    seconds = {task: data.draw(st.floats(0.1, 3.0)) for task in graph.tasks}
    delays = TransferCosts((data.draw(st.sampled_from((0.0, 0.5))),) * len(graph.edges))
    live = StepMemory({StageTask(F, stage): 1 for stage in range(2 * meshes)})
    for name in NAMES:
        schedule = build_schedule(name, 2 * meshes, microbatches)
        result = simulate(schedule, graph, seconds, delays, live)
        peak = max(profile.peak_bytes for profile in result.memory)
        assert peak <= 2 * most_microbatches(name, meshes)
        assert peak <= 2 * microbatches


def test_the_order_of_four_meshes() -> None:
    """The first mesh runs ahead of the turn as far as the memory allows, the last one turns at
    once."""
    rows = str(build_schedule("v-min", 8, 4)).split("\n")
    assert rows[0].startswith("0F0 0F1 0F2 7F0 7I0 7W0 7F1")
    assert rows[3].startswith("3F0 4F0 3F1 4F1 4I0 3I0")

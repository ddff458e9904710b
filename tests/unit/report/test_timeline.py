"""The timeline pictures: what stands where, and that the SVG is well-formed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt
from shardopt.report.timeline import (
    FUSED_STYLE,
    KIND_STYLES,
    styles_of,
    timeline_rows,
    timeline_text,
)
from shardopt.report.timeline_svg import timeline_svg
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import build_schedule
from shardopt.schedule.simulator import SimulationResult, StepMemory, simulate
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def result() -> SimulationResult:
    """Two stages, two microbatches, forward 1 ms, backward 2 ms, and some memory on stage 0."""
    graph = chain_graph(2)
    seconds = {task: 1e-3 if task.kind is TaskKind.FORWARD else 2e-3 for task in graph.tasks}
    activations = {StageTask(TaskKind.FORWARD, 0): 3 << 20}
    return simulate(build_schedule("1f1b", 2, 2), graph, seconds, memory=StepMemory(activations))


def test_the_step_of_one_stage_is_forward_and_backward() -> None:
    """What goes back through its layers is drawn so, and what does not is a forward."""

    def evaluate(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x * x)

    def train(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        slopes = jax.grad(evaluate)(weights, x)
        return [weight - slope for weight, slope in zip(weights, slopes, strict=True)]

    weights, x = [np.ones((8, 8), np.float32)] * 3, np.ones((4, 8), np.float32)
    planned = shardopt.parallelize(cluster="cpu-test:1x2", stages=1, microbatches=1)
    for step, words in ((train, FUSED_STYLE.label), (evaluate, "forward")):
        simulated = planned(step).plan(weights, x).simulate()
        assert [style.label for _, style in styles_of(simulated)] == [words]


def test_rows(result: SimulationResult) -> None:
    assert timeline_rows(result, 36) == (
        "1f1b: 2 stages, 2 microbatches, 9 ms, bubble 33.3%",
        "mesh 0 F0--F1--········B0======····B1====== busy 67%, 2 in flight, 6 MiB",
        "mesh 1 ····F0--B0======F1--B1======········ busy 67%, 1 in flight",
        "       |0                  |5               ms",
        "       F- forward   B= backward",
    )


def test_narrow_rows_show_only_microbatches() -> None:
    graph = chain_graph(2)
    many = simulate(build_schedule("gpipe", 2, 12), graph, dict.fromkeys(graph.tasks, 1.0))
    rows = timeline_rows(many, 52)
    assert rows[1].startswith("mesh 0 0-1-2-3-4-5-6-7-8-9-1011····0=1=2=")
    assert len(timeline_rows(many, 5)[1]) >= 20  # never narrower than can be read


def test_rows_name_the_stage_where_a_mesh_has_several() -> None:
    lists = ("0F0 2F0 2B0 0B0", "1F0 1B0")
    schedule = Schedule(
        "shared", 1, (0, 1, 0), tuple(tuple(map(Task.parse, row.split())) for row in lists)
    )
    graph = chain_graph(3)
    rows = timeline_rows(simulate(schedule, graph, dict.fromkeys(graph.tasks, 1.0)), 60)
    assert rows[1].startswith("mesh 0 0F0-------··········2F0-------2B0=======··········0B0=======")
    assert "1F0" not in rows[2] and "F0" in rows[2]


def test_text_colours_boxes_by_kind(result: SimulationResult) -> None:
    text = timeline_text(result, 36)
    assert tuple(line.rstrip() for line in text.plain.rstrip("\n").split("\n")) == timeline_rows(
        result, 36
    )
    colours = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert KIND_STYLES[TaskKind.FORWARD].colour in colours["F0--"]
    assert KIND_STYLES[TaskKind.BACKWARD].colour in colours["B1======"]


def test_svg(result: SimulationResult) -> None:
    root = ElementTree.fromstring(timeline_svg(result))
    boxes = [group for group in root.iter(f"{SVG}g") if group.get("data-label")]
    tooltips = [title.text for group in boxes for title in group.iter(f"{SVG}title")]
    assert len(tooltips) == 8
    assert tooltips[0] == "0F0 (forward): 0 to 1 ms"
    assert "1B1 (backward): 5 to 7 ms" in tooltips
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert {
        "mesh 0",
        "mesh 1",
        "F0",
        "B1",
        "5",
        "ms",
        "forward",
        "backward",
        "idle (bubble)",
    } <= set(texts)
    assert float(root.attrib["width"]) == 1100


def test_empty_time_axis() -> None:
    graph = chain_graph(1)
    nothing = simulate(build_schedule("1f1b", 1, 1), graph, dict.fromkeys(graph.tasks, 0.0))
    assert "bubble 0.0%" in timeline_rows(nothing)[0]
    ElementTree.fromstring(timeline_svg(nothing))

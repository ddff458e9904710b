"""A measured step in the simulator's form: what of it is shown beside the simulated one."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from shardopt.report.measured_timeline import (
    comparison_svg,
    comparison_table,
    length_of,
    measured_result,
    start_of,
)
from shardopt.report.timeline import timeline_rows
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.memory import MemoryProfile
from shardopt.schedule.schedules import ScheduleText
from shardopt.schedule.simulator import SimulationResult, simulate
from shardopt.schedule.tasks import Task

STAGES, MICROBATCHES = 2, 3


@pytest.fixture
def simulated() -> SimulationResult:
    graph = chain_graph(STAGES)
    schedule = ScheduleText("1f1b").build(STAGES, MICROBATCHES, None)
    return simulate(schedule, graph, dict.fromkeys(graph.tasks, 1.0))


def doubled(simulated: SimulationResult) -> dict[Task, tuple[float, float]]:
    """Everything takes twice as long, on a clock that shows 100 at the start."""
    return {
        span.task: (100 + 2 * span.start_seconds, 100 + 2 * span.end_seconds)
        for span in simulated.spans()
    }


def test_a_step_of_twice_the_length(simulated: SimulationResult) -> None:
    times = doubled(simulated)
    measured = measured_result(simulated, times)
    assert (start_of(times), length_of(times)) == (100, 2 * simulated.makespan_seconds)
    assert measured.makespan_seconds == 2 * simulated.makespan_seconds
    assert measured.bubble_fraction == pytest.approx(simulated.bubble_fraction)
    assert [2 * busy for busy in simulated.busy_seconds] == list(measured.busy_seconds)
    for before, after in zip(simulated.spans(), measured.spans(), strict=True):
        assert before.task == after.task and after.start_seconds == 2 * before.start_seconds
    assert timeline_rows(measured, 60)[1:-2] == tuple(timeline_rows(simulated, 60)[1:-2])


def test_tasks_that_were_not_measured_take_no_time(simulated: SimulationResult) -> None:
    times = doubled(simulated)
    missing = Task.parse("1B1")
    del times[missing]
    span = next(span for span in measured_result(simulated, times).spans() if span.task == missing)
    before = times[Task.parse("1F1")]
    assert span.start_seconds == span.end_seconds == before[1] - 100
    assert measured_result(simulated, {}).makespan_seconds == 0


def test_transfers_lead_from_the_end_of_a_task_to_the_start_of_its_reader(
    simulated: SimulationResult,
) -> None:
    measured = measured_result(simulated, doubled(simulated))
    ends = {
        (str(each.src), str(each.dst)): (each.start_seconds, each.end_seconds)
        for each in measured.transfers
    }
    spans = {str(span.task): span for span in measured.spans()}
    assert ends["0F1", "1F1"] == (spans["0F1"].end_seconds, spans["1F1"].start_seconds)


def test_table(simulated: SimulationResult) -> None:
    from rich.console import Console

    console = Console(width=140)
    with console.capture() as capture:
        console.print(comparison_table(simulated, measured_result(simulated, doubled(simulated))))
    text = capture.get()
    assert re.search(r"0 .* forward of stage 0 .* 3 .* 1 .* 2 .* 2.00", text), text
    assert re.search(r"step, without what no schedule orders .* 8 .* 16 .* 2.00", text), text


def test_picture_has_both_on_one_axis(simulated: SimulationResult) -> None:
    memory = [MemoryProfile((0.0, 1.0), (10, 20)), MemoryProfile((0.0,), (5,))]
    root = ElementTree.fromstring(
        comparison_svg(simulated, measured_result(simulated, doubled(simulated), memory))
    )
    inner = [child for child in root if child.tag.endswith("svg")]
    titles = [child.text for picture in inner for child in picture if child.tag.endswith("title")]
    assert [str(title).split(":")[0] for title in titles] == ["simulated", "measured"]
    widths = [int(picture.attrib["width"]) for picture in inner]
    margins = 2 * widths[0] - widths[1]  # half the plot, the same margins
    assert 0 < margins < widths[0] and int(inner[1].attrib["y"]) > int(inner[0].attrib["height"])

"""What the other stages of a mesh hold while a task runs, against a count from the definition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardopt.schedule.memory import in_flight_beside
from shardopt.schedule.schedules import build_schedule
from shardopt.schedule.tasks import StageTask, Task, TaskKind


def from_definition(tasks: Sequence[Task]) -> dict[tuple[StageTask, int], int]:
    most: dict[tuple[StageTask, int], int] = {}
    pairs = {(task.stage, task.microbatch) for task in tasks}
    spans = {
        pair: [k for k, task in enumerate(tasks) if (task.stage, task.microbatch) == pair]
        for pair in pairs
    }
    for position, task in enumerate(tasks):
        for stage in {stage for stage, _ in pairs} - {task.stage}:
            count = sum(
                own == stage and min(places) <= position <= max(places)
                for (own, _), places in spans.items()
            )
            key = StageTask(task.kind, task.stage), stage
            most[key] = max(most.get(key, 0), count)
    return most


@pytest.mark.parametrize(
    ("name", "each"),
    [("1f1b", 1), ("interleaved:3", 3), ("zb-v", 2), ("dualpipe-v", 2), ("v-min", 2)],
)
def test_counts_of_other_stages(name: str, each: int) -> None:
    for tasks in build_schedule(name, 4 * each, 8).tasks:
        assert in_flight_beside(tasks) == from_definition(tasks)


def test_weight_halves_that_wait_are_in_flight() -> None:
    """On the last mesh of ZB-V, microbatches of both stages wait for their weight halves at
    once."""
    last = build_schedule("zb-v", 8, 8).tasks[3]
    backward = StageTask(TaskKind.BACKWARD_INPUT, 3)
    assert in_flight_beside(last)[backward, 4] == 4

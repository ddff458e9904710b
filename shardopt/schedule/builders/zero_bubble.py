"""Schedules that split the backward: the input half is on the way of the pipeline, the weight half
fills its bubbles.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241).
"""

from __future__ import annotations

from shardopt.schedule.tasks import Schedule, Task, TaskKind


def zero_bubble(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """ZB-H1: 1F1B whose stage s puts off weight halves by s microbatches, so that the drain has
    work left.

    The memory is that of 1F1B's first stage on every stage; the bubble of one stage is (p - 1)(F +
    I - W)."""
    rows = (_row(stage, num_stages, num_microbatches) for stage in range(num_stages))
    return Schedule("zero-bubble", num_microbatches, tuple(range(num_stages)), tuple(rows))


def _row(stage: int, num_stages: int, num_microbatches: int) -> tuple[Task, ...]:
    runs = range(num_microbatches)
    ahead = min(num_stages - stage - 1, num_microbatches)
    row = [Task(TaskKind.FORWARD, stage, i) for i in range(ahead)]
    for i in runs:
        if ahead + i < num_microbatches:
            row.append(Task(TaskKind.FORWARD, stage, ahead + i))
        row.append(Task(TaskKind.BACKWARD_INPUT, stage, i))
        if i >= stage:
            row.append(Task(TaskKind.BACKWARD_WEIGHT, stage, i - stage))
    return (
        *row,
        *(
            Task(TaskKind.BACKWARD_WEIGHT, stage, i)
            for i in runs[max(num_microbatches - stage, 0) :]
        ),
    )

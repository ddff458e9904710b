"""PipeDream (arXiv 1806.03377) and PipeDream-2BW (arXiv 2006.09503): pipelines that never drain,
for which they pay with gradients of older weights and with memory for several versions of them.

The tasks of a step are those of 1F1B. A training is 1F1B over a long row of microbatches, and an
update (`A`) wherever the weights change. A backward needs the weights that its forward used, so a
stage keeps every version that a microbatch in flight has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardopt.schedule.builders.flat import one_f_one_b
from shardopt.schedule.tasks import Schedule, Task, TaskKind


def step_of(name: str) -> Callable[[int, int, int], Schedule]:
    """The builder of the tasks of one step, which ends with its update."""

    def build(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        return replace(one_f_one_b(num_stages, num_microbatches, num_meshes), name=name)

    return build


def pipedream_ages(num_stages: int) -> tuple[int, ...]:
    """How many updates old the weights of each stage are: as many as come back while a microbatch
    is on its way (arXiv 1806.03377, section 3.3, with weight stashing)."""
    return tuple(range(num_stages))[::-1]


def pipedream_2bw_ages(num_stages: int) -> tuple[int, ...]:
    """One update for all stages (arXiv 2006.09503, section 3.1), but of a model in one stage."""
    return (min(num_stages - 1, 1),) * num_stages


def pipedream(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """A training, an update after every microbatch: stage s computes with weights that are
    `num_stages - 1 - s` updates old."""
    return _with_updates("pipedream", num_stages, num_microbatches, 1)


def pipedream_2bw(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """A training, an update after every `num_stages` microbatches, and after the last: all of a
    group see the weights from before the last update (a delay of one), so two versions are enough
    on every stage."""
    return _with_updates("pipedream-2bw", num_stages, num_microbatches, num_stages)


def _with_updates(name: str, num_stages: int, num_microbatches: int, group: int) -> Schedule:
    """1F1B with an update of each stage after every `group` backwards."""
    rows = []
    for tasks in one_f_one_b(num_stages, num_microbatches, num_stages).tasks:
        row: list[Task] = []
        for task in tasks:
            row.append(task)
            last = (task.microbatch + 1) % group == 0 or task.microbatch == num_microbatches - 1
            if task.kind is TaskKind.BACKWARD and last:
                row.append(Task(TaskKind.APPLY, task.stage, task.microbatch))
        rows.append(tuple(row))
    return Schedule(name, num_microbatches, tuple(range(num_stages)), tuple(rows))


def weight_versions(tasks: Sequence[Task], delayed: bool) -> int:
    """The largest number of versions of a stage's weights that are alive at once in its list of
    tasks, at least 1.

    A microbatch uses the version that is newest at its forward; with `delayed`, the one before the
    last update that precedes its group. A version is alive from the update that makes it until
    there is a newer one and no microbatch in flight uses it."""
    updates = [position for position, task in enumerate(tasks) if task.kind is TaskKind.APPLY]
    births = [-1, *updates]
    superseded = [*updates, len(tasks)]
    used = _delayed_version(tasks) if delayed else _newest_version(tasks)
    for position, task in enumerate(tasks):
        if task.kind is TaskKind.BACKWARD:
            version = used(task.microbatch)
            superseded[version] = max(superseded[version], position)
    steps = sorted([(birth, 1) for birth in births] + [(end, -1) for end in superseded])
    alive = most = 0
    # At one position the end of a version comes before the birth of the next.
    for _, change in steps:
        alive += change
        most = max(most, alive)
    return max(most, 1)


def _newest_version(tasks: Sequence[Task]) -> Callable[[int], int]:
    version, newest = 0, {}
    for task in tasks:
        version += task.kind is TaskKind.APPLY
        if task.kind is TaskKind.FORWARD:
            newest[task.microbatch] = version
    return newest.__getitem__


def _delayed_version(tasks: Sequence[Task]) -> Callable[[int], int]:
    last_of_group = sorted(task.microbatch for task in tasks if task.kind is TaskKind.APPLY)
    return lambda microbatch: max(0, sum(last < microbatch for last in last_of_group) - 1)

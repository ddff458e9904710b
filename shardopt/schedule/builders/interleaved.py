"""Interleaved 1F1B (Megatron-LM, arXiv 2104.04473, section 2.2): every mesh has several chunks of
layers.

With v chunks a mesh the pipeline is filled and drained v times as fast: the bubble is (p - 1) / (p
- 1 + v m)."""

from __future__ import annotations

from shardopt.schedule.homes import in_turn
from shardopt.schedule.tasks import Schedule, Task, TaskKind


def interleaved(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Stage s runs on mesh s modulo `num_meshes`, which must divide `num_stages`.

    A mesh takes microbatches in groups of `num_meshes`, a whole group chunk by chunk. It is built
    for a number of microbatches that the groups divide; those that do not exist are left out, which
    no other task waits for."""
    chunks, groups = num_stages // num_meshes, -(-num_microbatches // num_meshes)
    order = [
        (chunk, group * num_meshes + i)
        for group in range(groups)
        for chunk in range(chunks)
        for i in range(num_meshes)
    ]
    rows = tuple(
        _row(order, mesh, num_meshes, chunks, num_microbatches) for mesh in range(num_meshes)
    )
    return Schedule("interleaved", num_microbatches, in_turn(num_stages, num_meshes), rows)


def _row(
    order: list[tuple[int, int]], mesh: int, num_meshes: int, chunks: int, num_microbatches: int
) -> tuple[Task, ...]:
    forwards = [Task(TaskKind.FORWARD, chunk * num_meshes + mesh, i) for chunk, i in order]
    backwards = [
        Task(TaskKind.BACKWARD, (chunks - 1 - chunk) * num_meshes + mesh, i) for chunk, i in order
    ]
    ahead = num_meshes - mesh - 1
    # With chunks, the first backward comes back only after the forwards of all chunks, and units
    # alternate in groups.
    first = min(ahead if chunks == 1 else 2 * ahead + (chunks - 1) * num_meshes, len(order))
    steady = [task for pair in zip(forwards[first:], backwards, strict=False) for task in pair]
    row = (*forwards[:first], *steady, *backwards[len(order) - first :])
    return tuple(task for task in row if task.microbatch < num_microbatches)

"""TeraPipe (arXiv 2102.07988): a causal model is cut along the tokens too, as a token waits for
earlier ones only.

Slice k of the tokens on mesh s is stage s · slices + k of the list: slices may take different
times, because later ones attend to more. Forwards wait for the slice before, backwards for the
slice after."""

from __future__ import annotations

from collections.abc import Iterator

from shardopt.schedule.builders.flat import one_f_one_b
from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.homes import in_blocks
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind


def terapipe(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Slices are stages on one mesh, of which there are `num_stages / num_meshes`. Microbatches run
    as under 1F1B, forwards slice after slice, backwards from the last slice on.

    The paper runs all forwards first; this order takes as long, and holds fewer microbatches."""
    slices = num_stages // num_meshes
    rows = []
    for mesh, tasks in enumerate(one_f_one_b(num_meshes, num_microbatches, num_meshes).tasks):
        stages = range(mesh * slices, (mesh + 1) * slices)
        orders = {TaskKind.FORWARD: stages, TaskKind.BACKWARD: stages[::-1]}
        rows.append(
            tuple(
                Task(task.kind, stage, task.microbatch)
                for task in tasks
                for stage in orders[task.kind]
            )
        )
    return Schedule("terapipe", num_microbatches, in_blocks(num_stages, num_meshes), tuple(rows))


def terapipe_graph(num_stages: int, num_meshes: int, kinds: tuple[TaskKind, ...]) -> StageGraph:
    """A grid of meshes and slices."""
    tasks = tuple(StageTask(kind, stage) for kind in kinds for stage in range(num_stages))
    return StageGraph(
        tasks, tuple(_edges(num_stages // num_meshes, num_meshes, TaskKind.BACKWARD in kinds))
    )


def _edges(slices: int, num_meshes: int, trains: bool) -> Iterator[StageEdge]:
    for mesh in range(num_meshes):
        for k in range(slices):
            stage = mesh * slices + k
            forward = StageTask(TaskKind.FORWARD, stage)
            backward = StageTask(TaskKind.BACKWARD, stage)
            if trains:
                yield StageEdge(forward, backward)
            for before in ((mesh > 0) * [stage - slices]) + ((k > 0) * [stage - 1]):
                yield StageEdge(StageTask(TaskKind.FORWARD, before), forward)
                if trains:
                    yield StageEdge(backward, StageTask(TaskKind.BACKWARD, before))

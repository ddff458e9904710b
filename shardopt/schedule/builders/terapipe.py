"""TeraPipe (arXiv 2102.07988): a causal model is cut along the tokens too, as a token waits for
earlier ones only.

Slice k of the tokens on mesh s is stage s · slices + k of the list: slices may take different
times, because later ones attend to more. Forwards wait for the slice before, backwards for the
slice after."""

from __future__ import annotations

from collections.abc import Iterator

from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind


def terapipe(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Slices are stages on one mesh, of which there are `num_stages / num_meshes`. All forwards run
    first, slice after slice; backwards begin with the last slice of a microbatch."""
    slices = num_stages // num_meshes
    runs = range(num_microbatches)
    rows = []
    for mesh in range(num_meshes):
        stages = range(mesh * slices, (mesh + 1) * slices)
        forwards = [Task(TaskKind.FORWARD, stage, i) for i in runs for stage in stages]
        backwards = [Task(TaskKind.BACKWARD, stage, i) for i in runs for stage in reversed(stages)]
        rows.append((*forwards, *backwards))
    homes = tuple(mesh for mesh in range(num_meshes) for _ in range(slices))
    return Schedule("terapipe", num_microbatches, homes, tuple(rows))


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

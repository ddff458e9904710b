"""Chimera (arXiv 2107.06925): two pipelines over the same meshes, one in each direction, fill each
other's bubbles.

Stage s of the model is stage s of the list on mesh s, and stage p + s on mesh p - 1 - s, so every
mesh holds the weights of two stages. Number i stands for two microbatches: one enters on mesh 0,
one on mesh p - 1."""

from __future__ import annotations

from shardopt.schedule.graph import StageEdge, StageGraph, chain_graph
from shardopt.schedule.homes import down_and_up
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind


def chimera(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Needs two stages a mesh and an even number of meshes; p microbatches make a unit, and units
    overlap.

    In slots of equal length, microbatch i of a direction runs forward on its k-th stage in slot t +
    k and backward in slot t + 2p - 1 - k, t = 2i + p ⌊2i / p⌋: no two tasks meet on a mesh, because
    p is even."""
    rows = tuple(_row(mesh, num_meshes, num_microbatches) for mesh in range(num_meshes))
    homes = down_and_up(num_stages, num_meshes)
    return Schedule("chimera", num_microbatches, homes, rows)


def _row(mesh: int, num_meshes: int, num_microbatches: int) -> tuple[Task, ...]:
    slots: list[tuple[int, Task]] = []
    for stage, place in ((mesh, mesh), (2 * num_meshes - 1 - mesh, num_meshes - 1 - mesh)):
        for i in range(num_microbatches):
            begin = 2 * i + num_meshes * (2 * i // num_meshes)
            slots.append((begin + place, Task(TaskKind.FORWARD, stage, i)))
            slots.append((begin + 2 * num_meshes - 1 - place, Task(TaskKind.BACKWARD, stage, i)))
    return tuple(task for _, task in sorted(slots))


def chimera_graph(num_stages: int, num_meshes: int, kinds: tuple[TaskKind, ...]) -> StageGraph:
    """Two chains that do not wait for each other."""
    chain = chain_graph(num_meshes, kinds)

    def shifted(task: StageTask) -> StageTask:
        return StageTask(task.kind, task.stage + num_meshes)

    other = tuple(
        StageEdge(shifted(edge.src), shifted(edge.dst), edge.bytes) for edge in chain.edges
    )
    return StageGraph((*chain.tasks, *map(shifted, chain.tasks)), (*chain.edges, *other))

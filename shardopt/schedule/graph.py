"""The dependences between the fragments of a pipeline, as data.

A real model is more than a chain: skip connections add edges between far stages, tied weights add
edges between backward tasks, and the last stage often has one fragment that does forward and
backward. So a pipeline is a graph over `StageTask`s, and everything in `shardopt.schedule` asks the
graph instead of assuming a shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from shardopt.schedule.tasks import StageTask, TaskKind


@dataclass(frozen=True)
class StageEdge:
    """`dst` needs `bytes` bytes that `src` computes.

    Between tasks that run per microbatch the edge stays within one microbatch. An edge into a task
    that runs once per step waits for all microbatches of `src` and moves its (accumulated) value
    once."""

    src: StageTask
    dst: StageTask
    bytes: int = 0

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"edge {self} carries {self.bytes} bytes")

    def __str__(self) -> str:
        return f"{self.src}->{self.dst}"


@dataclass(frozen=True)
class StageGraph:
    """The fragments that exist and the edges between them, both in program order; the forward of
    `fused_stages` does their backward, too.

    A schedule may hold tasks whose kind is not in the graph (the backward of a stage whose forward
    fragment computes it too): they take no time, wait for nothing and lower to nothing. Raises
    ValueError for edges of unknown tasks, for cycles, and for an edge from a task that runs once
    per step back into the microbatch loop."""

    tasks: tuple[StageTask, ...]
    edges: tuple[StageEdge, ...]
    fused_stages: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        known = set(self.tasks)
        if len(known) != len(self.tasks):
            raise ValueError(
                f"stage graph: tasks {[str(task) for task in self.tasks]} are not unique"
            )
        sorter: TopologicalSorter[StageTask] = TopologicalSorter()
        for edge in self.edges:
            if edge.src not in known or edge.dst not in known:
                raise ValueError(
                    f"stage graph: edge {edge} names a task that the graph does not have"
                )
            if edge.src.kind.runs_once and not edge.dst.kind.runs_once:
                raise ValueError(
                    f"stage graph: edge {edge} leads from a task run once per step into the "
                    "microbatch loop"
                )
            sorter.add(edge.dst, edge.src)
        try:
            sorter.prepare()
        except CycleError as error:
            raise ValueError(f"stage graph: cycle {' -> '.join(map(str, error.args[1]))}") from None


def chain_graph(
    num_stages: int,
    kinds: tuple[TaskKind, ...] = (TaskKind.FORWARD, TaskKind.BACKWARD),
    activation_bytes: int = 0,
) -> StageGraph:
    """The plain pipeline: activations pass from stage to stage, their gradients (of the same size)
    pass back.

    `kinds` are the kinds every stage has, for example (F,) for inference or (F, I, W) where the
    backward is split. Edges inside a stage carry 0 bytes: what a stage keeps for its backward is
    memory, not traffic."""
    tasks = tuple(StageTask(kind, stage) for kind in kinds for stage in range(num_stages))
    return StageGraph(tasks, tuple(_chain_edges(num_stages, frozenset(kinds), activation_bytes)))


def _chain_edges(
    num_stages: int, kinds: frozenset[TaskKind], activation_bytes: int
) -> Iterator[StageEdge]:
    forward, weight = TaskKind.FORWARD, TaskKind.BACKWARD_WEIGHT
    backward = next(
        (kind for kind in (TaskKind.BACKWARD, TaskKind.BACKWARD_INPUT) if kind in kinds), None
    )
    inside = [(forward, backward), (forward, weight), (backward, weight)]
    for stage in range(num_stages):
        if stage > 0:
            yield StageEdge(
                StageTask(forward, stage - 1), StageTask(forward, stage), activation_bytes
            )
        if stage > 0 and backward is not None:
            yield StageEdge(
                StageTask(backward, stage), StageTask(backward, stage - 1), activation_bytes
            )
        for src, dst in inside:
            if src in kinds and dst is not None and dst in kinds:
                yield StageEdge(StageTask(src, stage), StageTask(dst, stage))
        if TaskKind.UPDATE in kinds:
            last = weight if weight in kinds else backward or forward
            yield StageEdge(StageTask(last, stage), StageTask(TaskKind.UPDATE, stage))

"""DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, folded into a V): the first and the last half
of the layers meet.

Mesh r has stage r on the way down and stage 2p - 1 - r on the way up, so that a microbatch comes
back to where it entered, and forwards of one direction run beside backwards of the other."""

from __future__ import annotations

from collections import deque

from shardopt.schedule.homes import down_and_up
from shardopt.schedule.tasks import Schedule, Task, TaskKind

_DOWN, _UP = 0, 1


def dual_pipe_v(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Needs two stages a mesh. The steady state begins with 2p microbatches; with fewer, those that
    do not exist are left out of the schedule for 2p."""
    count = max(num_microbatches, 2 * num_meshes)
    rows = (_Row(mesh, num_meshes).build(count) for mesh in range(num_meshes))
    listed = tuple(
        tuple(task for task in row if task.microbatch < num_microbatches) for row in rows
    )
    homes = down_and_up(num_stages, num_meshes)
    return Schedule("dualpipe-v", num_microbatches, homes, listed)


class _Row:
    """The tasks of one mesh. Weight halves follow their input halves at once, or wait in `late` to
    fill bubbles."""

    def __init__(self, mesh: int, num_meshes: int) -> None:
        self.behind, self.mesh = num_meshes - mesh - 1, mesh
        self.stages = (mesh, 2 * num_meshes - 1 - mesh)
        self.tasks: list[Task] = []
        self.next: dict[tuple[TaskKind, int], int] = {}
        self.late: deque[int] = deque()

    def build(self, num_microbatches: int) -> tuple[Task, ...]:
        for _ in range(2 * self.behind):  # fill
            self._forward(_DOWN)
        for _ in range(self.mesh + 1):
            self._forward(_DOWN)
            self._forward(_UP)
        for _ in range(self.behind):
            # Nothing else is ready yet: the weight half fills the slot in which other meshes wait.
            self._backward(_UP, put_off=True)
            self._weight()
            self._forward(_UP)
        for _ in range(num_microbatches - self.mesh - 1 - 2 * self.behind):  # steady
            self._forward(_DOWN)
            self._backward(_UP)
            self._forward(_UP)
            self._backward(_DOWN)
        self._drain()
        return tuple(self.tasks)

    def _drain(self) -> None:
        for _ in range(self.behind):
            self._backward(_UP)
            self._forward(_UP)
            self._backward(_DOWN)
        turns = 2 * (self.mesh + 1)
        for turn in range(turns):  # the second half of these is urgent for other meshes
            self._backward(_DOWN if turn % 2 else _UP, put_off=turn > self.mesh)
        for _ in range(self.behind):
            self._weight()
            self._backward(_DOWN, put_off=True)
        while self.late:
            self._weight()

    def _forward(self, direction: int) -> None:
        self._add(TaskKind.FORWARD, direction)

    def _backward(self, direction: int, put_off: bool = False) -> None:
        self._add(TaskKind.BACKWARD_INPUT, direction)
        if put_off:
            self.late.append(direction)
        else:
            self._add(TaskKind.BACKWARD_WEIGHT, direction)

    def _weight(self) -> None:
        if self.late:
            self._add(TaskKind.BACKWARD_WEIGHT, self.late.popleft())

    def _add(self, kind: TaskKind, direction: int) -> None:
        microbatch = self.next.get((kind, direction), 0)
        self.next[kind, direction] = microbatch + 1
        self.tasks.append(Task(kind, self.stages[direction], microbatch))

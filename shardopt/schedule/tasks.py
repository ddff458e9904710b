"""Tasks and schedules as values: what runs on which mesh, and in which order.

A *task* is one fragment run for one microbatch. A *schedule* gives every mesh its ordered list of tasks; it says
nothing about time. The simulator, the memory check of the stage DP, the runtime's instruction lists and the report read
the same value. Text form of a task, as in torch.distributed.pipelining: stage, kind, microbatch, so `0F3` is the
forward of stage 0 for microbatch 3; tasks that run once per step have no microbatch (`0U`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from shardopt.cost.errors import UserError


class TaskKind(StrEnum):
    """Kind of a fragment. BACKWARD is the whole backward; BACKWARD_INPUT and BACKWARD_WEIGHT are its two halves."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UPDATE = "U"

    @property
    def runs_once(self) -> bool:
        """True if the task runs once per step, after the microbatch loop."""
        return self is TaskKind.UPDATE


ONCE = -1  # microbatch of a task that runs once per step

_TASK_PATTERN = re.compile(r"(\d+)([A-Z])(\d*)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class StageTask:
    """A kind of work of one stage, for any microbatch: the node of a `StageGraph`."""

    kind: TaskKind
    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}"


@dataclass(frozen=True, order=True, slots=True)
class Task:
    """One run of a stage's fragment; `microbatch` is ONCE exactly for the kinds that run once per step."""

    kind: TaskKind
    stage: int
    microbatch: int = ONCE

    def __post_init__(self) -> None:
        if self.stage < 0 or (self.microbatch != ONCE if self.kind.runs_once else self.microbatch < 0):
            raise ValueError(f"{self.kind.name} task of stage {self.stage} cannot have microbatch {self.microbatch}")

    @property
    def stage_task(self) -> StageTask:
        return StageTask(self.kind, self.stage)

    @staticmethod
    def parse(text: str) -> Task:
        """Read `0F3` or `0U`; raises UserError for anything else."""
        match = _TASK_PATTERN.fullmatch(text.strip())
        kinds = [kind.value for kind in TaskKind]
        if match is None or match[2] not in kinds:
            raise UserError(
                f"'{text.strip()}' is not a task: expected <stage><kind><microbatch>, kind in {''.join(kinds)}"
            )
        kind = TaskKind(match[2])
        if kind.runs_once == bool(match[3]):
            wanted = "no microbatch: it runs once per step" if kind.runs_once else "a microbatch"
            raise UserError(f"'{text.strip()}' is not a task: kind {kind} takes {wanted}")
        return Task(kind, int(match[1]), int(match[3]) if match[3] else ONCE)

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}" + ("" if self.kind.runs_once else str(self.microbatch))


@dataclass(frozen=True)
class Schedule:
    """Per mesh its tasks in order. `stage_to_mesh[s]` is the mesh of stage s; several stages may share a mesh.

    The value only promises that its numbers are in range; `shardopt.schedule.validate` checks that it can run.
    """

    name: str
    num_microbatches: int
    stage_to_mesh: tuple[int, ...]
    tasks: tuple[tuple[Task, ...], ...]

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise ValueError(f"schedule '{self.name}': needs at least 1 microbatch, got {self.num_microbatches}")
        if any(not 0 <= mesh < self.num_meshes for mesh in self.stage_to_mesh):
            raise ValueError(
                f"schedule '{self.name}': stage_to_mesh {self.stage_to_mesh} exceeds {self.num_meshes} meshes"
            )

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_mesh)

    @property
    def num_meshes(self) -> int:
        return len(self.tasks)

    def stages_of_mesh(self, mesh: int) -> tuple[int, ...]:
        return tuple(stage for stage, home in enumerate(self.stage_to_mesh) if home == mesh)

    def with_updates(self) -> Schedule:
        """The same schedule with one update task per stage, after everything else its mesh does."""
        updates = (
            tuple(Task(TaskKind.UPDATE, stage) for stage in self.stages_of_mesh(mesh))
            for mesh in range(self.num_meshes)
        )
        return replace(self, tasks=tuple(own + tail for own, tail in zip(self.tasks, updates, strict=True)))

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, tasks)) for tasks in self.tasks)


def to_csv(schedule: Schedule) -> str:
    """One row per mesh, one task per cell, in order."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([str(task) for task in tasks] for tasks in schedule.tasks)
    return buffer.getvalue()


def from_csv(text: str, name: str = "csv") -> Schedule:
    """Read a schedule written by `to_csv` or by torch.distributed.pipelining, where empty cells are idle slots.

    The number of stages, the number of microbatches and the mesh of each stage follow from the tasks. Raises UserError,
    naming row and column, for a cell that is no task, a row without tasks, or a stage with tasks on none or two meshes.
    """
    return from_rows(list(csv.reader(io.StringIO(text.strip("\r\n")))), name)


def from_rows(rows: Sequence[Sequence[str]], name: str) -> Schedule:
    """`from_csv` for cells that are separated already."""
    tasks = tuple(_parse_row(name, number, row) for number, row in enumerate(rows, start=1))
    home: dict[int, int] = {}
    for mesh, own in enumerate(tasks):
        for task in own:
            if home.setdefault(task.stage, mesh) != mesh:
                raise UserError(
                    f"schedule '{name}': stage {task.stage} has tasks on mesh {home[task.stage]} and mesh {mesh}"
                )
    missing = sorted(set(range(max(home, default=-1) + 1)) - set(home))
    if missing:
        raise UserError(f"schedule '{name}': stage {missing[0]} has no tasks, but stage {max(home)} has")
    num_microbatches = 1 + max((task.microbatch for own in tasks for task in own), default=ONCE)
    if num_microbatches < 1:
        raise UserError(f"schedule '{name}': no task has a microbatch")
    return Schedule(name, num_microbatches, tuple(home[stage] for stage in range(len(home))), tasks)


def _parse_row(name: str, row_number: int, cells: Sequence[str]) -> tuple[Task, ...]:
    tasks = []
    for column, cell in enumerate(cells, start=1):
        if not cell.strip():
            continue
        try:
            tasks.append(Task.parse(cell))
        except UserError as error:
            raise UserError(f"schedule '{name}', row {row_number}, column {column}: {error}") from None
    if not tasks:
        raise UserError(f"schedule '{name}', row {row_number}: a mesh without tasks")
    return tuple(tasks)

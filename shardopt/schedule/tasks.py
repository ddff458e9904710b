"""Tasks and schedules as values: what runs on which mesh, and in which order.

A *task* is one fragment run for one microbatch. A *schedule* gives every mesh its ordered list of
tasks; it says nothing about time. The simulator, the memory check of the stage DP, the runtime's
instruction lists and the report read the same value. Text form of a task, as in
torch.distributed.pipelining: stage, kind, microbatch, so `0F3` is the forward of stage 0 for
microbatch 3; tasks that run once per step have no microbatch (`0U`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from shardopt.support.errors import UserError


class TaskKind(StrEnum):
    """Kind of a fragment. BACKWARD is the whole backward; BACKWARD_INPUT and BACKWARD_WEIGHT are
    its two halves.

    UPDATE ends a step. APPLY is an update in the middle of one, after a microbatch: later
    microbatches see new weights."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UPDATE = "U"
    APPLY = "A"

    # Tasks are keys by the hundred thousand, and that of an enum runs in Python.
    __hash__ = str.__hash__

    @property
    def runs_once(self) -> bool:
        """True if the task runs once per step, after the microbatch loop."""
        return self is TaskKind.UPDATE


ONCE = -1  # microbatch of a task that runs once per step
_MOST_SHOWN = 40  # characters of what is no task

# Nine digits at most: these numbers become sizes, and a typo must not take all memory.
_TASK_PATTERN = re.compile(r"(\d{1,9})([A-Z])(\d{0,9})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class StageTask:
    """A kind of work of one stage, for any microbatch: the node of a `StageGraph`."""

    kind: TaskKind
    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}"


@dataclass(frozen=True, order=True, slots=True)
class Task:
    """One run of a stage's fragment; `microbatch` is ONCE exactly for the kinds that run once per
    step."""

    kind: TaskKind
    stage: int
    microbatch: int = ONCE

    def __post_init__(self) -> None:
        if self.stage < 0 or (
            self.microbatch != ONCE if self.kind.runs_once else self.microbatch < 0
        ):
            raise ValueError(
                f"{self.kind.name} task of stage {self.stage} cannot have microbatch "
                f"{self.microbatch}"
            )

    @property
    def stage_task(self) -> StageTask:
        return StageTask(self.kind, self.stage)

    @staticmethod
    def parse(text: str) -> Task:
        """Read `0F3` or `0U`; raises UserError for anything else."""
        match = _TASK_PATTERN.fullmatch(text.strip())
        kinds = [kind.value for kind in TaskKind]
        if match is None or match[2] not in kinds:
            shown = text.strip()[:_MOST_SHOWN]
            raise UserError(
                f"'{shown}' is not a task: expected <stage><kind><microbatch>, kind in "
                f"{''.join(kinds)}"
            )
        kind = TaskKind(match[2])
        if kind.runs_once == bool(match[3]):
            expected = "no microbatch: it runs once per step" if kind.runs_once else "a microbatch"
            raise UserError(f"'{text.strip()}' is not a task: kind {kind} takes {expected}")
        return Task(kind, int(match[1]), int(match[3]) if match[3] else ONCE)

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}" + ("" if self.kind.runs_once else str(self.microbatch))


@dataclass(frozen=True)
class Schedule:
    """Per mesh its tasks in order. `stage_to_mesh[s]` is the mesh of stage s; several stages may
    share a mesh.

    The value only promises that its numbers are in range; `shardopt.schedule.validate` checks that
    it can run."""

    name: str
    num_microbatches: int
    stage_to_mesh: tuple[int, ...]
    tasks: tuple[tuple[Task, ...], ...]

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise ValueError(
                f"schedule '{self.name}': needs at least 1 microbatch, got {self.num_microbatches}"
            )
        if any(not 0 <= mesh < self.num_meshes for mesh in self.stage_to_mesh):
            raise ValueError(
                f"schedule '{self.name}': stage_to_mesh {self.stage_to_mesh} exceeds "
                f"{self.num_meshes} meshes"
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
        return replace(
            self, tasks=tuple(row + tail for row, tail in zip(self.tasks, updates, strict=True))
        )

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, tasks)) for tasks in self.tasks)

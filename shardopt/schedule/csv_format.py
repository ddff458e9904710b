"""Schedules as CSV, in the action notation of torch.distributed.pipelining: one row a mesh, one
action a cell.

    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

An action is a task (`0F3`, `2I1`, `2W1`), or `(0F3;1B0)OVERLAP_F_B`, whose tasks run one after the
other here. What torch writes for communication (`0SEND_F3`, `1RECV_F3`, `0UNSHARD`, `0REDUCE_GRAD`,
…) is counted and left out: sends and receives follow from the dataflow, and gradients are reduced
where the plan says. Empty cells are idle slots.

A microbatch of a stage has a whole backward (`7B3`) or its halves (`7I3`, `7W3`). Where some have
halves, as torch writes DualPipeV, a whole backward becomes its halves, one behind the other: a
program either splits backwards or does not."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardopt.schedule.tasks import ONCE, Schedule, Task, TaskKind
from shardopt.support.errors import UserError

_TRANSFERS = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B)\d+", re.ASCII)
_COLLECTIVES = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)\d*", re.ASCII)
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B", re.ASCII)
_HALVES = (TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)

_Cell = tuple[str, Task]  # where it stands in the text, and what it says


@dataclass(frozen=True)
class Imported:
    """A schedule, and how many actions of each kind of communication its text had beside the
    tasks."""

    schedule: Schedule
    left_out: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in self.left_out)


def to_csv(schedule: Schedule) -> str:
    """One row per mesh, one task per cell, in order."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(
        [str(task) for task in tasks] for tasks in schedule.tasks
    )
    return buffer.getvalue()


def read_csv(text: str, name: str = "csv") -> Imported:
    """Read a schedule written by `to_csv` or by torch.distributed.pipelining.

    The number of stages, the number of microbatches and the mesh of each stage follow from the
    tasks. Raises UserError, naming line and column (counted in cells), for a cell that is no
    action, a line without tasks, a half of a backward that is there as a whole, or a stage with
    tasks on none or two meshes."""
    reader = csv.reader(io.StringIO(text.rstrip("\r\n")), strict=True)
    left_out: Counter[str] = Counter()
    try:
        rows = [tuple(_cells(row, f"line {reader.line_num}", name, left_out)) for row in reader]
    except csv.Error as error:
        raise UserError(f"schedule '{name}', line {reader.line_num}: {error}") from error
    return Imported(_schedule(name, tuple(rows)), tuple(sorted(left_out.items())))


def read_csv_file(path: str) -> Imported:
    """Raises UserError as `read_csv`, and for a file that cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the schedule '{path}': {getattr(error, 'strerror', None) or error}"
        ) from error
    return read_csv(text, Path(path).stem)


def from_rows(rows: Sequence[Sequence[str]], name: str) -> Schedule:
    """The schedule of tasks that are separated already, one row a mesh; raises UserError as
    `read_csv`."""
    none: Counter[str] = Counter()
    cells = (
        tuple(_cells(row, f"row {number}", name, none)) for number, row in enumerate(rows, start=1)
    )
    return _schedule(name, tuple(cells))


def _cells(cells: Sequence[str], line: str, name: str, left_out: Counter[str]) -> Iterator[_Cell]:
    empty = True
    for column, cell in enumerate(cells, start=1):
        where = f"{line}, column {column}"
        text = cell.strip()
        communication = _TRANSFERS.fullmatch(text) or _COLLECTIVES.fullmatch(text)
        if communication is not None:
            left_out[communication[1]] += 1
        elif text:
            overlap = _OVERLAP.fullmatch(text)
            for part in overlap[1].split(";") if overlap else (text,):
                try:
                    yield where, Task.parse(part)
                except UserError as error:
                    raise UserError(f"schedule '{name}', {where}: {error}") from None
            empty = False
    if empty:
        raise UserError(f"schedule '{name}', {line}: a mesh without tasks")


def _backwards_alike(name: str, rows: tuple[tuple[_Cell, ...], ...]) -> Iterator[Iterable[Task]]:
    """The tasks of every mesh, with whole backwards or with halves. Raises UserError where a
    microbatch of a stage has both."""
    whole: dict[tuple[int, int], str] = {}
    halves: dict[tuple[int, int], tuple[str, Task]] = {}
    for where, task in (cell for row in rows for cell in row):
        run = task.stage, task.microbatch
        if task.kind is TaskKind.BACKWARD:
            whole[run] = where
        elif task.kind in _HALVES:
            halves[run] = where, task
        else:
            continue
        if run in whole and run in halves:
            place, half = halves[run]
            raise UserError(
                f"schedule '{name}', {place}: '{half}' is a half of the backward that "
                f"{whole[run]} has as a whole: expected either"
            )
    for row in rows:
        if halves:
            yield (part for _, task in row for part in _halved(task))
        else:
            yield (task for _, task in row)


def _halved(task: Task) -> tuple[Task, ...]:
    if task.kind is not TaskKind.BACKWARD:
        return (task,)
    return tuple(Task(kind, task.stage, task.microbatch) for kind in _HALVES)


def _schedule(name: str, rows: tuple[tuple[_Cell, ...], ...]) -> Schedule:
    tasks = tuple(map(tuple, _backwards_alike(name, rows)))
    home: dict[int, int] = {}
    for mesh, row in enumerate(tasks):
        for task in row:
            if home.setdefault(task.stage, mesh) != mesh:
                raise UserError(
                    f"schedule '{name}': stage {task.stage} has tasks on mesh {home[task.stage]} "
                    f"and mesh {mesh}"
                )
    # Never range(max(home)): a typo such as 10000000000F0 must not take all memory.
    missing = next((stage for stage in range(len(home)) if stage not in home), None)
    if missing is not None:
        raise UserError(
            f"schedule '{name}': stage {missing} has no tasks, but stage {max(home)} has"
        )
    num_microbatches = 1 + max((task.microbatch for row in tasks for task in row), default=ONCE)
    if num_microbatches < 1:
        raise UserError(f"schedule '{name}': no task has a microbatch")
    # Here, too, before anything of that size is built.
    if num_microbatches > sum(map(len, tasks)):
        raise UserError(
            f"schedule '{name}': has microbatch {num_microbatches - 1}, but only "
            f"{sum(map(len, tasks))} tasks"
        )
    return Schedule(name, num_microbatches, tuple(home[stage] for stage in range(len(home))), tasks)

"""A measured step beside the simulated one: a table by kind of task, and one picture with both on
the same axis.

The measured step is put into the simulator's form, so that both are drawn by the same code. Its
zero is the start of its first task: what a step does before (prologues) is in no schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from shardopt.report.timeline import time_unit
from shardopt.report.timeline_svg import MARGINS, timeline_svg
from shardopt.schedule.events import Times as NodeTimes
from shardopt.schedule.memory import MemoryProfile
from shardopt.schedule.simulator import SimulationResult, TaskSpan
from shardopt.schedule.tasks import Task, TaskKind
from shardopt.schedule.validate import LinkedSchedule

Times = Mapping[Task, tuple[float, float]]  # start and end of each task, seconds on one clock

_HEIGHT = re.compile(r'height="(\d+)"')
_GAP = 16  # pixels between the two pictures


def start_of(times: Times) -> float:
    """The zero of the measured step."""
    return min((start for start, _ in times.values()), default=0.0)


def length_of(times: Times) -> float:
    """Seconds from the first start to the last end."""
    return max((end for _, end in times.values()), default=0.0) - start_of(times)


def measured_result(
    simulated: SimulationResult, times: Times, memory: Sequence[MemoryProfile] | None = None
) -> SimulationResult:
    """The measured step of the same schedule. Tasks that were not measured take no time, where the
    one before ends.

    A transfer is shown from the end of the task that sends to the start of the one that receives.
    `memory` is per mesh, with seconds from `start_of(times)`; without it, only the simulated peak
    is known."""
    zero = start_of(times)
    starts: list[tuple[float, ...]] = []
    ends: list[tuple[float, ...]] = []
    for tasks in simulated.schedule.tasks:
        of_mesh: list[tuple[float, float]] = []
        for task in tasks:
            at = of_mesh[-1][1] if of_mesh else 0.0
            start, end = times.get(task, (at + zero, at + zero))
            of_mesh.append((start - zero, end - zero))
        starts.append(tuple(start for start, _ in of_mesh))
        ends.append(tuple(end for _, end in of_mesh))
    busy = tuple(
        sum(end - start for start, end in zip(*rows, strict=True))
        for rows in zip(starts, ends, strict=True)
    )
    makespan = max((end for row in ends for end in row), default=0.0)
    return replace(
        simulated,
        makespan_seconds=makespan,
        bubble_fraction=1.0 - sum(busy) / (makespan * len(busy)) if makespan > 0 else 0.0,
        busy_seconds=busy,
        start_seconds=tuple(starts),
        end_seconds=tuple(ends),
        memory=tuple(
            memory or (MemoryProfile((0.0,), (profile.peak_bytes,)) for profile in simulated.memory)
        ),
        times=_times(simulated.linked, starts, ends),
    )


def _times(
    linked: LinkedSchedule, starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> NodeTimes:
    first, last = ([seconds for row in rows for seconds in row] for rows in (starts, ends))
    moved = tuple(
        (source, node, last[source], max(first[node], last[source]))
        for node, sources in enumerate(linked.predecessors)
        for source, _ in sources
        if linked.mesh_of[source] != linked.mesh_of[node]
    )
    return NodeTimes(first, last, (), moved)


@dataclass(frozen=True)
class ComparisonRow:
    """One row of the comparison, as a person reads it: `runs` is empty where rows are sums."""

    mesh: str
    name: str
    runs: str
    simulated: str
    measured: str
    ratio: str


def comparison_rows(
    simulated: SimulationResult, measured: SimulationResult
) -> tuple[ComparisonRow, ...]:
    """How long tasks take on the average by mesh, stage and kind, then each mesh and the step."""
    unit = time_unit(measured)

    def row(mesh: str, name: str, runs: str, before: float, after: float) -> ComparisonRow:
        return ComparisonRow(
            mesh=mesh,
            name=name,
            runs=runs,
            simulated=unit.text(before),
            measured=unit.text(after),
            ratio=_ratio(after, before),
        )

    tasks = [
        row(str(mesh), f"{kind.name.lower()} of stage {stage}", str(count), before, after)
        for (mesh, stage, kind), (count, before, after) in _means(simulated, measured).items()
    ]
    busy = zip(simulated.busy_seconds, measured.busy_seconds, strict=True)
    meshes = [row(str(mesh), "all tasks", "", *pair) for mesh, pair in enumerate(busy)]
    makespans = (simulated.makespan_seconds, measured.makespan_seconds)
    before, after = (f"{result.bubble_fraction:.1%}" for result in (simulated, measured))
    return (
        *tasks,
        *meshes,
        row("", "step, without what no schedule orders", "", *makespans),
        ComparisonRow(mesh="", name="bubble", runs="", simulated=before, measured=after, ratio=""),
    )


def comparison_table(simulated: SimulationResult, measured: SimulationResult) -> Any:
    """The rows as a `rich` table."""
    from rich.table import Table

    table = Table("mesh", "task", "runs", title="simulated and measured step")
    for column in ("simulated", "measured", "measured / simulated"):
        table.add_column(column, justify="right")
    rows = comparison_rows(simulated, measured)
    for row, following in zip(rows, (*rows[1:], None), strict=True):
        is_last_task = bool(row.runs) and following is not None and not following.runs
        table.add_row(*astuple(row), end_section=is_last_task)
    return table


def comparison_svg(
    simulated: SimulationResult, measured: SimulationResult, width: int = 1100
) -> str:
    """Both timelines, the simulated one above, over the same seconds."""
    longest = max(simulated.makespan_seconds, measured.makespan_seconds) or 1.0
    pictures = [
        timeline_svg(
            result, round(MARGINS + (width - MARGINS) * result.makespan_seconds / longest), heading
        )
        for result, heading in ((simulated, "simulated: "), (measured, "measured: "))
    ]
    heights = [int(match.group(1)) for match in map(_HEIGHT.search, pictures) if match is not None]
    total = sum(heights) + _GAP
    tops = (0, heights[0] + _GAP)
    inner = (
        text.replace("<svg ", f'<svg y="{top}" ', 1)
        for top, text in zip(tops, pictures, strict=True)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}">'
    )
    return "\n".join([head, *inner, "</svg>\n"])


_Kind = tuple[int, int, TaskKind]  # mesh, stage, kind


def _means(
    simulated: SimulationResult, measured: SimulationResult
) -> dict[_Kind, tuple[int, float, float]]:
    """Number of tasks of a kind, and their mean seconds in both."""
    totals: dict[_Kind, tuple[int, float, float]] = {}
    for before, after in zip(simulated.spans(), measured.spans(), strict=True):
        key = (before.mesh, before.task.stage, before.task.kind)
        count, left, right = totals.get(key, (0, 0.0, 0.0))
        totals[key] = (count + 1, left + _seconds(before), right + _seconds(after))
    return {
        key: (count, left / count, right / count)
        for key, (count, left, right) in sorted(totals.items())
    }


def _seconds(span: TaskSpan) -> float:
    return span.end_seconds - span.start_seconds


def _ratio(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before > 0 else "-"

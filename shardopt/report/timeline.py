"""A simulated step as rows of text for the terminal, and what the picture (`timeline_svg.py`)
shares with them.

Both show one row per mesh over a time axis, one box per task, coloured by kind and labelled with
its kind and microbatch (and its stage where a mesh has several)."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

from shardopt.report.units import bytes_text
from shardopt.schedule.simulator import SimulationResult, TaskSpan
from shardopt.schedule.tasks import Task, TaskKind
from shardopt.support.counts import counted

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class KindStyle:
    """How a kind looks, in hues that colour-blind eyes tell apart; `fill` pads its box where there
    is no colour."""

    label: str
    colour: str
    ink: str
    fill: str


KIND_STYLES: dict[TaskKind, KindStyle] = {
    TaskKind.FORWARD: KindStyle("forward", "#4477AA", "#FFFFFF", "-"),
    TaskKind.BACKWARD: KindStyle("backward", "#228833", "#FFFFFF", "="),
    TaskKind.BACKWARD_INPUT: KindStyle("backward input", "#66CCEE", "#10303A", "~"),
    TaskKind.BACKWARD_WEIGHT: KindStyle("backward weight", "#CCBB44", "#33300A", "+"),
    TaskKind.UPDATE: KindStyle("update", "#AA3377", "#FFFFFF", "#"),
    TaskKind.APPLY: KindStyle("update after a microbatch", "#EE6677", "#FFFFFF", "*"),
}
# A stage that waits for nobody between the two runs them as one task, which counts as forward.
FUSED_STYLE = KindStyle("forward and backward", "#994F00", "#FFFFFF", "%")

_MIN_COLUMNS = 20


def timeline_text(result: SimulationResult, columns: int = 100) -> Text:
    """The picture as a rich Text with colours; `columns` is the width of the time axis in
    characters."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for row in _rows(result, columns):
        for part, style in row:
            text.append(part, style=f"{style.ink} on {style.colour}" if style else "")
        text.append("\n")
    return text


def timeline_rows(result: SimulationResult, columns: int = 100) -> tuple[str, ...]:
    """The picture as plain lines: summary, one line per mesh, axis, legend."""
    return tuple("".join(part for part, _ in row).rstrip() for row in _rows(result, columns))


Part = tuple[str, KindStyle | None]  # characters of one task, or of none


def _rows(result: SimulationResult, columns: int) -> list[list[Part]]:
    columns = max(columns, _MIN_COLUMNS)
    margin = len(f"mesh {result.schedule.num_meshes - 1} ")
    by_mesh: dict[int, list[TaskSpan]] = {mesh: [] for mesh in range(result.schedule.num_meshes)}
    for span in result.spans():
        by_mesh[span.mesh].append(span)
    rows: list[list[Part]] = [[(summary(result), None)]]
    full = _full_labels_fit(result, columns)
    for mesh, spans in by_mesh.items():
        rows.append(
            [(f"mesh {mesh}".ljust(margin), None), *_mesh_row(result, mesh, spans, columns, full)]
        )
    rows.append([(" " * margin + _axis_row(result, columns), None)])
    legend: list[Part] = [(" " * margin, None)]
    for kind, style in styles_of(result):
        legend += [(f"{kind.value}{style.fill}", style), (f" {style.label}   ", None)]
    return [*rows, legend]


def _mesh_row(
    result: SimulationResult, mesh: int, spans: list[TaskSpan], columns: int, full: bool
) -> list[Part]:
    scale = columns / (result.makespan_seconds or 1.0)
    parts: list[Part] = []
    column = 0
    for span in spans:
        first = max(column, round(span.start_seconds * scale))
        limit = round(span.end_seconds * scale)
        if limit <= first:
            continue
        runs_once, style = span.task.kind.runs_once, style_of(result, span.task)
        label = full_label(result, span) if full or runs_once else str(span.task.microbatch)
        parts.append(("·" * (first - column), None))
        parts.append((label[: limit - first].ljust(limit - first, style.fill), style))
        column = limit
    return [*parts, ("·" * (columns - column), None), (f" {row_note(result, mesh)}", None)]


def _full_labels_fit(result: SimulationResult, columns: int) -> bool:
    """True if every box has room for kind and microbatch; otherwise all show the microbatch
    alone."""
    scale = columns / (result.makespan_seconds or 1.0)
    return all(
        floor((span.end_seconds - span.start_seconds) * scale) >= len(full_label(result, span))
        for span in result.spans()
    )


def full_label(result: SimulationResult, span: TaskSpan) -> str:
    task = span.task
    several = len(result.schedule.stages_of_mesh(span.mesh)) > 1
    return str(task) if several else str(task)[len(str(task.stage)) :]


def _axis_row(result: SimulationResult, columns: int) -> str:
    unit = time_unit(result)
    scale = columns / (result.makespan_seconds * unit.per_second or 1.0)
    axis = ""
    for tick in ticks(result.makespan_seconds * unit.per_second, max(2, columns // 16)):
        label = f"|{tick:g}"
        if round(tick * scale) >= len(axis) and round(tick * scale) + len(label) <= columns:
            axis = axis.ljust(round(tick * scale)) + label
    return f"{axis.ljust(columns)} {unit.name}"


# ---- shared by both ----


def summary(result: SimulationResult) -> str:
    """One line: what, how long, and the bubble."""
    schedule = result.schedule
    facts = (
        counted(schedule.num_stages, "stage"),
        counted(schedule.num_microbatches, "microbatch"),
        time_unit(result).text(result.makespan_seconds),
        f"bubble {result.bubble_fraction:.1%}",
    )
    return f"{schedule.name}: {', '.join(facts)}"


@dataclass(frozen=True)
class TimeUnit:
    """What times are shown in."""

    name: str
    per_second: float

    def text(self, seconds: float) -> str:
        return f"{seconds * self.per_second:.4g} {self.name}"


def time_unit(result: SimulationResult) -> TimeUnit:
    """The one that suits the makespan."""
    if result.makespan_seconds >= 1:
        return TimeUnit("s", 1.0)
    return (
        TimeUnit("ms", 1e3)
        if result.makespan_seconds >= 1e-3 or not result.makespan_seconds
        else TimeUnit("µs", 1e6)
    )


def row_note(result: SimulationResult, mesh: int) -> str:
    """Busy share, microbatches in flight, and peak memory where memory is known."""
    busy = result.busy_seconds[mesh] / (result.makespan_seconds or 1.0)
    note = f"busy {busy:.0%}, {result.peak_in_flight[mesh]} in flight"
    peak = result.memory[mesh].peak_bytes
    return f"{note}, {bytes_text(peak)}" if peak else note


def style_of(result: SimulationResult, task: Task) -> KindStyle:
    """That of its kind, unless the task is forward and backward in one."""
    if task.kind is TaskKind.FORWARD and task.stage in result.graph.fused_stages:
        return FUSED_STYLE
    return KIND_STYLES[task.kind]


def styles_of(result: SimulationResult) -> tuple[tuple[TaskKind, KindStyle], ...]:
    """What the legend explains, in the order of kinds."""
    present = {(span.task.kind, style_of(result, span.task)) for span in result.spans()}
    styles = (*KIND_STYLES.values(), FUSED_STYLE)
    return tuple((kind, style) for kind in TaskKind for style in styles if (kind, style) in present)


def ticks(limit: float, most: int) -> tuple[float, ...]:
    """Round numbers from 0 to `limit`, about `most` of them: steps of 1, 2 or 5 times a power of
    ten."""
    if limit <= 0:
        return (0.0,)
    power = 10.0 ** floor(log10(limit / most))
    step = next(
        factor * power
        for factor in (1, 2, 5, 10)
        if floor(limit / (factor * power)) <= most or factor == 10
    )
    return tuple(round(index * step, 12) for index in range(floor(limit / step + 1e-9) + 1))

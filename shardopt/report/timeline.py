"""A simulated step as a picture: rows of text for the terminal, or a standalone SVG.

Both show one row per mesh over a time axis in milliseconds, one box per task, coloured by kind and labelled with its
kind and microbatch (and its stage where a mesh has several). Sizes of the SVG are in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from shardopt.report.units import bytes_text
from shardopt.schedule.simulator import SimulationResult, TaskSpan
from shardopt.schedule.tasks import TaskKind

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class KindStyle:
    """How a kind looks, in hues that colour-blind eyes tell apart; `fill` pads its box where there is no colour."""

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

_MIN_COLUMNS = 20


def timeline_text(result: SimulationResult, columns: int = 100) -> Text:
    """The picture as a rich Text with colours; `columns` is the width of the time axis in characters."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for row in _rows(result, columns):
        for part, kind in row:
            style = f"{KIND_STYLES[kind].ink} on {KIND_STYLES[kind].colour}" if kind else ""
            text.append(part, style=style)
        text.append("\n")
    return text


def timeline_rows(result: SimulationResult, columns: int = 100) -> tuple[str, ...]:
    """The picture as plain lines: summary, one line per mesh, axis, legend."""
    return tuple("".join(part for part, _ in row).rstrip() for row in _rows(result, columns))


Part = tuple[str, TaskKind | None]  # characters of one task, or of none


def _rows(result: SimulationResult, columns: int) -> list[list[Part]]:
    columns = max(columns, _MIN_COLUMNS)
    margin = len(f"mesh {result.schedule.num_meshes - 1} ")
    by_mesh: dict[int, list[TaskSpan]] = {mesh: [] for mesh in range(result.schedule.num_meshes)}
    for span in result.spans():
        by_mesh[span.mesh].append(span)
    rows: list[list[Part]] = [[(_summary(result), None)]]
    full = _full_labels_fit(result, columns)
    for mesh, spans in by_mesh.items():
        rows.append([(f"mesh {mesh}".ljust(margin), None), *_mesh_row(result, mesh, spans, columns, full)])
    rows.append([(" " * margin + _axis_row(result, columns), None)])
    legend: list[Part] = [(" " * margin, None)]
    for kind in _kinds(result):
        legend += [(f"{kind.value}{KIND_STYLES[kind].fill}", kind), (f" {KIND_STYLES[kind].label}   ", None)]
    return [*rows, legend]


def _mesh_row(result: SimulationResult, mesh: int, spans: list[TaskSpan], columns: int, full: bool) -> list[Part]:
    scale = columns / (result.makespan_seconds or 1.0)
    parts: list[Part] = []
    column = 0
    for span in spans:
        first, limit = max(column, round(span.start_seconds * scale)), round(span.end_seconds * scale)
        if limit <= first:
            continue
        kind = span.task.kind
        label = _full_label(result, span) if full or kind.runs_once else str(span.task.microbatch)
        parts.append(("·" * (first - column), None))
        parts.append((label[: limit - first].ljust(limit - first, KIND_STYLES[kind].fill), kind))
        column = limit
    return [*parts, ("·" * (columns - column), None), (f" {_row_note(result, mesh)}", None)]


def _full_labels_fit(result: SimulationResult, columns: int) -> bool:
    """True if every box has room for kind and microbatch; otherwise all show the microbatch alone."""
    scale = columns / (result.makespan_seconds or 1.0)
    return all(
        floor((span.end_seconds - span.start_seconds) * scale) >= len(_full_label(result, span))
        for span in result.spans()
    )


def _full_label(result: SimulationResult, span: TaskSpan) -> str:
    task = span.task
    several = len(result.schedule.stages_of_mesh(span.mesh)) > 1
    return str(task) if several else str(task)[len(str(task.stage)) :]


def _axis_row(result: SimulationResult, columns: int) -> str:
    scale = columns / (result.makespan_seconds * 1e3 or 1.0)
    axis = ""
    for tick in _ticks(result.makespan_seconds * 1e3, max(2, columns // 16)):
        label = f"|{tick:g}"
        if round(tick * scale) >= len(axis) and round(tick * scale) + len(label) <= columns:
            axis = axis.ljust(round(tick * scale)) + label
    return axis.ljust(columns) + " ms"


# ---- the SVG ----

_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 70, 200, 56, 70
_ROW_HEIGHT, _ROW_GAP = 30, 6
_CHARACTER_WIDTH = 7  # of the labels in the boxes, at 11 px
_IDLE_FILL = 'fill="#000000" fill-opacity="0.06"'
_MIN_STROKED_WIDTH = 4  # narrower boxes would be all border


def timeline_svg(result: SimulationResult, width: int = 1100) -> str:
    """The picture as a standalone SVG document, `width` pixels wide; every box has a tooltip with its times."""
    plot = max(width - _MARGIN_LEFT - _MARGIN_RIGHT, 100)
    bottom = _MARGIN_TOP + result.schedule.num_meshes * (_ROW_HEIGHT + _ROW_GAP)
    height = bottom + _MARGIN_BOTTOM
    total = plot + _MARGIN_LEFT + _MARGIN_RIGHT
    body = [
        f'<rect width="{total}" height="{height}" fill="#FFFFFF"/>',
        _label(_MARGIN_LEFT, 26, _summary(result), size=14, weight="bold"),
        *_svg_axis(result, plot, bottom),
        *_svg_rows(result, plot),
        *(_svg_box(result, span, plot) for span in result.spans()),
        *_svg_legend(result, bottom + 50),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" viewBox="0 0 {total} {height}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    return "\n".join([head, f"<title>{escape(_summary(result))}</title>", *body, "</svg>\n"])


def _svg_axis(result: SimulationResult, plot: int, bottom: int) -> list[str]:
    makespan = result.makespan_seconds * 1e3
    lines = []
    for tick in _ticks(makespan, max(2, plot // 90)):
        x = _MARGIN_LEFT + plot * tick / (makespan or 1.0)
        lines.append(f'<path d="M{x:.1f} {_MARGIN_TOP - 6}V{bottom + 4}" stroke="#DDDDDD"/>')
        lines.append(_label(x, bottom + 18, f"{tick:g}", anchor="middle", colour="#555555"))
    lines.append(_label(_MARGIN_LEFT + plot + 30, bottom + 18, "ms", colour="#555555"))
    return lines


def _svg_rows(result: SimulationResult, plot: int) -> list[str]:
    lines = []
    for mesh in range(result.schedule.num_meshes):
        y = _row_top(mesh)
        frame = f'x="{_MARGIN_LEFT}" y="{y}" width="{plot}" height="{_ROW_HEIGHT}"'
        lines.append(f"<rect {frame} {_IDLE_FILL}/>")
        lines.append(_label(_MARGIN_LEFT - 10, y + 19, f"mesh {mesh}", anchor="end", size=12))
        lines.append(_label(_MARGIN_LEFT + plot + 10, y + 19, _row_note(result, mesh), colour="#555555"))
    return lines


def _svg_box(result: SimulationResult, span: TaskSpan, plot: int) -> str:
    scale = plot / (result.makespan_seconds or 1.0)
    x, y = _MARGIN_LEFT + span.start_seconds * scale, _row_top(span.mesh)
    width = (span.end_seconds - span.start_seconds) * scale
    style = KIND_STYLES[span.task.kind]
    label = _full_label(result, span)
    stroke = ' stroke="#FFFFFF"' if width >= _MIN_STROKED_WIDTH else ""
    times = f"{span.start_seconds * 1e3:.4g} to {span.end_seconds * 1e3:.4g} ms"
    box = f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW_HEIGHT}" rx="2" fill="{style.colour}"{stroke}/>'
    if width >= len(label) * _CHARACTER_WIDTH + 4:
        box += _label(x + width / 2, y + 19, label, anchor="middle", colour=style.ink)
    return f"<g><title>{span.task} ({style.label}): {times}</title>{box}</g>"


def _svg_legend(result: SimulationResult, y: int) -> list[str]:
    lines, x = [], _MARGIN_LEFT
    for kind in _kinds(result):
        style = KIND_STYLES[kind]
        lines.append(f'<rect x="{x}" y="{y - 10}" width="14" height="12" rx="2" fill="{style.colour}"/>')
        lines.append(_label(x + 20, y, style.label))
        x += 44 + len(style.label) * _CHARACTER_WIDTH
    lines.append(f'<rect x="{x}" y="{y - 10}" width="14" height="12" {_IDLE_FILL}/>')
    lines.append(_label(x + 20, y, "idle (bubble)"))
    return lines


def _label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _row_top(mesh: int) -> int:
    return _MARGIN_TOP + mesh * (_ROW_HEIGHT + _ROW_GAP)


# ---- shared by both ----


def _summary(result: SimulationResult) -> str:
    schedule = result.schedule
    stages = f"{schedule.num_stages} stages, {schedule.num_microbatches} microbatches"
    return f"{schedule.name}: {stages}, {result.makespan_seconds * 1e3:.4g} ms, bubble {result.bubble_fraction:.1%}"


def _row_note(result: SimulationResult, mesh: int) -> str:
    """Busy share, microbatches in flight, and peak memory where memory is known."""
    busy = result.busy_seconds[mesh] / (result.makespan_seconds or 1.0)
    note = f"busy {busy:.0%}, {result.peak_in_flight[mesh]} in flight"
    peak = result.memory[mesh].peak_bytes
    return f"{note}, {bytes_text(peak)}" if peak else note


def _kinds(result: SimulationResult) -> tuple[TaskKind, ...]:
    present = {span.task.kind for span in result.spans()}
    return tuple(kind for kind in TaskKind if kind in present)


def _ticks(limit: float, wanted: int) -> tuple[float, ...]:
    """Round numbers from 0 to `limit`, about `wanted` of them: steps of 1, 2 or 5 times a power of ten."""
    if limit <= 0:
        return (0.0,)
    power = 10.0 ** floor(log10(limit / wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if floor(limit / (factor * power)) <= wanted or factor == 10)
    return tuple(round(index * step, 12) for index in range(floor(limit / step + 1e-9) + 1))

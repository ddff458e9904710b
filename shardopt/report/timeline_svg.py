"""A simulated step as a standalone SVG document: one row per mesh with its tasks, under it its
memory over time.

Where a mesh has several stages, later ones are paler. Thin lines are transfers, from the task that
sends to the one that receives. The height of a memory curve is relative to the highest peak of all
meshes. Sizes are in pixels."""

from __future__ import annotations

from xml.sax.saxutils import escape

from shardopt.report.svg_text import svg_text
from shardopt.report.timeline import (
    full_label,
    row_note,
    style_of,
    styles_of,
    summary,
    ticks,
    time_unit,
)
from shardopt.report.units import bytes_text
from shardopt.schedule.simulator import SimulationResult, TaskSpan

_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 70, 200, 56, 70
MARGINS = _MARGIN_LEFT + _MARGIN_RIGHT  # of the width of a picture, beside its time axis
_ROW_HEIGHT, _ROW_GAP = 30, 6
_MEMORY_HEIGHT, _MEMORY_GAP, _MEMORY_COLOUR = 18, 3, "#AA3377"
_PALEST = 0.55  # opacity of the last of several stages of a mesh
_MOST_LINES = 600  # transfers; more would hide what they connect
_CHARACTER_WIDTH = 7  # of the labels in the boxes, at 11 px
_AXIS_OVERHANG = 14  # of the labels at both ends of the time axis
_IDLE_FILL = 'fill="#000000" fill-opacity="0.06"'
_MIN_STROKED_WIDTH = 4  # narrower boxes would be all border


def timeline_svg(result: SimulationResult, width: int = 1100, heading: str = "") -> str:
    """The picture as a standalone SVG document, `width` pixels wide; every box has a tooltip with
    its times.

    `heading` stands before its title.
    """
    plot = max(width - _MARGIN_LEFT - _MARGIN_RIGHT, 100)
    bottom = _row_top(result, result.schedule.num_meshes)
    height = bottom + _MARGIN_BOTTOM
    total = plot + _MARGIN_LEFT + _MARGIN_RIGHT
    body = [
        f'<rect width="{total}" height="{height}" fill="#FFFFFF"/>',
        svg_text(_MARGIN_LEFT, 26, heading + summary(result), size=14, weight="bold"),
        *_svg_rows(result, plot),
        *_zoomable(
            plot,
            [
                *_svg_axis(result, plot, bottom),
                *_svg_all_memory(result, plot),
                *(_svg_box(result, span, plot) for span in result.spans()),
                *_svg_transfers(result, plot),
            ],
            height,
        ),
        svg_text(_MARGIN_LEFT + plot + 30, bottom + 18, time_unit(result).name, colour="#555555"),
        *_svg_legend(result, bottom + 50),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" viewBox="0 0 '
        f'{total} {height}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    return "\n".join(
        [head, f"<title>{escape(heading + summary(result))}</title>", *body, "</svg>\n"]
    )


def _svg_axis(result: SimulationResult, plot: int, bottom: int) -> list[str]:
    unit = time_unit(result)
    makespan = result.makespan_seconds * unit.per_second
    lines = []
    for tick in ticks(makespan, max(2, plot // 90)):
        x = _MARGIN_LEFT + plot * tick / (makespan or 1.0)
        lines.append(f'<path d="M{x:.1f} {_MARGIN_TOP - 6}V{bottom + 4}" stroke="#DDDDDD"/>')
        lines.append(svg_text(x, bottom + 18, f"{tick:g}", anchor="middle", colour="#555555"))
    return lines


def _zoomable(plot: int, body: list[str], height: int) -> list[str]:
    """What a page may stretch along the time axis, in a frame that hides what then lies outside.

    The frame begins some pixels before the axis, for the label at zero."""
    left, width = _MARGIN_LEFT - _AXIS_OVERHANG, plot + 2 * _AXIS_OVERHANG
    frame = (
        f'x="{left}" y="0" width="{width}" height="{height}" viewBox="{left} 0 {width} {height}"'
    )
    return [
        f'<svg class="timeline" {frame} data-left="{_MARGIN_LEFT}" data-width="{plot}">',
        "<g>",
        *body,
        "</g></svg>",
    ]


def _svg_rows(result: SimulationResult, plot: int) -> list[str]:
    lines = []
    for mesh in range(result.schedule.num_meshes):
        y = _row_top(result, mesh)
        frame = f'x="{_MARGIN_LEFT}" y="{y}" width="{plot}" height="{_ROW_HEIGHT}"'
        lines.append(f"<rect {frame} {_IDLE_FILL}/>")
        lines.append(svg_text(_MARGIN_LEFT - 10, y + 19, f"mesh {mesh}", anchor="end", size=12))
        lines.append(
            svg_text(_MARGIN_LEFT + plot + 10, y + 19, row_note(result, mesh), colour="#555555")
        )
    return lines


def _svg_all_memory(result: SimulationResult, plot: int) -> list[str]:
    if not _shows_memory(result):
        return []
    below = _ROW_HEIGHT + _MEMORY_GAP
    return [
        _svg_memory(result, mesh, plot, _row_top(result, mesh) + below)
        for mesh in range(result.schedule.num_meshes)
    ]


def _svg_memory(result: SimulationResult, mesh: int, plot: int, top: int) -> str:
    """A step function over the time axis."""
    profile, scale = result.memory[mesh], plot / (result.makespan_seconds or 1.0)
    most = max(each.peak_bytes for each in result.memory)
    bottom = top + _MEMORY_HEIGHT
    path = [f"M{_MARGIN_LEFT} {bottom}"]
    for seconds, bytes_ in zip(profile.seconds, profile.bytes, strict=True):
        # Measured steps free memory behind their last task, too, where the axis has ended.
        x = _MARGIN_LEFT + min(seconds * scale, plot)
        path.append(f"H{x:.1f}V{bottom - _MEMORY_HEIGHT * bytes_ / most:.1f}")
    path.append(f"H{_MARGIN_LEFT + plot}V{bottom}Z")
    title = f"<title>memory of mesh {mesh}: at most {bytes_text(profile.peak_bytes)}</title>"
    return f'<path d="{"".join(path)}" fill="{_MEMORY_COLOUR}" fill-opacity="0.3">{title}</path>'


def _svg_transfers(result: SimulationResult, plot: int) -> list[str]:
    homes, scale = result.schedule.stage_to_mesh, plot / (result.makespan_seconds or 1.0)
    moved = [each for each in result.transfers if homes[each.src.stage] != homes[each.dst.stage]]
    if len(moved) > _MOST_LINES:
        return []
    lines = []
    for each in moved:
        source, target = homes[each.src.stage], homes[each.dst.stage]
        down = source < target
        y1 = _row_top(result, source) + down * _ROW_HEIGHT
        y2 = _row_top(result, target) + (not down) * _ROW_HEIGHT
        x1, x2 = (
            _MARGIN_LEFT + seconds * scale for seconds in (each.start_seconds, each.end_seconds)
        )
        lines.append(
            f'<path d="M{x1:.1f} {y1}L{x2:.1f} {y2}" stroke="#333333" stroke-opacity="0.45" '
            'fill="none"/>'
        )
    return lines


def _svg_box(result: SimulationResult, span: TaskSpan, plot: int) -> str:
    scale = plot / (result.makespan_seconds or 1.0)
    x, y = _MARGIN_LEFT + span.start_seconds * scale, _row_top(result, span.mesh)
    width = (span.end_seconds - span.start_seconds) * scale
    style, unit = style_of(result, span.task), time_unit(result)
    label = longest = full_label(result, span)
    if width < len(label) * _CHARACTER_WIDTH + 4 and not span.task.kind.runs_once:
        label = str(span.task.microbatch)
    stroke = ' stroke="#FFFFFF"' if width >= _MIN_STROKED_WIDTH else ""
    siblings = result.schedule.stages_of_mesh(span.mesh)
    place = siblings.index(span.task.stage)
    pale = f' fill-opacity="{1 - (1 - _PALEST) * place / (len(siblings) - 1):.2f}"' if place else ""
    times = f"{span.start_seconds * unit.per_second:.4g} to {unit.text(span.end_seconds)}"
    frame = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW_HEIGHT}" rx="2"'
    shape = f'<rect {frame} fill="{style.colour}"{pale}{stroke}/>'
    if width >= len(label) * _CHARACTER_WIDTH + 4:
        shape += svg_text(
            x + width / 2, y + 19, label, anchor="middle", colour="#222222" if place else style.ink
        )
    title = f"<title>{span.task} ({style.label}): {times}</title>"
    return f'<g data-label="{longest}">{title}{shape}</g>'


def _svg_legend(result: SimulationResult, y: int) -> list[str]:
    lines, x = [], _MARGIN_LEFT
    for _, style in styles_of(result):
        lines.append(
            f'<rect x="{x}" y="{y - 10}" width="14" height="12" rx="2" fill="{style.colour}"/>'
        )
        lines.append(svg_text(x + 20, y, style.label))
        x += 44 + len(style.label) * _CHARACTER_WIDTH
    lines.append(f'<rect x="{x}" y="{y - 10}" width="14" height="12" {_IDLE_FILL}/>')
    lines.append(svg_text(x + 20, y, "idle (bubble)"))
    if _shows_memory(result):
        x += 44 + len("idle (bubble)") * _CHARACTER_WIDTH
        lines.append(
            f'<rect x="{x}" y="{y - 10}" width="14" height="12" fill="{_MEMORY_COLOUR}" '
            'fill-opacity="0.3"/>'
        )
        lines.append(svg_text(x + 20, y, "memory"))
    return lines


def _shows_memory(result: SimulationResult) -> bool:
    return any(profile.peak_bytes for profile in result.memory)


def _row_top(result: SimulationResult, mesh: int) -> int:
    memory = _MEMORY_GAP + _MEMORY_HEIGHT if _shows_memory(result) else 0
    return _MARGIN_TOP + mesh * (_ROW_HEIGHT + memory + _ROW_GAP)

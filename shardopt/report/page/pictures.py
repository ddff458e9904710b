"""The pictures of the page that no other part draws: tiles of a tensor, work of the layers, memory
over time."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from shardopt.report.page.layers import LayerWork
from shardopt.report.page.placement import Tiles
from shardopt.report.plan_summary import PlanSummary, StageRow
from shardopt.report.svg_text import svg_text
from shardopt.report.timeline import ticks, time_unit
from shardopt.report.units import bytes_text
from shardopt.schedule.simulator import SimulationResult

# Hues that colour-blind eyes tell apart (Okabe and Ito, 2008), in turn for tiles and for stages.
_HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_GREY = "#777777"
_MOST_TILES = 64  # more would be too small to be seen
_TILES_WIDTH, _TILES_HEIGHT = 112, 40
_BAR_HEIGHT, _BORDER_HEIGHT, _LEFT = 90, 50, 70
_MEMORY_HEIGHT, _MEMORY_GAP = 90, 34
# A limit of more than so many times the peak would flatten the curve, and is left out.
_FLATTEST = 5


def hue(number: int) -> str:
    return _HUES[number % len(_HUES)]


def _svg(width: float, height: float, body: Sequence[str], label: str) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    )
    return "\n".join([head, *body, "</svg>"])


def tiles_svg(tiles: Tiles) -> str:
    """The tensor as a rectangle of its tiles; each has its devices as label and tooltip."""
    count = tiles.rows * tiles.columns
    if count > _MOST_TILES:
        return f"<span>{tiles.rows} × {tiles.columns} tiles</span>"
    width, height = _TILES_WIDTH / tiles.columns, _TILES_HEIGHT / tiles.rows
    body = []
    for tile, devices in enumerate(tiles.devices):
        row, column = divmod(tile, tiles.columns)
        x, y = column * width, row * height
        listed = ", ".join(map(str, devices))
        colour = hue(tile) if count > 1 else _GREY
        frame = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        title = f"<title>devices {listed}</title>"
        body.append(
            f'<rect {frame} fill="{colour}" fill-opacity="0.75" stroke="#FFFFFF">{title}</rect>'
        )
        label = listed if len(devices) <= 2 else f"{devices[0]}…{devices[-1]}"
        if len(label) * 7 <= width and height >= 12:
            middle = y + height / 2 + 4
            body.append(svg_text(x + width / 2, middle, label, anchor="middle", colour="#111111"))
    return _svg(_TILES_WIDTH, _TILES_HEIGHT, body, f"{count} tiles")


def layers_svg(layers: LayerWork, summary: PlanSummary, width: int = 1100) -> str:
    """Above, the FLOPs of every layer, in the colour of its stage. Below, the bytes that cross
    every border between layers; those of the cuts are dark."""
    stage_of = {
        int(name.removeprefix("layer_")): row.stage for row in summary.stages for name in row.layers
    }
    count = len(layers.flops)
    plot = width - _LEFT - 20
    step = plot / count
    most = max(layers.flops) or 1.0
    top, foot = 20, 20 + _BAR_HEIGHT
    body = [
        svg_text(_LEFT - 8, top + 12, "FLOPs", anchor="end"),
        svg_text(_LEFT - 8, foot + 34, "bytes", anchor="end"),
    ]
    for layer, flops in enumerate(layers.flops):
        x, height = _LEFT + layer * step, _BAR_HEIGHT * flops / most
        stage = stage_of.get(layer)
        title = f"layer {layer}, stage {stage}: {flops:.3g} FLOPs of a microbatch"
        frame = f'x="{x + 1:.1f}" y="{foot - height:.1f}" height="{height:.1f}"'
        colour = _GREY if stage is None else hue(stage)
        body.append(
            f'<rect {frame} width="{max(step - 2, 0.5):.1f}" fill="{colour}">'
            f"<title>{title}</title></rect>"
        )
        if step >= 18:
            body.append(svg_text(x + step / 2, foot + 13, str(layer), anchor="middle", size=10))
    widest = max(layers.border_bytes, default=0) or 1
    for border, size in enumerate(layers.border_bytes):
        x, height = _LEFT + (border + 1) * step, max(_BORDER_HEIGHT * size / widest, 1)
        is_cut = stage_of.get(border) != stage_of.get(border + 1)
        title = f"{bytes_text(size)} of a microbatch between layers {border} and {border + 1}"
        half = min(step * 0.3, 14)
        frame = f'x="{x - half:.1f}" y="{foot + 20}" width="{2 * half:.1f}" height="{height:.1f}"'
        body.append(
            f'<rect {frame} fill="{"#222222" if is_cut else "#BBBBBB"}">'
            f"<title>{title}</title></rect>"
        )
        if is_cut:
            body.append(
                f'<path d="M{x:.1f} {top}V{foot + 20}" stroke="#222222" stroke-dasharray="4 3"/>'
            )
    return _svg(width, foot + 30 + _BORDER_HEIGHT, body, "work of the layers and what crosses them")


def memory_svg(result: SimulationResult, rows: Sequence[StageRow], width: int = 1100) -> str:
    """What a device of every mesh holds over the step: filled what stays from task to task, dashed
    the most within a task, red the memory of the device where it is near."""
    limits = {row.mesh: row.memory_bytes for row in rows}
    peaks: dict[str, int] = {}
    for row in rows:
        peaks[row.mesh] = max(peaks.get(row.mesh, 0), row.peak_bytes)
    names = list(dict.fromkeys(row.mesh for row in rows))
    plot = width - _LEFT - 20
    body: list[str] = []
    for number, (name, profile) in enumerate(zip(names, result.memory, strict=False)):
        top = 16 + number * (_MEMORY_HEIGHT + _MEMORY_GAP)
        foot = top + _MEMORY_HEIGHT
        needed = max(peaks[name], profile.peak_bytes, 1)
        shows_limit = limits[name] < _FLATTEST * needed
        most = max(limits[name], needed) if shows_limit else needed
        scale = plot / (result.makespan_seconds or 1.0)
        path = [f"M{_LEFT} {foot}"]
        for seconds, held in zip(profile.seconds, profile.bytes, strict=True):
            path.append(f"H{_LEFT + seconds * scale:.1f}V{foot - _MEMORY_HEIGHT * held / most:.1f}")
        path.append(f"H{_LEFT + plot}V{foot}Z")
        body += [
            f'<path d="{"".join(path)}" fill="{hue(number)}" fill-opacity="0.5"/>',
            _level(peaks[name] / most, top, plot, "#222222", "4 3"),
            _level(limits[name] / most, top, plot, "#CC0000", "none") if shows_limit else "",
            svg_text(_LEFT - 8, top + _MEMORY_HEIGHT / 2, f"mesh {name}", anchor="end"),
            svg_text(
                _LEFT,
                foot + 14,
                f"at most {bytes_text(peaks[name])} of {bytes_text(limits[name])} "
                f"({peaks[name] / (limits[name] or 1):.0%}); {bytes_text(profile.peak_bytes)} "
                "stay from task to task",
                colour="#555555",
            ),
        ]
    height = 16 + len(names) * (_MEMORY_HEIGHT + _MEMORY_GAP) + 20
    return _svg(width, height, [*body, *_time_axis(result, plot, height - 6)], "memory over time")


def _level(share: float, top: float, plot: float, colour: str, dashes: str) -> str:
    y = top + _MEMORY_HEIGHT * (1 - share)
    return (
        f'<path d="M{_LEFT} {y:.1f}h{plot}" stroke="{colour}" fill="none" '
        f'stroke-dasharray="{dashes}"/>'
    )


def _time_axis(result: SimulationResult, plot: float, y: float) -> list[str]:
    unit = time_unit(result)
    makespan = result.makespan_seconds * unit.per_second
    return [
        svg_text(
            _LEFT + plot * tick / (makespan or 1.0),
            y,
            f"{tick:g} {unit.name}" if not tick else f"{tick:g}",
            anchor="middle",
            colour="#555555",
        )
        for tick in ticks(makespan, 10)
    ]

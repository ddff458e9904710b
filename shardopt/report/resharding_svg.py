"""A resharding plan as a standalone SVG document: who sends what to whom, over time.

One row per device, hosts apart. The upper half of a row shows what the device sends, the lower half
what it receives, in the colour of the sender and with the number of the other end. Dashed lines
part the phases; the first crosses meshes. Times are those of the plan's costs
(`shardopt.cost.transfers`), phase after phase, also where hosts would pass slices on while others
are still coming in. Sizes are in pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from shardopt.cost.transfers import Links, Message, Ordered
from shardopt.forms.exported_program import ReshardStep
from shardopt.hardware.cluster import Cluster
from shardopt.report.svg_text import svg_text
from shardopt.report.units import bytes_text, seconds_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 20, 44, 30
_HALF, _GAP, _HOST_GAP = 13, 4, 12
_CHARACTER_WIDTH = 7  # of labels at 10 px
_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BB7744", "#777777")
_MOST_BARS = 4000  # more would hide each other


class _Bar(NamedTuple):
    message: Message
    start: float
    end: float


def step_phases(steps: Iterable[ReshardStep], itemsize: int) -> tuple[tuple[Message, ...], ...]:
    """The messages of each phase, with those between the same devices as one."""
    phases: dict[int, Counter[tuple[int, int]]] = {}
    for step in steps:
        count = itemsize
        for start, limit in step.slice:
            count *= limit - start
        if step.source != step.target:
            phases.setdefault(step.phase, Counter())[step.source, step.target] += count
    return tuple(
        tuple((*ends, size) for ends, size in phases[phase].items()) for phase in sorted(phases)
    )


def resharding_svg(
    cluster: Cluster, phases: Sequence[Sequence[Message]], title: str, width: int = 1000
) -> str:
    """The picture, `width` pixels wide; every bar has a tooltip. Raises ValueError for plans of too
    many messages."""
    if sum(map(len, phases)) > _MOST_BARS:
        raise ValueError(
            f"expected a plan of at most {_MOST_BARS} messages, found {sum(map(len, phases))}"
        )
    bars, ends = _bars(cluster, phases)
    rows = _rows(cluster, phases)
    height = max(rows.values(), default=_TOP) + 2 * _HALF + _BOTTOM
    seconds = ends[-1] if ends else 0.0
    scale = (width - _LEFT - _RIGHT) / (seconds or 1.0)
    body = [
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
        svg_text(_LEFT, 22, f"{title}: {seconds_text(seconds)}", size=13, weight="bold"),
        *_frames(cluster, rows, width),
        *(part for bar in bars for part in _bar_parts(bar, rows, scale)),
        *_phase_lines(ends, scale, height),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *body, "</svg>\n"])


def _bars(cluster: Cluster, phases: Sequence[Sequence[Message]]) -> tuple[list[_Bar], list[float]]:
    """Every message in time, and the ends of the phases. A message is drawn without its latency,
    which ends the phase."""
    bars, ends, now = [], [], 0.0
    for phase in phases:
        ordered = Ordered(Links.of(cluster, phase))
        links = ordered.links
        for number, start, seconds in zip(
            links.numbers, ordered.starts, links.seconds, strict=True
        ):
            bars.append(_Bar(phase[int(number)], now + float(start), now + float(start + seconds)))
        now += ordered.seconds
        ends.append(now)
    return bars, ends


def _rows(cluster: Cluster, phases: Sequence[Sequence[Message]]) -> dict[int, int]:
    """The top of the row of every device that takes part."""
    devices = sorted({device for phase in phases for message in phase for device in message[:2]})
    rows: dict[int, int] = {}
    y = _TOP
    for before, device in zip([None, *devices], devices, strict=False):
        if before is not None:
            y += 2 * _HALF + (
                _GAP if cluster.host_of(before) == cluster.host_of(device) else _HOST_GAP
            )
        rows[device] = y
    return rows


def _frames(cluster: Cluster, rows: dict[int, int], width: int) -> list[str]:
    parts, named = [], set()
    for device, y in rows.items():
        host = cluster.host_of(device)
        frame = f'x="{_LEFT}" y="{y}" width="{width - _LEFT - _RIGHT}" height="{2 * _HALF}"'
        parts.append(f'<rect {frame} fill="#000000" fill-opacity="0.05"/>')
        parts.append(svg_text(_LEFT - 8, y + _HALF + 4, f"device {device}", anchor="end"))
        if host not in named:
            named.add(host)
            parts.append(svg_text(6, y + _HALF + 4, f"host {host}", colour="#555555"))
    return parts


def _bar_parts(bar: _Bar, rows: dict[int, int], scale: float) -> list[str]:
    source, target, size = bar.message
    x, width = _LEFT + bar.start * scale, max((bar.end - bar.start) * scale, 0.5)
    colour = _COLOURS[source % len(_COLOURS)]
    times = f"{seconds_text(bar.start)} to {seconds_text(bar.end)}"
    tip = f"<title>device {source} to {target}, {bytes_text(size)}: {times}</title>"
    parts = []
    for device, top, label in ((source, 0, f"→{target}"), (target, _HALF, f"{source}→")):
        y = rows[device] + top
        frame = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_HALF}"'
        text = svg_text(x + width / 2, y + 10, label, anchor="middle", colour="#FFFFFF", size=10)
        wide = width >= len(label) * _CHARACTER_WIDTH
        parts.append(
            f'<g>{tip}<rect {frame} fill="{colour}" stroke="#FFFFFF" '
            f'stroke-width="0.5"/>{text * wide}</g>'
        )
    return parts


def _phase_lines(ends: Sequence[float], scale: float, height: int) -> list[str]:
    parts = []
    for end in ends:
        x = _LEFT + end * scale
        line = f'd="M{x:.1f} {_TOP - 8}V{height - _BOTTOM + 6}"'
        parts.append(f'<path {line} stroke="#999999" stroke-dasharray="3 3"/>')
    for end in (ends[0], ends[-1]) if ends else ():
        place = svg_text(
            _LEFT + end * scale, height - 8, seconds_text(end), anchor="end", colour="#555555"
        )
        parts.append(place)
    return parts

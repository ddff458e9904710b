"""Bars of predictions with a line across each where the measurement is, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COLORS = ("#2b6cb0", "#dd6b20", "#38a169", "#805ad5", "#d53f8c", "#718096", "#b7791f", "#319795")
_WIDTH, _HEIGHT, _TALLEST = 760, 200, 130


@dataclass(frozen=True)
class Bar:
    """Zero has no bar, or no line."""

    predicted: float
    measured: float


@dataclass(frozen=True)
class Group:
    """Bars side by side, one for each method."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Panel:
    """Groups on one scale."""

    title: str
    groups: tuple[Group, ...]


def bars_svg(panels: Sequence[Panel], methods: Sequence[str]) -> str:
    """One panel below the other, each with the names of the methods."""
    parts = [
        part
        for number, panel in enumerate(panels)
        for part in _panel(panel, methods, _HEIGHT * number)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{_HEIGHT * len(panels)}" font-family="sans-serif">'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _panel(panel: Panel, methods: Sequence[str], top: int) -> Iterator[str]:
    values = [
        value
        for group in panel.groups
        for bar in group.bars
        for value in (bar.predicted, bar.measured)
    ]
    scale = _TALLEST / max(*values, 1e-9)
    base, room = top + 170, (_WIDTH - 40) // max(len(panel.groups), 1)
    width = max(4, (room - 20) // max(len(methods), 1))
    yield _text(10, top + 16, panel.title, 12)
    for number, method in enumerate(methods):
        yield _bar(10 + 90 * number, top + 22, 9, 9, _COLORS[number])
        yield _text(22 + 90 * number, top + 30, method, 10)
    for place, group in enumerate(panel.groups):
        left = 20 + place * room
        yield _text(left, base + 14, group.name, 10)
        for number, bar in enumerate(group.bars):
            x, tall = left + number * width, bar.predicted * scale
            if tall:
                yield _bar(x, base - tall, width - 2, tall, _COLORS[number])
            if bar.measured:
                yield _bar(x, base - bar.measured * scale, width - 2, 2, "#000")


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x}" y="{y:.1f}" width="{width}" height="{height:.1f}" fill="{color}"/>'


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{text}</text>'

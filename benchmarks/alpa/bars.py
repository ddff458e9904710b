"""Bars of predictions with a line across each where the measurement is, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from shardopt.report.svg_text import svg_text

_COLORS = ("#2b6cb0", "#dd6b20", "#38a169", "#805ad5", "#d53f8c", "#718096", "#b7791f", "#319795")
_WIDTH, _HEIGHT, _TALLEST = 800, 215, 135
_LEFT, _BASE = 34, 180  # of the axis, and of the bars below the top of a panel
_TICKS = 5  # about as many lines a panel


@dataclass(frozen=True)
class Bar:
    """Zero has no bar, or no line. What `fails` has a cross in place of the bar; what is `older`
    than the rest is pale."""

    predicted: float
    measured: float
    fails: bool = False
    older: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.predicted or self.measured or self.fails)


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
    """One panel below the other, each with the names of the methods of which it shows anything; a
    method has one color in all of them."""
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
    shown = [
        number
        for number in range(len(methods))
        if not all(group.bars[number].is_empty for group in panel.groups)
    ]
    bars = [bar for group in panel.groups for bar in group.bars]
    largest = max((value for bar in bars for value in (bar.predicted, bar.measured)), default=0)
    scale, base = _TALLEST / max(largest, 1e-9), top + _BASE
    room = (_WIDTH - _LEFT - 6) // max(len(panel.groups), 1)
    width = max(4, min(26, (room - 20) // max(len(shown), 1)))
    yield svg_text(5, top + 16, panel.title, size=12)
    yield from _legend([(methods[number], _COLORS[number]) for number in shown], top + 32)
    yield from _axis(largest, scale, base)
    for place, group in enumerate(panel.groups):
        left = _LEFT + 8 + place * room
        yield svg_text(left, base + 15, group.name, size=10)
        for slot, number in enumerate(shown):
            yield from _bar(
                group.bars[number], left + slot * width, width - 2, base, scale, _COLORS[number]
            )


def _legend(entries: Sequence[tuple[str, str]], y: int) -> Iterator[str]:
    x = 5
    for name, color in entries:
        yield _box(x, y - 8, 9, 9, color)
        yield svg_text(x + 12, y, name, size=10)
        x += 24 + 6 * len(name)


def _axis(largest: float, scale: float, base: float) -> Iterator[str]:
    step = _round(largest / _TICKS)
    for count in range(int(largest / step) + 1 if step else 1):
        y = base - count * step * scale
        yield (
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - 6}" y2="{y:.1f}" '
            f'stroke="{"#222222" if count == 0 else "#dddddd"}"/>'
        )
        yield svg_text(_LEFT - 4, y + 3, f"{count * step:g}", anchor="end", size=9)


def _round(value: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten that is not less; 0 for 0."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** floor(log10(value))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= value)


def _bar(bar: Bar, x: int, width: int, base: int, scale: float, color: str) -> Iterator[str]:
    if bar.predicted:
        tall, shade = bar.predicted * scale, 0.35 if bar.older else 1.0
        yield _box(x, base - tall, width, tall, color, shade)
    if bar.fails:
        yield svg_text(x + width / 2, base - 2, "×", anchor="middle", size=12, colour=color)
    if bar.measured:
        yield _box(x, base - bar.measured * scale - 1, width, 2, "#000000")


def _box(x: float, y: float, width: float, height: float, color: str, opacity: float = 1.0) -> str:
    pale = "" if opacity == 1 else f' fill-opacity="{opacity}"'
    size = f'width="{width}" height="{height:.1f}"'
    return f'<rect x="{x}" y="{y:.1f}" {size} fill="{color}"{pale}/>'

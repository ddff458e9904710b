"""Time against memory: the fastest plan at every memory budget, as a table and as a standalone SVG
document. Sizes are in pixels."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from shardopt.cost.frontier import Frontier, FrontierPoint
from shardopt.report.svg_text import svg_text
from shardopt.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table

_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 24, 48, 52
_WIDTH, _HEIGHT = 760, 420
_LINE, _BOUND, _GRID, _NONE = "#0072B2", "#D55E00", "#DDDDDD", "#F3F3F3"
_MOST_TICKS = 6


def frontier_table(frontier: Frontier) -> Table:
    """A row a plan, the largest budget last."""
    from rich.table import Table

    table = Table(title="fastest plan at each memory budget", caption=_caption(frontier))
    for name in ("peak on a device", "step", "gap", "status", "fastest up to", "recomputed"):
        table.add_column(name, justify="left" if name == "status" else "right")
    for point in frontier.points:
        table.add_row(
            bytes_text(point.peak_bytes),
            seconds_text(point.seconds),
            f"{point.gap:.2%}",
            point.status,
            _reach_text(point),
            str(point.recomputed),
        )
    return table


def _reach_text(point: FrontierPoint) -> str:
    if point.fastest_to_bytes is None:
        return "any budget"
    return bytes_text(point.fastest_to_bytes) if _is_proven(point) else "not proven"


def _is_proven(point: FrontierPoint) -> bool:
    return point.fastest_to_bytes is None or point.fastest_to_bytes >= point.peak_bytes


def _caption(frontier: Frontier) -> str:
    least = frontier.points[0].peak_bytes
    below = (
        "no plan holds less"
        if frontier.least_bound_bytes >= least
        else f"no plan holds less than {bytes_text(frontier.least_bound_bytes)}"
    )
    if frontier.complete:
        return f"all budgets, in {frontier.searches} searches; {below}"
    return f"{frontier.searches} searches, not all is proven; {below}"


def frontier_svg(frontier: Frontier, title: str) -> str:
    """Seconds over bytes as steps: at each budget the time of the fastest known plan. Dashed where
    a faster plan is not excluded; the shade on the left is where no plan fits. Every point has a
    tooltip."""
    plot = _Plot(frontier)
    body = [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#FFFFFF"/>',
        svg_text(_LEFT, 20, title, size=13, weight="bold"),
        svg_text(_LEFT, 37, _caption(frontier), colour="#555555"),
        *plot.frame(),
        *plot.steps(),
        *(plot.point(each) for each in frontier.points),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *body, "</svg>\n"])


class _Plot:
    """Where bytes and seconds lie in the picture; both axes begin near the least value."""

    def __init__(self, frontier: Frontier) -> None:
        self.frontier = frontier
        peaks = [point.peak_bytes for point in frontier.points]
        seconds = [point.seconds for point in frontier.points]
        bounds = [point.bound_seconds for point in frontier.points]
        self.low, self.high = _padded(min(frontier.least_bound_bytes, *peaks), max(peaks))
        self.fast, self.slow = _padded(min(*bounds, *seconds), max(seconds))

    def x(self, size: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (size - self.low) / (self.high - self.low)

    def y(self, seconds: float) -> float:
        share = (self.slow - seconds) / (self.slow - self.fast)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * share

    def frame(self) -> list[str]:
        """The shade where no plan fits, both grids with their labels, the names of the axes."""
        foot, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        least = self.x(self.frontier.least_bound_bytes)
        parts = [
            f'<rect x="{_LEFT}" y="{_TOP}" width="{max(least - _LEFT, 0):.1f}" '
            f'height="{foot - _TOP}" fill="{_NONE}"><title>no plan fits</title></rect>'
        ]
        for size in _ticks(self.low, self.high, binary=True):
            x = self.x(size)
            parts.append(f'<path d="M{x:.1f} {_TOP}V{foot}" stroke="{_GRID}"/>')
            parts.append(svg_text(x, foot + 16, bytes_text(size), anchor="middle"))
        for seconds in _ticks(self.fast, self.slow):
            y = self.y(seconds)
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>')
            parts.append(svg_text(_LEFT - 8, y + 4, seconds_text(seconds), anchor="end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{foot - _TOP}" '
            'fill="none" stroke="#999999"/>'
        )
        middle = (_LEFT + right) / 2
        parts.append(svg_text(middle, foot + 38, "memory of a device", anchor="middle"))
        parts.append(svg_text(_LEFT - 8, _TOP - 8, "step", anchor="end"))
        return parts

    def steps(self) -> list[str]:
        """From each point to the right, solid as far as it is proven to be the fastest, and down to
        the next one."""
        parts = []
        points = self.frontier.points
        for point, larger in zip(points, (*points[1:], None), strict=True):
            y, end = self.y(point.seconds), self.high if larger is None else larger.peak_bytes
            reach = end if point.fastest_to_bytes is None else point.fastest_to_bytes + 1
            x, proven, stop = (self.x(size) for size in (point.peak_bytes, min(reach, end), end))
            if _is_proven(point):
                parts.append(_path(f"M{x:.1f} {y:.1f}H{proven:.1f}"))
                x = proven
            if stop - x > 0.05:
                parts.append(_path(f"M{x:.1f} {y:.1f}H{stop:.1f}", dashed=True))
            if larger is not None:
                parts.append(_path(f"M{stop:.1f} {y:.1f}V{self.y(larger.seconds):.1f}"))
        return parts

    def point(self, point: FrontierPoint) -> str:
        """A dot, with a line down to the bound where there is a gap to be seen."""
        x, y = self.x(point.peak_bytes), self.y(point.seconds)
        tip = f"{bytes_text(point.peak_bytes)}: {seconds_text(point.seconds)}, {point.status}"
        if point.status != "optimal":
            tip += f", within {point.gap:.2%} of the least"
        bound = self.y(point.bound_seconds)
        bar = f'<path d="M{x:.1f} {y:.1f}V{bound:.1f}" stroke="{_BOUND}" stroke-width="1.5"/>'
        return (
            f"<g><title>{tip}</title>{bar * (bound - y > 0.5)}"
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_LINE}"/></g>'
        )


def _path(data: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{data}" fill="none" stroke="{_LINE}" stroke-width="1.5"{dash}/>'


def _padded(low: float, high: float) -> tuple[float, float]:
    """Room around the values, also where all are equal."""
    room = 0.06 * (high - low) or 0.06 * high or 1.0
    return max(low - room, 0.0), high + room


def _ticks(low: float, high: float, *, binary: bool = False) -> list[float]:
    """Round numbers between two, at most `_MOST_TICKS`; of bytes those that are round in their
    unit."""
    unit = 1024 ** floor(log10(max(high, 1)) / log10(1024)) if binary else 1.0
    least = (high - low) / unit / (_MOST_TICKS - 1)
    step = 10.0 ** floor(log10(least))
    step = next(step * factor for factor in (1, 2, 5, 10) if step * factor >= least) * unit
    return [number * step for number in range(ceil(low / step), floor(high / step) + 1)]

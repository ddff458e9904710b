"""A profile beside the formulas that it overrides: a table for the terminal, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from shardopt.cost.profile_formulas import formula_seconds
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.profile import Measurement, Profile

if TYPE_CHECKING:
    from rich.table import Table

# Of the picture, in pixels.
_COLUMNS, _WIDTH, _HEIGHT, _MARGIN = 4, 230, 170, 46
_MEASURED, _FORMULA = "#4477AA", "#CC6677"  # hues that colour-blind eyes tell apart

Points = Sequence[tuple[float, float]]


def profile_table(profile: Profile, cluster: Cluster) -> Table:
    """Smallest, middle and largest size of each measurement."""
    from rich.table import Table

    speeds = ", ".join(f"{speed:g}" for speed in profile.speeds)
    table = Table(
        title=f"{profile.device} × {profile.devices}, formulas of {cluster}",
        caption=f"speed of a device while 1, 2, … are at work, relative to all: {speeds}",
    )
    for name in ("work", "dtype", "devices"):
        table.add_column(name)
    for name in ("size", "measured", "formula", "ratio", "spread"):
        table.add_column(name, justify="right")
    for each in profile.measurements:
        formula = formula_seconds(cluster, each)
        for number in sorted({0, len(each.sizes) // 2, len(each.sizes) - 1}):
            measured = each.seconds[number]
            first = (each.kind, each.dtype, str(each.devices)) if number == 0 else ("", "", "")
            table.add_row(
                *first,
                f"{each.sizes[number]:.3g}",
                _time_text(measured),
                _time_text(formula[number]) if formula else "–",
                f"{measured / formula[number]:.2g}" if formula and formula[number] > 0 else "–",
                f"{each.spread[number]:.0%}" if each.spread else "–",
            )
    return table


def _time_text(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def profile_svg(profile: Profile, cluster: Cluster) -> str:
    """Small log-log charts, one for each measurement: measured points, and the formula as a dashed
    line."""
    rows = ceil(len(profile.measurements) / _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + 40
    title = (
        f"{profile.device} × {profile.devices}: measured, and the formulas of {cluster} "
        "(dashed); seconds by size"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="12" y="22" font-size="13">{escape(title)}</text>',
    ]
    for number, each in enumerate(profile.measurements):
        formula = formula_seconds(cluster, each)
        measured = _positive(each.sizes, each.seconds)
        dashed = _positive(each.sizes, formula) if formula else []
        if measured:
            at = (number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT + 34)
            parts += _panel(_name(each), measured, dashed, at)
    return "\n".join((*parts, "</svg>", ""))


def _name(each: Measurement) -> str:
    group = f" of {each.devices}" if each.devices > 1 else ""
    return f"{each.kind}{group} {each.dtype}".strip()


def _positive(sizes: Sequence[float], seconds: Sequence[float]) -> Points:
    return [(x, y) for x, y in zip(sizes, seconds, strict=True) if x > 0 and y > 0]


def _panel(name: str, measured: Points, formula: Points, at: tuple[int, int]) -> list[str]:
    everything = [*measured, *formula]
    (left, right), (low, high) = (_decades([point[k] for point in everything]) for k in (0, 1))
    x0, y0 = at[0] + _MARGIN, at[1] + 18
    width, height = _WIDTH - _MARGIN - 12, _HEIGHT - 18 - 34

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = x0 + width * (log10(point[0]) - left) / (right - left)
        return round(x, 1), round(y0 + height * (high - log10(point[1])) / (high - low), 1)

    def line(points: Points, style: str) -> str:
        path = " ".join(f"{x},{y}" for x, y in map(place, points))
        return f'<polyline points="{path}" fill="none" stroke-width="1.5" {style}/>'

    parts = [
        f'<text x="{x0}" y="{at[1] + 11}" font-size="11">{escape(name)}</text>',
        f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#BBBBBB"/>',
    ]
    for exponent, y in ((high, y0 + 8), (low, y0 + height)):
        parts.append(
            f'<text x="{x0 - 4}" y="{y}" font-size="9" text-anchor="end">1e{exponent} s</text>'
        )
    for exponent, x, anchor in ((left, x0, "start"), (right, x0 + width, "end")):
        parts.append(
            f'<text x="{x}" y="{y0 + height + 12}" font-size="9" '
            f'text-anchor="{anchor}">1e{exponent}</text>'
        )
    if formula:
        parts.append(line(formula, f'stroke="{_FORMULA}" stroke-dasharray="5,3"'))
    parts.append(line(measured, f'stroke="{_MEASURED}"'))
    parts += [
        f'<circle cx="{x}" cy="{y}" r="2.5" fill="{_MEASURED}"/>' for x, y in map(place, measured)
    ]
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return (low, high) if high > low else (low, low + 1)

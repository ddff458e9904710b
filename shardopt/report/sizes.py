"""What a model takes on parts of a cluster, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardopt.report.units import bytes_text

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.frontend.planning.size import SizedPlan, Sizes

_NOTHING = "–"


def sizes_table(sizes: Sizes) -> Table:
    """A line a part. Efficiency is the speed of a device relative to one of the smallest part that
    has a plan."""
    from rich.table import Table

    priced = any(each.price_per_hour is not None for each in sizes.tried)
    table = Table("", "cluster", title="parts of the cluster")
    by_rows = any(each.rows is not None for each in sizes.tried)
    columns = (
        "devices",
        *(("rows at a time",) if by_rows else ()),
        "step",
        "efficiency",
        "memory",
        *(("1000 steps cost",) if priced else ()),
    )
    for name in columns:
        table.add_column(name, justify="right")
    refused = any(each.reason for each in sizes.tried)
    if refused:
        table.add_column("why there is no plan")
    first = next((each for each in sizes.tried if each.plan is not None), None)
    for each in sizes.tried:
        cells = [_seconds(each), _efficiency(each, first), _memory(each)]
        if priced:
            cost = each.price_per_step
            cells.append(_NOTHING if cost is None else f"{1000 * cost:.4g}")
        if by_rows:
            cells.insert(0, str(each.rows))
        arrow = "→" if each is sizes.best else ""
        reasons = [each.reason] if refused else []
        table.add_row(arrow, each.cluster, str(each.devices), *cells, *reasons)
    return table


def _seconds(each: SizedPlan) -> str:
    return _NOTHING if each.step_seconds is None else f"{each.step_seconds:.4g} s"


def _memory(each: SizedPlan) -> str:
    return _NOTHING if each.peak_bytes is None else bytes_text(each.peak_bytes)


def _efficiency(each: SizedPlan, first: SizedPlan | None) -> str:
    if first is None or each.step_seconds is None or first.step_seconds is None:
        return _NOTHING
    share = first.step_seconds * first.devices / (each.step_seconds * each.devices)
    return f"{share:.0%}"

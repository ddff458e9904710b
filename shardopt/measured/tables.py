"""Predicted and measured training steps for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardopt.measured.figures import measured_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.measured.agreement import Agreement
    from shardopt.measured.comparison import RowOutcome

_NOTHING = "–"


def agreement_table(title: str, agreements: Iterable[Agreement]) -> Table:
    """A line a group."""
    from rich.table import Table

    table = Table("group", title=f"{title}, predicted against measured")
    columns = ("rows", "median error", "mean error", "bias", "rankings", "Spearman", "regret")
    for name in columns:
        table.add_column(name, justify="right")
    for each in agreements:
        table.add_row(
            each.group,
            str(each.rows),
            f"{each.median_error:.1%}",
            f"{each.mean_error:.1%}",
            f"{each.bias:+.1%}",
            str(each.rankings),
            _NOTHING if each.rank_correlation is None else f"{each.rank_correlation:.2f}",
            _NOTHING if each.regret is None else f"{each.regret:.1%}",
        )
    return table


def row_table(outcomes: Sequence[RowOutcome]) -> Table:
    """A line a row that was predicted."""
    from rich.table import Table

    table = Table("row", title="rows")
    for name in ("step s", "measured", "error", "memory GiB", "measured", "error"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        if outcome.step_seconds is None or outcome.memory_bytes is None:
            continue
        table.add_row(
            outcome.row.id,
            *_cells(outcome.step_seconds, measured_seconds(outcome.row)),
            *_cells(outcome.memory_bytes / 2**30, outcome.row.mem_GiB),
        )
    return table


def reason_table(outcomes: Sequence[RowOutcome]) -> Table:
    """Why rows were not predicted, with how many rows of each group."""
    from rich.table import Table

    table = Table("group", title="rows that are not predicted")
    table.add_column("rows", justify="right")
    table.add_column("reason")
    reasons = Counter((each.row.group, each.reason) for each in outcomes if each.reason)
    for (group, reason), number in sorted(reasons.items()):
        table.add_row(group, str(number), reason)
    return table


def _cells(predicted: float, measured: float | None) -> tuple[str, str, str]:
    if measured is None:
        return f"{predicted:.4g}", _NOTHING, _NOTHING
    return f"{predicted:.4g}", f"{measured:.4g}", f"{predicted / measured - 1:+.1%}"

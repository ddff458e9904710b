"""`shardopt compare-measured`: predictions held against a table of measured training steps."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError
from shardopt.tools.common import console, count

if TYPE_CHECKING:
    from shardopt.measured.comparison import Comparison, RowOutcome
    from shardopt.measured.rows import Row


def add_compare_measured(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan and predict every row of a table of measured training steps as the row states it "
        "(docs/reference/measured-steps.md), and print how far predictions are from measurements."
    )
    parser.add_argument("table", type=Path, metavar="FILE.csv", help="the measured steps")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="only rows of this group"
    )
    parser.add_argument(
        "--every", type=count, default=1, metavar="N", help="only every Nth row (default 1: all)"
    )
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="processes that plan (default: as many as there are cores)",
    )
    parser.add_argument("--rows", action="store_true", help="print every row, not only groups")
    parser.add_argument("--json", action="store_true", help="print rows and groups as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from shardopt.measured.comparison import compare
    from shardopt.measured.rows import read_rows
    from shardopt.support.children import cores

    rows = _selected(read_rows(args.table), args.group, args.every, str(args.table))
    terminal = sys.stderr.isatty()
    total, done = len(rows), 0

    def tell(outcome: RowOutcome) -> None:
        nonlocal done
        done += 1
        if terminal:
            print(f"\r{done} of {total} rows: {outcome.row.id}\033[K", end="", file=sys.stderr)

    comparison = compare(rows, args.jobs or cores(), tell)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(_document(comparison), indent=2))
        return
    _print(comparison, args.rows)


def _selected(rows: tuple[Row, ...], groups: list[str], every: int, file: str) -> tuple[Row, ...]:
    known = sorted({row.group for row in rows})
    for name in groups:
        if name not in known:
            raise UserError(f"{file}: no row of group '{name}': expected one of {', '.join(known)}")
    return tuple(row for row in rows if not groups or row.group in groups)[::every]


def _print(comparison: Comparison, with_rows: bool) -> None:
    from shardopt.measured.tables import agreement_table, reason_table, row_table

    terminal = console()
    if with_rows:
        terminal.print(row_table(comparison.outcomes))
    for title, agreements in (("steps", comparison.steps), ("memory", comparison.memory)):
        if agreements:
            terminal.print(agreement_table(title, agreements))
    if any(outcome.reason for outcome in comparison.outcomes):
        terminal.print(reason_table(comparison.outcomes))


def _document(comparison: Comparison) -> dict[str, object]:
    from shardopt.measured.figures import measured_seconds

    rows = [
        {
            "id": outcome.row.id,
            "group": outcome.row.group,
            "step_seconds": outcome.step_seconds,
            "measured_step_seconds": measured_seconds(outcome.row),
            "memory_bytes": outcome.memory_bytes,
            "measured_memory_GiB": outcome.row.mem_GiB,
            "reason": outcome.reason or None,
        }
        for outcome in comparison.outcomes
    ]
    return {
        "rows": rows,
        "steps": [asdict(each) for each in comparison.steps],
        "memory": [asdict(each) for each in comparison.memory],
    }

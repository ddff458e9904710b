"""`shardopt plan` and plan files: apply one (`--plan`), check one (`--check-plan`), compare two
(`--diff`)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows
from shardopt.support.errors import UserError
from shardopt.tools.common import EXIT_USER_ERROR, console

_DIFFERENT = 1


def add_plan_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check-plan", metavar="FILE", help="check a plan file, against MODEL if there is one"
    )
    parser.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="compare two plan files or directories"
    )


def planning_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> PlanOptions:
    """The options of the command line; with `--plan`, those of the file where the command line has
    the default.

    Raises UserError without a cluster.
    """
    from shardopt.frontend.plans.from_plan_file import options_after

    values: dict[str, Any] = {row.field: getattr(args, row.field) for row in rows(PlanOptions)}
    if args.plan:
        return options_after(
            args.plan,
            {name: value for name, value in values.items() if value != parser.get_default(name)},
        )
    if not args.cluster:
        raise UserError("expected --cluster FILE|PRESET[:HxD], or --plan FILE, found none")
    return PlanOptions(**values)


def run_plan_file_command(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 for errors of a plan file, or a difference."""
    return _diff(*args.diff) if args.diff is not None else _check(args.check_plan, args.model)


def _check(path: str, model: str | None) -> int:
    from shardopt.frontend.planning.plan_check import check_plan

    errors = check_plan(path, model)
    for error in errors:
        print(f"{path}: {error}", file=sys.stderr)
    if not errors:
        print(f"{path}: no errors found" + (f" for {model}" if model else ""))
    return EXIT_USER_ERROR if errors else 0


def _diff(first: str, second: str) -> int:
    from shardopt.planfile.plan_file import load_values
    from shardopt.report.plan_diff import diff_table, differences

    rows = differences(load_values(first), load_values(second))
    if rows:
        console().print(diff_table(rows, first, second))
    else:
        print("no differences")
    return _DIFFERENT if rows else 0

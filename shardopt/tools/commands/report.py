"""`shardopt report`: a plan as one page of HTML, to look at in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardopt.tools.common import module_bytes


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write what a plan directory says as one self-contained HTML page: stages and why the "
        "pipeline is cut there, timeline, memory, collectives, and where every argument lies. "
        "`shardopt run PLAN --report FILE` writes the same page with the measured step in it."
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan directory")
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="(default: standard output)"
    )
    parser.add_argument("--title", help="of the page (default: the name of the directory)")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.io import write_output

    with args.trace.reading(module_bytes(args.plan)):
        plan = Plan.load(args.plan)
    title = args.title or args.plan.resolve().name
    write_output(plan.report(title=title).encode(), args.output)

"""`shardopt size`: how much of a cluster a model needs."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shardopt.options.names import Objective
from shardopt.options.plan_options import PlanOptions
from shardopt.support.errors import UserError
from shardopt.tools.common import console, report
from shardopt.tools.option_flags import add_options
from shardopt.tools.plan.file_command import planning_options

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan


def add_size(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan MODEL for parts of a cluster of one host group (powers of two of the devices of a "
        "host, then of hosts, and the whole), and choose one."
    )
    parser.add_argument("model", metavar="MODEL", help="file, or - for standard input")
    parser.add_argument(
        "--objective",
        choices=get_args(Objective),
        default="devices",
        help="devices: the fewest, and no larger part is planned for; cost: the least price of a "
        "step, by price_per_hour in the cluster file; step: the shortest; batch: on the whole "
        "cluster, the fewest microbatches that fit, so that most of the batch is there at a time "
        "(default devices)",
    )
    parser.add_argument(
        "--step-seconds",
        type=float,
        metavar="S",
        help="only parts count whose step is predicted to take no longer",
    )
    add_options(parser, PlanOptions)
    parser.add_argument(
        "--no-cache", dest="cache", action="store_false", help="use and keep nothing in the cache"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PLAN", help="plan directory to write, of the best"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--remarks", action="store_true", help="print remarks: what was decided, and what fell back"
    )
    parser.set_defaults(run=partial(_size, parser))


def _size(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    from shardopt.frontend.calls.sources import resolve_source
    from shardopt.frontend.planning.make_plan import batch_rows, make_plan
    from shardopt.frontend.planning.size import sizes_of
    from shardopt.pipeline.phases import PHASE_NAMES
    from shardopt.planfile.plan_folder import check_target
    from shardopt.support.counts import counted
    from shardopt.support.documents import json_text
    from shardopt.support.progress import watching
    from shardopt.tools.plan.progress import PlanProgress

    def prefix(cluster: str, microbatches: int | None) -> str:
        of = "" if microbatches is None else f"{counted(microbatches, 'microbatch')} "
        return f"{cluster} {of}"

    options = planning_options(parser, args)
    if options.plan:
        raise UserError("option --plan: a plan file is made for one size of a cluster")
    if args.output is not None:
        check_target(args.output)
    size = Path(args.model).stat().st_size if Path(args.model).is_file() else 0
    with ExitStack() as reading:
        reading.enter_context(args.trace.reading(size))
        model = resolve_source(args.model)  # standard input is read once

        def plan_for(cluster: str, microbatches: int | None) -> Plan:
            chosen = replace(options, cluster=cluster)
            if microbatches is not None:
                chosen = replace(chosen, microbatches=microbatches)
            with (
                PlanProgress(len(PHASE_NAMES), prefix=prefix(cluster, microbatches)) as bars,
                watching(bars.inside),
            ):

                def on_phase(name: str) -> None:
                    reading.close()
                    args.trace.note(phase=name)
                    bars.phase(name)

                return make_plan(
                    model,
                    chosen,
                    cache=args.cache,
                    on_phase=on_phase,
                    handler=partial(report, remarks=args.remarks),
                )

        sizes = sizes_of(
            options.cluster,
            plan_for,
            args.objective,
            args.step_seconds,
            batch_rows=lambda: batch_rows(model, options),
        )
    if args.json:
        print(json_text(sizes.to_json()))
    else:
        console().print(sizes.table())
    if sizes.best is None:
        fastest = min(each.step_seconds for each in sizes.tried if each.step_seconds is not None)
        raise UserError(
            f"no part of '{options.cluster}' is predicted to take a step in {args.step_seconds:g} "
            f"s: the fastest takes {fastest:.4g} s"
        )
    if args.output is not None:
        assert sizes.best.plan is not None, "the best has one"
        sizes.best.plan.save(args.output)

"""The `shardopt` command: plan a model for a cluster, run the plan, check it against one device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from shardopt.options.plan_options import PlanOptions
from shardopt.tools.commands.cluster import add_cluster
from shardopt.tools.commands.compare_measured import add_compare_measured
from shardopt.tools.commands.profile import add_profile
from shardopt.tools.commands.program import add_program
from shardopt.tools.commands.reduce import add_reduce
from shardopt.tools.commands.report import add_report
from shardopt.tools.commands.schedule import add_schedule
from shardopt.tools.commands.shard import add_shard
from shardopt.tools.commands.size import add_size
from shardopt.tools.commands.solve import add_solve
from shardopt.tools.common import (
    EXIT_BUG,
    EXIT_USER_ERROR,
    ShowVersion,
    ToolParser,
    console,
    report,
    run_tool,
)
from shardopt.tools.completion import add_completion, complete
from shardopt.tools.option_flags import add_options
from shardopt.tools.plan.file_command import (
    add_plan_file_options,
    planning_options,
    run_plan_file_command,
)
from shardopt.tools.run.command import add_run
from shardopt.tools.supervisor import Crash, Trace, supervised

_PROG = "shardopt"
# Commands that read a module, which C++ may not survive, and the argument that names it.
_READING = {
    "plan": "model",
    "size": "model",
    "shard": "model",
    "schedule": "schedule",
    "program": "program",
    "report": "plan",
    "reduce": "module",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 for an error of the user or a check that failed, 2 for a bug of ours, 3 for a
    run that failed.

    Called without arguments, commands that read a module do so in a child process: C++ may crash on
    a damaged file."""
    parser = _parser()
    complete(parser)
    args = parser.parse_args(argv)
    supervises = argv is None and args.command in _READING

    def work(trace: Trace) -> int:
        args.trace = trace
        if argv is None:
            from shardopt.ir.trial import reads_in_child
            from shardopt.support.children import may_fork

            may_fork()
            if supervises:
                reads_in_child()
        return run_tool(_PROG, lambda: args.run(args))

    if not supervises:
        return work(Trace())
    return supervised(
        work, lambda crash: _after_crash(crash, getattr(args, _READING[args.command]))
    )


def reduce_main() -> int:
    """`shardopt-reduce` is `shardopt reduce`, as tools of LLVM that reduce are called."""
    sys.argv.insert(1, "reduce")
    return main()


def _after_crash(crash: Crash, model: str) -> int:
    phase = crash.trace.get("phase")
    if phase is None:
        print(
            f"{model}: error: not a readable module: its reader failed ({crash})", file=sys.stderr
        )
        return EXIT_USER_ERROR
    print(
        f"{_PROG}: internal error: C++ code crashed ({crash}) in phase '{phase}'", file=sys.stderr
    )
    return EXIT_BUG


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=_PROG,
        description="Automatic model parallelism for JAX: plan a model and run the plan.",
    )
    parser.add_argument(
        "--version",
        nargs=0,
        action=ShowVersion,
        help="print the version, those of JAX and Python too, and exit",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=ToolParser
    )
    _add_plan(
        commands.add_parser(
            "plan", help="choose stages, shardings, transfers and a schedule for a model"
        )
    )
    add_size(commands.add_parser("size", help="find how much of a cluster a model needs"))
    add_shard(commands.add_parser("shard", help="choose the sharding of every value on one mesh"))
    add_profile(
        commands.add_parser(
            "profile", help="measure the devices of this machine for the cost model"
        )
    )
    add_cluster(
        commands.add_parser(
            "cluster", help="hold a cluster against its description, and measure its links"
        )
    )
    add_compare_measured(
        commands.add_parser(
            "compare-measured", help="hold predictions against a table of measured training steps"
        )
    )
    add_schedule(
        commands.add_parser(
            "schedule", help="simulate a schedule; write it as CSV, trace or picture"
        )
    )
    add_solve(
        commands.add_parser(
            "solve", help="solve an assignment problem in the contest's JSON format"
        )
    )
    add_run(commands.add_parser("run", help="run a plan on this machine or on a Ray cluster"))
    add_report(commands.add_parser("report", help="write a plan as a page of HTML"))
    add_reduce(
        commands.add_parser("reduce", help="shrink a module and a pipeline that fail together")
    )
    add_completion(commands.add_parser("completion", help="print completion for bash, zsh or fish"))
    add_program(commands.add_parser("program", help="show the instructions that a plan runs"))
    return parser


# ---- plan ----


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan MODEL (StableHLO text, MLIR bytecode or a portable artifact) for a cluster."
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="file, or - for standard input")
    add_options(parser, PlanOptions)
    add_plan_file_options(parser)
    parser.add_argument(
        "--no-cache", dest="cache", action="store_false", help="use and keep nothing in the cache"
    )
    parser.add_argument("--timing", action="store_true", help="report where the time went")
    parser.add_argument("-o", "--output", type=Path, metavar="PLAN", help="plan directory to write")
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON instead of a table"
    )
    parser.add_argument(
        "--remarks", action="store_true", help="print remarks: what was decided, and what fell back"
    )
    parser.set_defaults(run=partial(_plan_or_file, parser))


def _plan_or_file(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int | None:
    """Plan a model, or do what one of the options says about plan files."""
    if args.check_plan is not None or args.diff is not None:
        return run_plan_file_command(args)
    if args.model is None:
        parser.error("expected a MODEL, found none")
    _plan(args, planning_options(parser, args))
    return None


def _plan(args: argparse.Namespace, options: PlanOptions) -> None:
    from shardopt.frontend.planning.make_plan import make_plan
    from shardopt.pipeline.phases import PHASE_NAMES
    from shardopt.planfile.plan_folder import check_target
    from shardopt.support.documents import json_text
    from shardopt.support.progress import watching
    from shardopt.tools.plan.progress import PlanProgress
    from shardopt.tools.plan.timings import PlanTimings

    if args.output is not None:
        check_target(args.output)
    size = Path(args.model).stat().st_size if Path(args.model).is_file() else 0
    timings = PlanTimings()
    with PlanProgress(len(PHASE_NAMES)) as bars, watching(bars.inside), ExitStack() as reading:
        reading.enter_context(args.trace.reading(size))

        def on_phase(name: str) -> None:
            reading.close()
            args.trace.note(phase=name)
            bars.phase(name)

        plan = make_plan(
            args.model,
            options,
            cache=args.cache,
            on_phase=on_phase,
            on_result=timings.add,
            handler=partial(report, remarks=args.remarks),
        )
    timings.planned()
    if args.output is not None:
        plan.save(args.output)
    if args.json:
        print(json_text(plan.to_json()))
    else:
        console().print(plan.table())
    if args.timing:
        print(timings.report(), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

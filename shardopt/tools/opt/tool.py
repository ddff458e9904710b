"""shardopt-opt: read a module, run passes, write a module.

    shardopt-opt model.mlir --pass-pipeline='builtin.module(shardopt-import,shardopt-cluster)' -o
    out.mlir shardopt-opt model.mlir --shardopt-inline-calls --canonicalize
    --shardopt-choose-stages="num-stages=2" shardopt-opt model.mlirbc --from=import --to=stage
    --phase-options="cluster=cluster.yaml"

Exit codes: 0 success; 1 an error in the input or the options (diagnosed, no output file); 2 a bug
of ours, with the path of a reproducer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from shardopt.ir.formats import format_of, read_source
from shardopt.support.errors import UserError
from shardopt.support.spans import Seconds, clocks
from shardopt.tools.common import EXIT_BUG, EXIT_USER_ERROR, run_tool
from shardopt.tools.completion import complete, is_completing
from shardopt.tools.opt.options import (
    JSON,
    NAME,
    PassFlag,
    build_parser,
    in_one_spelling,
    split_pass_flags,
    with_pass_flags,
)
from shardopt.tools.supervisor import Crash, Trace, supervised

# MLIR loads inside of functions, so that --help is immediate and the supervising process stays
# small.


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. Called without arguments it runs the work in a child
    process."""
    parser = build_parser()
    if is_completing():
        complete(with_pass_flags(parser))
    arguments = in_one_spelling(parser, sys.argv[1:] if argv is None else argv)
    known, flags = split_pass_flags(parser, arguments)
    options = parser.parse_args(known)
    if options.list_passes:
        return run_tool(NAME, list_passes)
    if options.show_dialects:
        return run_tool(NAME, show_dialects)
    return run_tool(
        NAME, lambda: run(options, flags, is_supervised=argv is None), _on_error(options)
    )


def run(options: argparse.Namespace, flags: tuple[PassFlag, ...], *, is_supervised: bool) -> int:
    """Read the input, and do the work here or in a child process."""
    started = clocks().wall
    data = read_source(options.input)

    def work(trace: Trace) -> int:
        begun = Seconds(started, clocks().cpu)  # a child counts its own
        from shardopt.tools.opt.driver import Driver

        return run_tool(
            NAME, lambda: Driver(options, flags, data, trace, begun).run(), _on_error(options)
        )

    if not is_supervised:
        return work(Trace())
    return supervised(work, lambda crash: after_crash(crash, options, flags, data))


def _on_error(options: argparse.Namespace) -> Callable[[UserError], None] | None:
    """How errors are told that have no part of the input."""
    if options.diagnostics_format != JSON:
        return None
    from shardopt.tools.opt.reporter import print_json

    return print_json


def after_crash(
    crash: Crash, options: argparse.Namespace, flags: tuple[PassFlag, ...], data: bytes
) -> int:
    """Report that C++ killed the process: a damaged binary file is the user's, anything else is a
    bug of ours."""
    doing = crash.trace.get("doing", "start")
    if doing == "read" and format_of(data) != "text":
        print(
            f"{options.input}: error: not a readable module: its reader failed ({crash})",
            file=sys.stderr,
        )
        return EXIT_USER_ERROR
    print(f"{NAME}: internal error: C++ code crashed ({crash}) in step '{doing}'", file=sys.stderr)
    if doing != "pass":
        return EXIT_BUG

    def explain(_: Trace) -> int:
        from shardopt.tools.opt.driver import Driver

        part, index = int(crash.trace["part"]), int(crash.trace["index"])
        return run_tool(NAME, lambda: Driver(options, flags, data).explain_crash(part, index))

    return supervised(explain, lambda _: EXIT_BUG)


def list_passes() -> None:
    """Print phases with their steps, then passes with their options."""
    from shardopt.tools.catalogue import describe

    print(*describe(), sep="\n")


def show_dialects() -> None:
    """Print the names of the dialects whose ops parse."""
    from shardopt.ir.context import available_dialects, make_context

    print(f"Available Dialects: {', '.join(available_dialects(make_context()))}")

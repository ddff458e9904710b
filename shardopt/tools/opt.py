"""shardopt-opt: read a module, run passes, write a module.

    shardopt-opt model.mlir --pass-pipeline='builtin.module(shardopt-import,shardopt-cluster)' -o out.mlir
    shardopt-opt model.mlir --shardopt-inline-calls --canonicalize --shardopt-outline-stages="num-stages=2"
    shardopt-opt model.mlirbc --from=import --to=stage --phase-options="cluster=cluster.yaml"

Exit codes: 0 success; 1 a mistake in the input or the options (diagnosed, no output written); 2 a bug of ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from shardopt.cost.errors import UserError
from shardopt.tools.common import ToolParser, run_tool

if TYPE_CHECKING:  # MLIR loads only when there is something to do, so that --help is immediate
    from shardopt.ir.diagnostics import Diagnostic, Handler
    from shardopt.pipeline.instrumentation import Instrumentation
    from shardopt.pipeline.parser import Pipeline, Step

NAME = "shardopt-opt"


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    parser = build_parser()
    known, flags = split_pass_flags(parser, sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(known)
    if options.list_passes:
        return run_tool(NAME, list_passes)
    return run_tool(NAME, lambda: run(options, flags))


@dataclass(frozen=True)
class PassFlag:
    """`--name` or `--name=options` on the command line, where `name` is a pass or a phase."""

    name: str
    options: str


def build_parser() -> ToolParser:
    """The options; flags that name passes are none of them, see `split_pass_flags`."""
    parser = ToolParser(
        prog=NAME,
        allow_abbrev=False,
        description="Run passes on an MLIR module (StableHLO, Shardy, MPMD).",
        epilog="Every pass and phase is also a flag, applied in order: --shardopt-normalize --canonicalize "
        '--shardopt-outline-stages="num-stages=2". --list-passes describes those of shardopt.',
    )
    parser.add_argument("input", nargs="?", default="-", help="text, bytecode or a portable artifact; '-' is stdin")
    parser.add_argument("-o", dest="output", default="-", metavar="FILE", help="output file (default: stdout)")
    parser.add_argument("--emit-bytecode", action="store_true", help="write MLIR bytecode instead of text")
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="write locations into the text")
    parser.add_argument("--list-passes", action="store_true", help="describe the phases, passes and options, and exit")

    what = parser.add_argument_group("what to run (one of these, or flags that name passes)")
    what.add_argument("--pass-pipeline", metavar="TEXT", help="for example 'builtin.module(shardopt-import,cse)'")
    what.add_argument("--from", dest="first", metavar="PHASE", help="first phase to run; alone, to the last phase")
    what.add_argument("--to", dest="last", metavar="PHASE", help="last phase to run; alone, from the first phase")
    what.add_argument("--phase-options", metavar="OPTIONS", default="", help="'a=1 b=2' for the phases of --from/--to")

    watch = parser.add_argument_group("watching and checking")
    watch.add_argument("--verify-each", choices=("true", "false"), default="true", help="verify after each pass")
    watch.add_argument("--mlir-print-ir-before-all", action="store_true", help="print IR before each pass (stderr)")
    watch.add_argument("--mlir-print-ir-after-all", action="store_true", help="print IR after each pass (stderr)")
    watch.add_argument("--mlir-print-ir-after-change", action="store_true", help="print IR after passes that change it")
    watch.add_argument(
        "--mlir-print-ir-after", action="append", default=[], metavar="PASS", help="print IR after this pass"
    )
    watch.add_argument("--mlir-print-ir-tree-dir", metavar="DIR", help="write IR after each pass into a file in DIR")
    watch.add_argument("--mlir-timing", action="store_true", help="report wall time by phase and pass (stderr)")
    watch.add_argument("--remarks", nargs="?", const="all", default="", metavar="KIND,…", help="print remarks (stderr)")
    return parser


def split_pass_flags(parser: ToolParser, argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[PassFlag, ...]]:
    """Take the `--name[=options]` out of `argv` that are not options of the parser, in their order."""
    known: list[str] = []
    flags: list[PassFlag] = []
    for argument in argv:
        name, _, text = argument.partition("=")
        if not name.startswith("--") or name == "--" or name in parser.option_strings:
            known.append(argument)
        else:
            flags.append(PassFlag(name[2:], text))
    return tuple(known), tuple(flags)


def run(options: argparse.Namespace, flags: Sequence[PassFlag]) -> None:
    """Read, run, write. Raises UserError before anything is written."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module, save_module
    from shardopt.pipeline.instrumentation import timing_report
    from shardopt.pipeline.manager import run_pipeline

    pipeline = chosen_pipeline(options, flags)
    watchers = instrumentation(options, pipeline)
    started = perf_counter()
    module = load_module(options.input, make_context())
    loaded = perf_counter()
    result = run_pipeline(
        module,
        pipeline,
        instrumentation=watchers,
        handler=message_printer(options.remarks),
        verify_each=options.verify_each == "true",
    )
    finished = perf_counter()
    save_module(module, options.output, bytecode=options.emit_bytecode, debug_info=options.mlir_print_debuginfo)
    if options.mlir_timing:
        around = (("read", loaded - started), ("write", perf_counter() - finished))
        print(timing_report(result, around), file=sys.stderr)


def chosen_pipeline(options: argparse.Namespace, flags: Sequence[PassFlag]) -> Pipeline:
    """The pipeline asked for; an empty one reads, verifies and writes. Raises UserError."""
    from shardopt.pipeline.parser import ROOT_ANCHOR, NestStep, parse_pipeline
    from shardopt.pipeline.phases import phase_range

    by_phase = bool(options.first or options.last)
    if (options.pass_pipeline is not None) + by_phase + bool(flags) > 1:
        raise UserError("expected one of --pass-pipeline, --from/--to and flags that name passes, found several")
    if options.phase_options and not by_phase:
        raise UserError(
            "--phase-options goes with --from and --to; give options to a phase as --shardopt-stage=OPTIONS"
        )
    if options.pass_pipeline is not None:
        return parse_pipeline(options.pass_pipeline)
    if by_phase:
        return parse_pipeline(phase_range(options.first or "", options.last or "", options.phase_options))
    return NestStep(ROOT_ANCHOR, tuple(step_of_flag(flag) for flag in flags))


def step_of_flag(flag: PassFlag) -> Step:
    """The step behind a flag. Raises UserError for a flag that is neither an option nor a pass."""
    from shardopt.ir.native import COMMON_NATIVE_PASSES, is_native_pass
    from shardopt.passes.options import unknown_name
    from shardopt.passes.registry import PASSES, PREFIX
    from shardopt.pipeline.parser import parse_flag
    from shardopt.pipeline.phases import PHASE_NAMES, find_phase

    if flag.name not in PASSES and find_phase(flag.name) is None and not is_native_pass(flag.name):
        own = [name[2:] for name in build_parser().option_strings if name.startswith("--")]
        known = (*own, *PASSES, *(PREFIX + phase for phase in PHASE_NAMES), *COMMON_NATIVE_PASSES)
        raise UserError(unknown_name("option, pass or phase", flag.name, known))
    return parse_flag(flag.name, flag.options)


def instrumentation(options: argparse.Namespace, pipeline: Pipeline) -> tuple[Instrumentation, ...]:
    """The watchers asked for. Raises UserError when --mlir-print-ir-after names a pass that does not run."""
    from shardopt.passes.options import unknown_name
    from shardopt.pipeline.instrumentation import IRPrinter, TreeDumper
    from shardopt.pipeline.parser import leaves

    running = tuple(dict.fromkeys(leaf.name for leaf in leaves(pipeline)))
    for name in options.mlir_print_ir_after:
        if name not in running:
            raise UserError(f"--mlir-print-ir-after: {unknown_name('pass of this pipeline', name, running)}")
    printer = IRPrinter(
        sys.stderr,
        before_all=options.mlir_print_ir_before_all,
        after_all=options.mlir_print_ir_after_all,
        after_change=options.mlir_print_ir_after_change,
        after_passes=tuple(options.mlir_print_ir_after),
    )
    if options.mlir_print_ir_tree_dir is None:
        return (printer,)
    return (printer, TreeDumper(Path(options.mlir_print_ir_tree_dir)))


def message_printer(remark_kinds: str) -> Handler:
    """Prints warnings, and the remarks of the kinds asked for ("all" for every kind, "" for none)."""
    from shardopt.ir.diagnostics import render

    kinds = tuple(remark_kinds.split(",")) if remark_kinds else ()

    def show(diagnostic: Diagnostic) -> None:
        if diagnostic.severity != "remark" or "all" in kinds or diagnostic.kind in kinds:
            print(render(diagnostic), file=sys.stderr)

    return show


def list_passes() -> None:
    """Print phases with their steps, then passes with their options."""
    from shardopt.passes.options import option_specs
    from shardopt.passes.registry import PASSES, PREFIX, pass_class
    from shardopt.pipeline.phases import PHASES

    print("Phases, in order:")
    for phase in PHASES:
        print(f"  {PREFIX}{phase.name}: {phase.summary}")
        for step in phase.steps:
            print(
                f"      {step}" if isinstance(step, str) else f"      {','.join(step.steps)}  (with {step.switch}=true)"
            )
    print("\nPasses:")
    for name in PASSES:
        cls = pass_class(name)
        print(f"  {name}: {cls.summary}")
        for spec in option_specs(cls):
            print(f"      {spec.name} ({spec.type_text}, default {spec.default_text}): {spec.help}")


if __name__ == "__main__":
    sys.exit(main())

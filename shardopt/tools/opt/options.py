"""The command line of shardopt-opt. Flags that mlir-opt has too keep their names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from shardopt.support.suggestions import unknown_name
from shardopt.tools.common import ShowVersion, ToolParser, show_and_exit
from shardopt.tools.completion import suggest

NAME = "shardopt-opt"
# Severities of diagnostics: a level shows those up to it.
ALL_REMARKS = "all"
CATEGORIES = ("passed", "missed", "analysis")
JSON = "json"
VERBOSITY = ("errors", "warnings", "remarks")

SPLIT_MARKER = "// -----"

# How flags are switched on and off, as LLVM's tools read it.
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class PassFlag:
    """`--name` or `--name=options` on the command line, where `name` is a pass or a phase."""

    name: str
    options: str


class _Help(argparse.Action):
    """Prints the options, then phases and passes with their options, defaults and anchors."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from shardopt.tools.catalogue import describe

        show_and_exit(parser, "\n".join((parser.format_help(), *describe())))


def _remark_words(text: str) -> tuple[str, ...]:
    """Categories and kinds, between commas."""
    from shardopt.passes.remark_kinds import REMARK_KINDS

    known, words = (ALL_REMARKS, *CATEGORIES, *REMARK_KINDS), tuple(filter(None, text.split(",")))
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(unknown_name("remark", word, known))
    return words


def build_parser() -> ToolParser:
    """The options; flags that name passes are none of them, see `split_pass_flags`."""
    parser = ToolParser(
        prog=NAME,
        add_help=False,
        allow_abbrev=False,
        description="Run passes on an MLIR module (StableHLO, Shardy, MPMD).",
        epilog="Every pass and phase is also a flag, applied in order: --shardopt-normalize "
        "--canonicalize "
        '--shardopt-choose-stages="num-stages=2". A name that is none of those below is looked up '
        "among the C++ "
        "passes of jaxlib (cse, inline, sdy-*, stablehlo-*).",
    )
    parser.add_argument(
        "-h", "--help", nargs=0, action=_Help, help="show options, phases and passes, and exit"
    )
    parser.add_argument(
        "--version",
        nargs=0,
        action=ShowVersion,
        help="print the version, those of JAX and Python too, and exit",
    )
    _add_input_and_output(parser)
    _add_pipeline(parser)
    _add_checking(parser)
    _add_printing(parser)
    _add_ir_dumps(parser)
    _add_figures(parser)
    _add_reproducers(parser)
    return parser


def in_one_spelling(parser: ToolParser, argv: Sequence[str]) -> list[str]:
    """`argv` as argparse reads it, from all that LLVM's tools take: long names behind one dash,
    flags with `=true` and `=false`, and values that are optional behind `=` alone, so that a file
    that follows is never taken for one."""
    spelled: list[str] = []
    rest = iter(argv)
    for argument in rest:
        if argument == "--":
            return [*spelled, argument, *rest]
        name, equals, value = _two_dashes(parser, argument).partition("=")
        option = parser.option(name)
        if option is None:
            spelled.append(name + equals + value)
        elif option.nargs == 0 and equals:
            spelled = _switched(parser, spelled, name, value)
        elif option.nargs == 0 or equals:
            spelled.append(name + equals + value)
        elif option.nargs == "?":
            spelled.append(f"{name}={option.const}")
        else:
            following = next(rest, None)  # where there is none, argparse says so
            spelled.append(name if following is None else f"{name}={following}")
    return spelled


def _two_dashes(parser: ToolParser, argument: str) -> str:
    """Names of one letter keep their one dash."""
    name = argument.partition("=")[0]
    is_long = len(name) > 2 and name[0] == "-" != name[1] and parser.option(name) is None
    return f"-{argument}" if is_long else argument


def _switched(parser: ToolParser, spelled: list[str], name: str, value: str) -> list[str]:
    """With a flag set, or with all that set it before taken back: the last word counts."""
    if value.lower() not in _TRUTH:
        parser.error(f"argument {name}: expected true, false, 1 or 0, found '{value}'")
    if _TRUTH[value.lower()]:
        return [*spelled, name]
    return [argument for argument in spelled if argument != name]


def with_pass_flags(parser: ToolParser) -> ToolParser:
    """The parser with all passes and phases among its options, and their names as values of those
    that take one: for completion, which knows options only."""
    from shardopt.passes.registry import PASSES, PREFIX
    from shardopt.pipeline.phases import PHASE_NAMES, PIPELINES

    phases = (*PHASE_NAMES, *(phase.name for phase in PIPELINES))
    for name in (*PASSES, *(PREFIX + phase for phase in phases)):
        parser.add_argument(f"--{name}")
    for option in ("--from", "--to"):
        suggest(_known(parser, option), PHASE_NAMES)
    for option in ("--mlir-print-ir-before", "--mlir-print-ir-after"):
        suggest(_known(parser, option), PASSES)
    return parser


def _known(parser: ToolParser, name: str) -> argparse.Action:
    action = parser.option(name)
    assert action is not None
    return action


def split_pass_flags(
    parser: ToolParser, argv: Sequence[str]
) -> tuple[tuple[str, ...], tuple[PassFlag, ...]]:
    """Take the `--name[=options]` out of `argv`, spelled by `in_one_spelling`, that are not options
    of the parser, in their order."""
    known: list[str] = []
    flags: list[PassFlag] = []
    rest = iter(argv)
    for argument in rest:
        name, _, text = argument.partition("=")
        if argument == "--":
            known += [argument, *rest]
        elif not name.startswith("--") or parser.option(name) is not None:
            known.append(argument)
        else:
            flags.append(PassFlag(name[2:], text))
    return tuple(known), tuple(flags)


def _width(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of characters, found '{text}'")
    return int(text)


def _flag(group: argparse._ActionsContainer, name: str, help: str) -> None:
    group.add_argument(name, action="store_true", help=help)


def _add_input_and_output(parser: ToolParser) -> None:
    parser.add_argument(
        "input",
        nargs="?",
        default="-",
        help="text, bytecode, a portable artifact or a serialized jax.export.Exported; '-' is "
        "stdin",
    )
    parser.add_argument(
        "-o", dest="output", default="-", metavar="FILE", help="output file (default: stdout)"
    )
    parser.add_argument(
        "--emit",
        choices=("text", "bytecode", "portable"),
        default="text",
        help="form of the output",
    )
    _flag(parser, "--emit-bytecode", "the same as --emit=bytecode")
    parser.add_argument(
        "--emit-bytecode-version", type=int, metavar="N", help="version of the bytecode format"
    )
    _flag(parser, "--allow-unregistered-dialect", "accept operations of unknown dialects")
    _flag(parser, "--no-implicit-module", "expect a builtin.module around everything in the input")
    _flag(parser, "--show-dialects", "print the names of the dialects, and exit")
    _flag(parser, "--list-passes", "describe the phases, passes and options, and exit")


def _add_pipeline(parser: ToolParser) -> None:
    what = parser.add_argument_group("what to run (one of these, or flags that name passes)")
    what.add_argument(
        "--pass-pipeline", metavar="TEXT", help="for example 'builtin.module(shardopt-import,cse)'"
    )
    what.add_argument(
        "--from", dest="first", metavar="PHASE", help="first phase to run; alone, to the last phase"
    )
    what.add_argument(
        "--to", dest="last", metavar="PHASE", help="last phase to run; alone, from the first phase"
    )
    what.add_argument(
        "--phase-options",
        metavar="OPTIONS",
        default="",
        help="'a=1 b=2' for the phases of --from/--to",
    )
    _flag(what, "--run-reproducer", "run the pipeline that the input, a reproducer, names")
    _flag(what, "--dump-pass-pipeline", "print the pipeline that runs (stderr)")


def _add_checking(parser: ToolParser) -> None:
    check = parser.add_argument_group("checking")
    check.add_argument(
        "--verify-each",
        nargs="?",
        const="true",
        choices=tuple(_TRUTH),
        type=str.lower,
        default="true",
        help="verify after each pass",
    )
    check.add_argument(
        "--verify-diagnostics",
        nargs="?",
        const="all",
        choices=("all", "only-expected"),
        help="compare diagnostics with 'expected-error {{…}}' comments; only-expected tolerates "
        "others",
    )
    check.add_argument(
        "--split-input-file",
        nargs="?",
        const=SPLIT_MARKER,
        metavar="MARKER",
        help=f"process the parts between lines '{SPLIT_MARKER}' one by one",
    )
    check.add_argument(
        "--output-split-marker", default=SPLIT_MARKER, metavar="MARKER", help="line between outputs"
    )
    _flag(
        check,
        "--verify-roundtrip",
        "check that the input survives printing and parsing, as text and bytecode",
    )
    check.add_argument(
        "--remarks",
        nargs="?",
        type=_remark_words,
        const=ALL_REMARKS,
        default=(),
        metavar="KIND,…",
        help="print remarks (stderr): passed, missed, analysis, all, or kinds such as "
        "no-sharding-rule",
    )
    _flag(
        check,
        "--mlir-print-op-on-diagnostic",
        "attach the whole op to errors, as mlir-opt does by default",
    )
    check.add_argument(
        "--mlir-diagnostic-verbosity-level",
        choices=VERBOSITY,
        default=VERBOSITY[-1],
        help="print errors alone, warnings too, or remarks too (of those that --remarks selects)",
    )
    _flag(
        check,
        "--mlir-very-unsafe-disable-verifier-on-parsing",
        "accepted and without effect: what is read is always verified",
    )
    _flag(
        check,
        "--mlir-print-stacktrace-on-diagnostic",
        "print where in our passes an error was raised",
    )
    check.add_argument(
        "--diagnostics-format",
        choices=("text", JSON),
        default="text",
        help="json: one object a line for each message, for editors",
    )
    _flag(check, "--mlir-disable-diagnostic-notes", "print diagnostics without their notes")
    _flag(check, "--color", "color diagnostics also where they do not go to a terminal")


def _add_printing(parser: ToolParser) -> None:
    style = parser.add_argument_group("how IR is printed")
    _flag(style, "--mlir-print-debuginfo", "write locations into the text")
    _flag(
        style, "--mlir-pretty-debuginfo", "write locations in short form, which does not read back"
    )
    _flag(style, "--mlir-print-op-generic", "write the generic form of all ops")
    _flag(
        style, "--mlir-print-local-scope", "write attributes and locations inline, without aliases"
    )
    _flag(style, "--mlir-use-nameloc-as-prefix", "name values after their locations")
    _flag(style, "--mlir-print-unique-ssa-ids", "let no two values have one name, in any region")
    _flag(style, "--mlir-print-value-users", "write who reads a value behind it, by unique names")
    _flag(style, "--mlir-print-skip-regions", "leave the bodies of ops out")
    _flag(style, "--mlir-print-assume-verified", "print without verifying, also what is invalid")
    style.add_argument(
        "--print-width",
        type=_width,
        metavar="N",
        help="break longer lines at the commas of lists; 0 for never (default: never in the "
        "output, 120 in dumps)",
    )
    style.add_argument(
        "--mlir-elide-elementsattrs-if-larger",
        help="cut constants of more elements (default: none in the output, 16 in dumps)",
        type=int,
        metavar="N",
    )
    style.add_argument(
        "--mlir-elide-resource-strings-if-larger",
        help="cut resources of more characters (default: none in the output, 64 in dumps)",
        type=int,
        metavar="N",
    )


def _add_ir_dumps(parser: ToolParser) -> None:
    dumps = parser.add_argument_group("IR between passes (stderr, or files)")
    _flag(dumps, "--mlir-print-ir-before-all", "print IR before each pass")
    _flag(dumps, "--mlir-print-ir-after-all", "print IR after each pass")
    _flag(dumps, "--mlir-print-ir-after-change", "print IR after passes that change it")
    _flag(dumps, "--mlir-print-ir-diff", "print what passes change, as a unified diff of the IR")
    _flag(dumps, "--mlir-print-ir-after-failure", "print IR after a pass that fails")
    _flag(dumps, "--mlir-print-ir-module-scope", "print the whole module around nested passes")
    for when in ("before", "after"):
        dumps.add_argument(
            f"--mlir-print-ir-{when}",
            action="append",
            default=[],
            metavar="PASS,…",
            help=f"print IR {when} these passes",
        )
    dumps.add_argument(
        "--mlir-print-ir-tree-dir",
        metavar="DIR",
        help="write IR after each pass into a file in DIR",
    )
    dumps.add_argument(
        "--dump-compilation-phases-to", metavar="DIR", help="write IR after each phase into DIR"
    )


def _add_figures(parser: ToolParser) -> None:
    figures = parser.add_argument_group("figures (stderr)")
    _flag(
        figures,
        "--mlir-timing",
        "report wall time: parser, phases, passes, solver, verifier, output",
    )
    figures.add_argument(
        "--mlir-timing-display",
        choices=("tree", "list"),
        default="tree",
        help="form of that report",
    )
    _flag(figures, "--mlir-pass-statistics", "report the figures of every pass")
    figures.add_argument(
        "--mlir-pass-statistics-display",
        choices=("pipeline", "list"),
        default="pipeline",
        help="form of that report",
    )
    figures.add_argument(
        "--mlir-output-format",
        choices=("text", "json"),
        default="text",
        help="format of both reports",
    )
    _flag(
        figures,
        "--mlir-disable-threading",
        "accepted and without effect: one thread is used in any case",
    )


def _add_reproducers(parser: ToolParser) -> None:
    reproducers = parser.add_argument_group("reproducers")
    reproducers.add_argument(
        "--mlir-pass-pipeline-crash-reproducer",
        metavar="FILE",
        help="where to write one when a pass fails",
    )
    _flag(
        reproducers,
        "--mlir-pass-pipeline-local-reproducer",
        "only the pass that failed, and the IR before it",
    )
    reproducers.add_argument(
        "--mlir-generate-reproducer",
        metavar="FILE",
        help="write one of the whole run in any case, and run",
    )

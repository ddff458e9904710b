"""`shardopt shard`: one mesh, no stages; where every value lies and what a step exchanges.

The options are those of the pipeline `shardopt-intra`, read from its passes: what a pass learns,
the command knows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows
from shardopt.passes.options import OptionSpec
from shardopt.passes.registry import PASSES
from shardopt.pipeline.phases import When, find_phase
from shardopt.tools.catalogue import pass_info
from shardopt.tools.common import console, report

PIPELINE = "shardopt-intra"
# Half of them at even distances, the other half where the steps between plans are largest.
_SEARCHES = "16"
# Of what plans take as well.
_METAVARS = {row.field: row.metavar for row in rows(PlanOptions)} | {"unroll": "true|false"}
_BYTECODE_SUFFIXES = frozenset({".mlirbc", ".bc"})


def add_shard(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Choose a sharding for every value of MODEL on one mesh, without pipeline stages."
    )
    parser.add_argument("model", metavar="MODEL", help="file, or - for standard input")
    parser.add_argument(
        "--cluster", required=True, metavar="FILE|PRESET[:HxD]", help="what to plan for"
    )
    parser.add_argument(
        "--mesh",
        required=True,
        metavar="SHAPE",
        help="shape of the mesh, such as 2x4 or data:2,model:4",
    )
    for spec in (spec for spec in _options() if spec.name != "frontier"):
        metavar = _METAVARS.get(spec.field) or spec.type_text.replace(" | ", "|")
        text = f"{spec.help}: {spec.type_text}" if metavar == "METHOD" else spec.help
        text += f" (default {spec.default_text})"
        parser.add_argument(
            f"--{spec.name}",
            metavar=metavar,
            dest=f"pass_{spec.field}",
            help=text.replace("%", "%%"),
        )
    parser.add_argument(
        "--frontier",
        nargs="?",
        const=_SEARCHES,
        metavar="SEARCHES",
        dest="pass_frontier",
        help="also find the fastest plan at every memory budget, with at most so many searches "
        f"(without a number {_SEARCHES}), and print their times and bytes",
    )
    parser.add_argument(
        "--frontier-svg", type=Path, metavar="FILE", help="draw the frontier as a picture"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the annotated module: .mlir or .mlirbc",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON instead of tables"
    )
    parser.add_argument(
        "--remarks", action="store_true", help="print remarks: what was decided, and what fell back"
    )
    parser.set_defaults(run=_run)


def _options() -> Iterator[OptionSpec]:
    """The options of the pipeline's passes and its switches, but for those that the command has
    itself."""
    phase = find_phase(PIPELINE)
    assert phase is not None
    names = {"cluster", "mesh"}
    for step in phase.steps:
        if isinstance(step, When):
            specs: tuple[OptionSpec, ...] = (
                OptionSpec(step.switch, step.switch, bool, False, _help_of(step)),
            )
        else:
            specs = pass_info(step).options if step in PASSES else ()
        for spec in specs:
            if spec.name not in names:
                names.add(spec.name)
                yield spec


def _help_of(step: When) -> str:
    return "also run " + ", ".join(step.steps)


def _run(args: argparse.Namespace) -> None:
    from shardopt.frontend.spmd.shard_module import shard_module
    from shardopt.ir.io import check_output, write_output
    from shardopt.report.frontier import frontier_svg

    for path in (args.output, args.frontier_svg):
        if path is not None:
            check_output(path)
    if args.frontier_svg is not None and args.pass_frontier is None:
        args.pass_frontier = _SEARCHES
    options: dict[str, object] = {"cluster": args.cluster}
    values = {spec.name: getattr(args, f"pass_{spec.field}") for spec in _options()}
    options |= {name: text for name, text in values.items() if text is not None}
    size = Path(args.model).stat().st_size if Path(args.model).is_file() else 0
    with ExitStack() as reading:
        reading.enter_context(args.trace.reading(size))
        handler = partial(report, remarks=args.remarks)
        sharded = shard_module(
            args.model, args.mesh, options, on_read=reading.close, handler=handler
        )
    if args.output is not None:
        bytecode = args.output.suffix in _BYTECODE_SUFFIXES
        write_output(sharded.module if bytecode else sharded.text().encode(), args.output)
    frontier = sharded.summary.frontier
    if args.frontier_svg is not None and frontier is not None:
        title = f"{Path(args.model).stem} on a mesh of {args.mesh}, {args.cluster}"
        write_output(frontier_svg(frontier, title).encode(), args.frontier_svg)
    if args.json:
        print(json.dumps(sharded.summary.to_json(), indent=2))
    else:
        for table in sharded.tables():
            console().print(table)

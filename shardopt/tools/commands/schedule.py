"""`shardopt schedule`: a schedule by name, from a CSV file or of a plan, simulated: as table, CSV
or picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError
from shardopt.tools.common import console, module_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.schedule.even_pipeline import EvenPipeline
    from shardopt.schedule.simulator import SimulationResult
    from shardopt.tools.supervisor import Trace

_STDOUT = "-"


def add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Simulate SCHEDULE: a name on a pipeline of equal meshes, a CSV file in the notation of "
        "torch.distributed.pipelining, or the schedule of a plan directory or of a module behind "
        "the schedule phase."
    )
    parser.add_argument(
        "schedule", metavar="SCHEDULE", help="a name, all, FILE.csv, PLAN or FILE.mlir[bc]"
    )
    parser.add_argument("--meshes", type=_count, default=4, metavar="N", help="(default 4)")
    parser.add_argument("--microbatches", type=_count, default=8, metavar="N", help="(default 8)")
    parser.add_argument(
        "--chunks",
        type=_count,
        default=2,
        metavar="N",
        help="stages of a mesh under interleaved, slices of tokens under terapipe (default 2)",
    )
    parser.add_argument(
        "--forward", type=_seconds, default=1.0, metavar="S", help="of a microbatch on a mesh (1)"
    )
    parser.add_argument(
        "--backward", type=_seconds, default=2.0, metavar="S", help="of a microbatch on a mesh (2)"
    )
    parser.add_argument(
        "--weight-share", type=_share, default=0.5, metavar="X", help="of a backward in two (0.5)"
    )
    parser.add_argument(
        "--send", type=_seconds, default=0.0, metavar="S", help="from a mesh to another (0)"
    )
    parser.add_argument(
        "--activations", default="0", metavar="BYTES", help="kept of a microbatch on a mesh (0)"
    )
    parser.add_argument(
        "--no-overlap",
        dest="overlap",
        action="store_false",
        help="meshes do nothing while they send",
    )
    parser.add_argument(
        "--slice-seconds",
        type=Path,
        metavar="FILE",
        help="CSV: row l, column c has the seconds of l + 1 units of tokens behind c units; "
        "terapipe cuts by it",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the tasks; - for standard output")
    parser.add_argument(
        "--trace", dest="chrome_trace", metavar="FILE", help="write the timeline as a Chrome trace"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the timeline as a picture")
    parser.add_argument("--timeline", action="store_true", help="print the timeline")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found '{text}'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0 or not isfinite(seconds):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, found '{text}'")
    return seconds


def _share(text: str) -> float:
    share = _seconds(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, found '{text}'")
    return share


def _run(args: argparse.Namespace) -> None:
    if args.schedule == "all":
        if args.csv or args.chrome_trace or args.svg or args.timeline:
            raise UserError("one file holds one schedule: give a name instead of 'all'")
        console().print(_comparison(_pipeline(args)))
        return
    from shardopt.schedule.exchange import check_exchange

    result = _result(args)
    reason = check_exchange(result.linked)
    if reason:
        print(
            "note: sends go out in the order of receipt, since as tasks end they could "
            f"block: {reason}",
            file=sys.stderr,
        )
    _write(args, result)
    if args.csv != _STDOUT:
        if args.timeline:
            from shardopt.report.timeline import timeline_text

            console().print(timeline_text(result), end="")
        else:
            from shardopt.report.timeline import summary

            print(summary(result))
        console().print(_table(result))


def _result(args: argparse.Namespace) -> SimulationResult:
    source = Path(args.schedule)
    if source.suffix == ".csv":
        from shardopt.schedule.csv_format import read_csv

        imported = read_csv(_text(source), source.stem)
        if imported.left_out:
            print(f"note: {imported} of '{source}' are left out", file=sys.stderr)
        return _pipeline(args).simulate_tasks(imported.schedule)
    if source.is_dir() or source.suffix in (".mlir", ".mlirbc"):
        return _of_plan(source, args.trace)
    return _pipeline(args).simulate(args.schedule)


def _of_plan(source: Path, trace: Trace) -> SimulationResult:
    """Of a plan directory, or of a file with a module."""
    from shardopt.frontend.plans.plan import Plan, simulate_module
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module

    if source.is_dir():
        with trace.reading(module_bytes(source)):
            plan = Plan.load(source)
        return plan.simulate()
    with make_context() as context:
        with trace.reading(module_bytes(source)):
            module = load_module(source, context)
        return simulate_module(module)


def _pipeline(args: argparse.Namespace) -> EvenPipeline:
    from shardopt.schedule.even_pipeline import EvenPipeline
    from shardopt.support.sizes import parse_bytes

    try:
        activations = parse_bytes(args.activations)
    except ValueError as error:
        raise UserError(f"--activations: {error}") from error
    pipeline = EvenPipeline(
        num_meshes=args.meshes,
        num_microbatches=args.microbatches,
        chunks=args.chunks,
        forward_seconds=args.forward,
        backward_seconds=args.backward,
        transfer_seconds=args.send,
        activation_bytes=activations,
        weight_share=args.weight_share,
        overlap=args.overlap,
    )
    return (
        pipeline.with_slices(_slice_table(args.slice_seconds)) if args.slice_seconds else pipeline
    )


def _slice_table(path: Path) -> list[list[float]]:
    """Rows of numbers, each as long as the first."""
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            rows.append([float(cell) if cell.strip() else 0.0 for cell in line.split(",")])
        except ValueError as error:
            raise UserError(f"'{path}', line {number}: {error}") from error
        if len(rows[-1]) != len(rows[0]):
            raise UserError(
                f"'{path}', line {number}: expected {len(rows[0])} cells, found {len(rows[-1])}"
            )
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read '{path}': {getattr(error, 'strerror', None) or error}"
        ) from error


def _write(args: argparse.Namespace, result: SimulationResult) -> None:
    """All files, or none."""
    from shardopt.ir.io import write_output
    from shardopt.report.timeline_svg import timeline_svg
    from shardopt.schedule.csv_format import to_csv
    from shardopt.schedule.trace import chrome_trace

    makers: tuple[tuple[str | None, Callable[[], str]], ...] = (
        (args.csv, lambda: to_csv(result.schedule)),
        (args.chrome_trace, lambda: json.dumps(chrome_trace(result)) + "\n"),
        (args.svg, lambda: timeline_svg(result)),
    )
    texts = [(target, make()) for target, make in makers if target is not None]
    for target, text in texts:
        write_output(text.encode(), target)


def _table(result: SimulationResult) -> Table:
    """What holds for each mesh."""
    from rich.table import Table

    from shardopt.report.units import bytes_text

    schedule, total = result.schedule, result.makespan_seconds or 1.0
    table = Table()
    for column in ("mesh", "stages", "busy", "in flight", "peak memory"):
        table.add_column(column, justify="right")
    for mesh, busy in enumerate(result.busy_seconds):
        peak = result.memory[mesh].peak_bytes
        stages = ", ".join(map(str, schedule.stages_of_mesh(mesh)))
        in_flight = str(result.peak_in_flight[mesh])
        table.add_row(
            str(mesh), stages, f"{busy / total:.1%}", in_flight, bytes_text(peak) if peak else "–"
        )
    return table


def _comparison(pipeline: EvenPipeline) -> Table:
    """Every schedule by name."""
    from rich.table import Table

    from shardopt.schedule.schedules import SCHEDULES

    numbers = f"{pipeline.num_meshes} meshes, {pipeline.num_microbatches} microbatches"
    seconds = f"forward {pipeline.forward_seconds:g} s, backward {pipeline.backward_seconds:g} s"
    table = Table(
        "schedule", title=f"{numbers}, {seconds}, transfers {pipeline.transfer_seconds:g} s"
    )
    for column in ("makespan", "bubble", "activations", "weights"):
        table.add_column(column, justify="right")
    for name, kind in SCHEDULES.items():
        try:
            result = pipeline.simulate(name)
        except UserError as error:
            table.add_row(name, "–", "–", "–", str(error).removeprefix(f"schedule '{name}' "))
            continue
        table.add_row(
            name,
            f"{result.makespan_seconds:g} s",
            f"{result.bubble_fraction:.1%}",
            f"{pipeline.activations(kind, result):g}",
            f"{pipeline.weights(kind, result.schedule)}",
        )
    return table

"""What `shardopt run` shows of a run afterwards: its trace, and the measured step beside the
simulated one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shardopt.tools.common import console

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.run import Run
    from shardopt.runtime.tracing.spans import Span
    from shardopt.schedule.simulator import SimulationResult


def add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        dest="trace_file",
        type=Path,
        metavar="FILE",
        help="write the newest steps as a Chrome trace",
    )
    parser.add_argument(
        "--timeline", action="store_true", help="print the measured step beside the simulated one"
    )
    parser.add_argument(
        "--timeline-svg", type=Path, metavar="FILE", help="draw both, one above the other"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the plan as a page of HTML, with both (see `shardopt report`)",
    )


def wants_trace(args: argparse.Namespace) -> bool:
    return bool(args.trace_file or args.timeline or args.timeline_svg or args.report)


def check_targets(args: argparse.Namespace) -> None:
    """Raises UserError, before anything runs, where a file could not be written afterwards."""
    from shardopt.ir.io import check_output

    for target in (args.trace_file, args.timeline_svg, args.report, args.outputs):
        if target is not None:
            check_output(target)


def show_views(args: argparse.Namespace, plan: Plan | None, run: Run) -> None:
    """Write and print what was asked for. Raises UserError when a file cannot be written."""
    if not wants_trace(args):
        return
    from shardopt.ir.io import write_output
    from shardopt.runtime.tracing.chrome import run_trace

    spans = run.spans()
    if args.trace_file is not None:
        write_output(
            (json.dumps(run_trace(run.program, spans)) + "\n").encode(), str(args.trace_file)
        )
    if plan is None or not spans or not (args.timeline or args.timeline_svg or args.report):
        return
    from shardopt.report.measured_timeline import comparison_svg, comparison_table

    simulated = plan.simulate()
    measured = _measured(simulated, run, spans)
    if args.timeline:
        console().print(comparison_table(simulated, measured))
    if args.timeline_svg is not None:
        write_output(comparison_svg(simulated, measured).encode(), str(args.timeline_svg))
    if args.report is not None:
        write_output(plan.report(measured, _title(args)).encode(), str(args.report))


def show_failed(args: argparse.Namespace, plan: Plan | None, run: Run) -> None:
    """The same of a run that has failed or was interrupted, as far as its workers still tell. What
    goes wrong here is a warning: the reason of the failure follows."""
    try:
        show_views(args, plan, run)
    except Exception as error:
        print(f"warning: the failed run cannot be shown: {error}", file=sys.stderr)


def _title(args: argparse.Namespace) -> str:
    return f"{Path(args.plan).resolve().name}, predicted and measured"


def _measured(simulated: SimulationResult, run: Run, spans: tuple[Span, ...]) -> SimulationResult:
    """The step of median length, without the first one if there are others, as it warms up, and
    without one that was not finished."""
    from shardopt.report.measured_timeline import length_of, measured_result, start_of
    from shardopt.runtime.tracing.spans import memory_over_time, task_times
    from shardopt.schedule.memory import MemoryProfile

    steps = sorted({span.step for span in spans})
    steps = [step for step in steps if step < run.steps_done] or steps
    times = {step: task_times(spans, step) for step in steps[min(1, len(steps) - 1) :]}
    step = sorted(times, key=lambda step: length_of(times[step]))[len(times) // 2]
    zero, bytes_over_time = start_of(times[step]), memory_over_time(run.program, spans, step)
    memory = []
    for part in run.program.meshes:
        points = [
            (max(seconds - zero, 0.0), bytes_)
            for seconds, bytes_ in bytes_over_time[part.mesh.name]
        ] or [(0.0, 0)]
        memory.append(MemoryProfile(tuple(s for s, _ in points), tuple(b for _, b in points)))
    return measured_result(simulated, times[step], memory)

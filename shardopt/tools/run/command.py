"""`shardopt run`: run a plan, step by step, and look at it while and after it runs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

from shardopt.options.names import BackendName, PlatformName, TransportName
from shardopt.runtime.health.limits import Limits
from shardopt.support.errors import UserError
from shardopt.support.sizes import parse_bytes
from shardopt.tools.common import EXIT_OK, EXIT_RUN_FAILED, count
from shardopt.tools.option_flags import add_options
from shardopt.tools.run.check import Function, check, plan_reference
from shardopt.tools.run.checkpoints import (
    add_checkpoints,
    checkpoint_options,
    has_checkpoint,
    tell_left_out,
    tell_restart,
    tell_resumed,
)
from shardopt.tools.run.data import Feed, open_data
from shardopt.tools.run.guard import NonFinite, check_finite
from shardopt.tools.run.inputs import (
    module_reference,
    read_inputs,
    read_program,
    write_outputs,
)
from shardopt.tools.run.metrics import (
    Metrics,
    float_scalars,
    measured,
    open_metrics,
    tokens_per_step,
)
from shardopt.tools.run.pace import Pace, predicted_seconds
from shardopt.tools.run.stopping import Stopping
from shardopt.tools.run.views import add_views, check_targets, show_failed, show_views, wants_trace

if TYPE_CHECKING:
    import numpy as np

    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program
    from shardopt.runtime.run import Outputs, Run
    from shardopt.tools.run.replan import Replanning

_WATCHDOG_SECONDS = 60.0
# A single step has no time left to tell, and no seconds a step before it ends.
_STEPS_WITH_PROGRESS = 2


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a plan directory, or an exported module; state is fed back from step to step."
    )
    parser.add_argument(
        "plan",
        type=Path,
        metavar="PLAN",
        help="directory written by `shardopt plan -o`, or file of a module with fragments or calls",
    )
    parser.add_argument(
        "--entry", metavar="NAME", help="function of the module that runs (default: main)"
    )
    parser.add_argument(
        "--backend",
        default="local",
        choices=get_args(BackendName),
        help="threads or processes here, or Ray actors",
    )
    parser.add_argument(
        "--platform",
        default="auto",
        choices=get_args(PlatformName),
        help="devices of the meshes; auto: GPUs if there are enough, on this machine or in the "
        "Ray cluster",
    )
    parser.add_argument(
        "--share-gpus",
        action="store_true",
        help="meshes share the GPUs of this machine, where these are too few",
    )
    parser.add_argument(
        "--transport",
        default="auto",
        choices=get_args(TransportName),
        help="of messages: sockets, Ray's objects, or from GPU to GPU",
    )
    parser.add_argument(
        "--devices-per-host",
        type=count,
        metavar="N",
        help="of processes and actors (default: the cluster of the plan)",
    )
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help="of a running Ray cluster (default: RAY_ADDRESS)"
    )
    parser.add_argument("--steps", type=count, default=1, metavar="N")
    parser.add_argument(
        "--inputs", type=Path, metavar="F.npz", help="arrays in0, in1, …; others are random"
    )
    parser.add_argument(
        "--outputs", type=Path, metavar="F.npz", help="write those of the last step: out0, out1, …"
    )
    parser.add_argument(
        "--data",
        metavar="SOURCE",
        help="what every step is given: .npz, .parquet or .array_record files with rows of "
        "arguments, in a folder, or module:function, which gives an iterator of batches from the "
        "step it is called with",
    )
    parser.add_argument(
        "--max-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="stop after the step in which these are over, with a checkpoint",
    )
    parser.add_argument(
        "--nonfinite",
        choices=get_args(NonFinite),
        default="report",
        help="of a step whose loss or metrics are not finite: report it, stop, or go back to the "
        "newest checkpoint and leave the step out",
    )
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for every step: seconds, results, tokens a second, how busy "
        "the meshes are, memory",
    )
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the same for TensorBoard, as curves"
    )
    parser.add_argument(
        "--tokens",
        metavar="N|NAME",
        help="tokens of a step, for metrics: a number, or the argument whose elements they are "
        "(default: the largest one of integers, batch by sequence)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument(
        "--check", action="store_true", help="compare the first step with one device"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest relative difference (default 1e-4)"
    )
    parser.add_argument(
        "--quick-compile", action="store_true", help="less optimisation, less compile time"
    )
    parser.add_argument(
        "--no-compile-cache",
        dest="compile_cache",
        action="store_false",
        help="compile everything, keep nothing on disk",
    )
    parser.add_argument(
        "--memory-limit",
        type=_bytes,
        metavar="BYTES",
        help="refuse what a device would not hold, such as 512MiB",
    )
    parser.add_argument(
        "--watchdog",
        type=float,
        default=_WATCHDOG_SECONDS,
        metavar="SECONDS",
        help="say where every worker stands after so long without progress (default 60; 0 for "
        "never)",
    )
    add_options(parser, Limits)
    add_checkpoints(parser)
    add_views(parser)
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found '{text}'")
    return seconds


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(args: argparse.Namespace) -> int:
    """The exit code: 0, 3 when a mesh has failed, or why the run stopped early."""
    from shardopt.runtime.errors import MeshError

    stopping = Stopping(args.max_seconds)
    try:
        with stopping.listening(), open_metrics(args.metrics, args.tensorboard) as metrics:
            done = _run_plan(args, stopping, metrics)
    except MeshError as error:
        print(f"shardopt: error: {error}", file=sys.stderr)
        return EXIT_RUN_FAILED
    except KeyboardInterrupt:
        print("shardopt: interrupted", file=sys.stderr)
        return stopping.exit_code
    if done == args.steps:
        return EXIT_OK
    stopping.tell(done, args.steps, saved=has_checkpoint(args, done))
    return stopping.exit_code


def _run_plan(args: argparse.Namespace, stopping: Stopping, metrics: Sequence[Metrics]) -> int:
    """How many steps are done."""
    from shardopt.runtime.driver import open_run
    from shardopt.runtime.inputs import random_inputs
    from shardopt.runtime.restart import Recovery, run_steps

    check_targets(args)
    program, plan = read_program(args.plan, args.entry)
    if plan is None and (args.timeline or args.timeline_svg):
        raise UserError(f"'{args.plan}' is a module: what it was to take, only a plan tells")
    inputs = random_inputs(program, args.seed)
    if args.inputs is not None:
        read_inputs(args.inputs, inputs)
    replanning = _replanning(args, plan, program)
    feed: Feed = (lambda step: {}) if args.data is None else open_data(args.data, program, inputs)
    options: dict[str, Any] = {
        "platform": args.platform,
        "share_gpus": args.share_gpus,
        "transport": args.transport,
        "quick_compile": args.quick_compile,
        "compile_cache": args.compile_cache,
        # Metrics are worked out of the times of instructions.
        "trace": wants_trace(args) or bool(metrics),
        "memory_limit_bytes": args.memory_limit,
        "watchdog_seconds": args.watchdog or None,
        "devices_per_host": args.devices_per_host,
        "ray_address": args.ray_address,
        "limits": Limits(**{each.name: getattr(args, each.name) for each in fields(Limits)}),
        "checkpoints": checkpoint_options(args),
    }
    tokens = tokens_per_step(program, args.tokens)
    pace = Pace(predicted_seconds(plan, program) if plan is not None and metrics else {})
    latest: list[np.ndarray] = []

    def start(attempt: int) -> Run:
        nonlocal plan, program, pace
        if attempt and replanning is not None and replanning.look():
            plan, program = replanning.plan, replanning.program
            pace = Pace(predicted_seconds(plan, program) if metrics else {})
        return open_run(program, args.backend, **options)

    def finish(run: Run) -> None:
        show_views(args, plan, run)
        if latest:
            write_outputs(args.outputs, latest)

    with _progress(args.steps) as advance:

        def inspect(run: Run, step: int, outputs: Outputs) -> None:
            check_finite(step, float_scalars(run, outputs), args.nonfinite)

        def after(run: Run, step: int, outputs: Outputs) -> None:
            _print_step(step, run.step_seconds, float_scalars(run, outputs))
            if metrics:
                of_step = measured(run, outputs, tokens, threads=args.backend == "local")
                for each in metrics:
                    each.add(step, of_step)
                pace.add(step, of_step.task_seconds)
            advance()
            if step == 0 and args.check:
                batch = feed(0)
                given = [batch.get(k, value) for k, value in enumerate(inputs)]
                check(_reference(args, plan), given, list(outputs), args.tolerance)
            if args.outputs is not None:
                latest[:] = outputs

        return run_steps(
            start,
            lambda run: run.load(inputs),
            args.steps,
            feed=feed,
            inspect=inspect,
            after=after,
            stop=stopping.asked,
            finish=finish,
            failed=lambda run: show_failed(args, plan, run),
            recovery=Recovery(
                args.checkpoint_dir,
                args.resume,
                args.restarts,
                tell_restart,
                args.resume_from,
                tell_resumed,
                tell_left_out,
            ),
        )


def _replanning(args: argparse.Namespace, plan: Plan | None, program: Program) -> Replanning | None:
    """Raises UserError for options that --replan does not go with."""
    if not args.replan:
        return None
    if args.backend != "ray" or not args.restarts or plan is None:
        raise UserError("--replan goes with a plan, --backend ray and --restarts")
    from shardopt.runtime.backends.ray_actors import count_hosts
    from shardopt.tools.run.replan import Replanning

    def count(devices: int) -> int:
        return count_hosts(args.ray_address, devices, gpus=args.platform != "cpu")

    return Replanning(plan, program, count)


def _reference(args: argparse.Namespace, plan: Plan | None) -> Function:
    if plan is None:
        return module_reference(args.plan, args.entry)
    return plan_reference(plan)


def _print_step(step: int, seconds: float, scalars: Mapping[str, float]) -> None:
    text = ", ".join(f"{value:.6g}" for value in scalars.values())
    print(f"step {step}: {seconds:.3f} s" + (f"  scalars: {text}" if scalars else ""))


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    """A bar on standard error, for people: steps done, seconds a step, time left."""
    if steps < _STEPS_WITH_PROGRESS or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("steps"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task, begin = bar.add_task("", total=steps, pace=""), perf_counter()

        def advance() -> None:
            done = bar.tasks[0].completed + 1
            bar.update(task, advance=1, pace=f"{(perf_counter() - begin) / done:.3g} s a step")

        yield advance

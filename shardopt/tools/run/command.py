"""`shardopt run`: run a plan, step by step, and look at it while and after it runs."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError
from shardopt.tools.common import EXIT_OK, EXIT_RUN_FAILED
from shardopt.tools.run.check import check, plan_reference
from shardopt.tools.run.checkpoints import has_checkpoint, recovery
from shardopt.tools.run.data import Feed, open_data
from shardopt.tools.run.flags import add_flags, run_options
from shardopt.tools.run.guard import check_finite
from shardopt.tools.run.inputs import module_reference, read_inputs, read_program, write_outputs
from shardopt.tools.run.metrics import (
    Metrics,
    float_scalars,
    measured,
    open_metrics,
    tokens_per_step,
)
from shardopt.tools.run.pace import Pace, predicted_seconds
from shardopt.tools.run.stopping import Stopping
from shardopt.tools.run.views import check_targets, show_failed, show_views

if TYPE_CHECKING:
    import numpy as np

    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program
    from shardopt.runtime.run import Outputs, Run
    from shardopt.tools.run.replan import Replanning

# A single step has no time left to tell, and no seconds a step before it ends.
_STEPS_WITH_PROGRESS = 2


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a plan directory, or an exported module; state is fed back from step to step."
    )
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """The exit code: 0, 3 when a mesh has failed, or why the run stopped early."""
    from shardopt.runtime.errors import MeshError

    stopping = Stopping(args.max_seconds)
    try:
        with (
            _plain_warnings(),
            stopping.listening(),
            open_metrics(args.metrics, args.tensorboard) as metrics,
        ):
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
    from shardopt.runtime.restart import run_steps

    check_targets(args)
    followed = _Followed(args, metrics)
    with _progress(args.steps) as advance:

        def after(run: Run, step: int, outputs: Outputs) -> None:
            followed.after(run, step, outputs)
            advance()

        return run_steps(
            followed.start,
            lambda run: run.load(followed.inputs),
            args.steps,
            feed=followed.feed,
            inspect=followed.inspect,
            after=after,
            stop=stopping.asked,
            finish=followed.finish,
            failed=lambda run: show_failed(args, followed.plan, run),
            recovery=recovery(args),
        )


class _Followed:
    """What is run as the arguments say: the plan, which may become another one between attempts,
    what its steps are given, and what is made of their results."""

    def __init__(self, args: argparse.Namespace, metrics: Sequence[Metrics]) -> None:
        """Raises UserError."""
        from shardopt.runtime.inputs import random_inputs

        self._args, self._metrics = args, metrics
        self._program, self.plan = read_program(args, args.plan)
        if self.plan is None and (args.timeline or args.timeline_svg):
            raise UserError(f"'{args.plan}' is a module: what it was to take, only a plan tells")
        self.inputs = random_inputs(self._program, args.seed)
        if args.inputs is not None:
            read_inputs(args.inputs, self.inputs)
        self._replanning = _replanning(args, self.plan, self._program)
        self.feed: Feed = lambda step: {}
        if args.data is not None:
            self.feed = open_data(args.data, self._program, self.inputs)
        self._options = run_options(args, with_metrics=bool(metrics))
        self._tokens = tokens_per_step(self._program, args.tokens)
        self._pace = self._new_pace()
        self._latest: list[np.ndarray] = []

    def start(self, attempt: int) -> Run:
        from shardopt.runtime.driver import open_run

        if attempt and self._replanning is not None and self._replanning.look():
            self.plan, self._program = self._replanning.plan, self._replanning.program
            self._pace = self._new_pace()
        return open_run(self._program, self._args.backend, **self._options)

    def inspect(self, run: Run, step: int, outputs: Outputs) -> None:
        check_finite(step, float_scalars(run, outputs), self._args.nonfinite)

    def after(self, run: Run, step: int, outputs: Outputs) -> None:
        _print_step(step, run.step_seconds, float_scalars(run, outputs))
        if self._metrics:
            of_step = measured(run, outputs, self._tokens, threads=self._args.backend == "local")
            for each in self._metrics:
                each.add(step, of_step)
            self._pace.add(step, of_step.task_seconds)
        if step == 0 and self._args.check:
            self._check(outputs)
        if self._args.outputs is not None:
            self._latest[:] = outputs

    def finish(self, run: Run) -> None:
        show_views(self._args, self.plan, run)
        if self._latest:
            write_outputs(self._args.outputs, self._latest)

    def _new_pace(self) -> Pace:
        if self.plan is None or not self._metrics:
            return Pace({})
        return Pace(predicted_seconds(self.plan, self._program))

    def _check(self, outputs: Outputs) -> None:
        batch = self.feed(0)
        given = [batch.get(k, value) for k, value in enumerate(self.inputs)]
        reference = (
            plan_reference(self.plan)
            if self.plan is not None
            else module_reference(self._args, self._args.plan)
        )
        check(reference, given, list(outputs), self._args.tolerance)


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


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """What the runtime warns about, without the line of it that does so."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(
            f"warning: {message}", file=sys.stderr
        )
        yield


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

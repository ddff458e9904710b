"""`shardopt reduce`: shrink a module and a pipeline to a small pair that still fails."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError
from shardopt.tools.common import EXIT_OK, count

if TYPE_CHECKING:
    from rich.status import Status

    from shardopt.reduce.candidate import Candidate
    from shardopt.reduce.failure import Failure
    from shardopt.reduce.interest import Test
    from shardopt.reduce.search import Search, Sweep

_PROG = "shardopt reduce"
# A trial may take as long as the input took several times over, and starting Python.
_TRIAL_SHARE, _TRIAL_SECONDS = 4.0, 10.0
_FIRST_TRIAL_SECONDS = 600.0
_INTERRUPTED = 128 + signal.SIGINT


def add_reduce(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shrink a module, and the pipeline of a reproducer, to a small one that still fails. "
        "Without --test the pipeline has to fail as it does on the input: the same kind of error, "
        "in the same pass, with the same message but for names and numbers."
    )
    parser.add_argument(
        "module", metavar="FILE", help="reproducer, or module as text, bytecode or artifact"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where the smallest so far is written (default: FILE with .reduced.mlir)",
    )
    parser.add_argument(
        "--test",
        metavar="COMMAND",
        help="command that shows whether a file is interesting, by exit status 0; the file stands "
        "for {}, or is the last argument",
    )
    parser.add_argument(
        "--pass-pipeline", metavar="TEXT", help="what to run, where FILE is no reproducer"
    )
    parser.add_argument(
        "--status",
        type=int,
        metavar="N",
        help="exit status of --test that is interesting, as shells count: 139 is a segmentation "
        "fault, 124 out of time (default 0)",
    )
    parser.add_argument(
        "--match",
        metavar="PATTERN",
        help="regular expression to be found in the message, or in what --test prints",
    )
    parser.add_argument(
        "--trial-seconds",
        type=float,
        metavar="S",
        help="time for one trial (default: 10 s, and 4 times what the input takes)",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="time for all; the smallest so far is kept"
    )
    parser.add_argument("--trials", type=count, metavar="N", help="so many trials at most")
    parser.set_defaults(run=_reduce)


def _reduce(args: argparse.Namespace) -> int:
    from shardopt.ir.io import write_output
    from shardopt.reduce.reductions import REDUCTIONS
    from shardopt.reduce.search import Search

    started = perf_counter()
    target = _target(args)
    candidate = _read(args)
    args.trace.note(phase="reduce")
    test, trial_seconds = _test(args, candidate)
    best = candidate

    def better(smaller: Candidate) -> None:
        nonlocal best
        best = smaller
        write_output(smaller.file_text.encode(), target)

    write_output(candidate.file_text.encode(), target)
    search = Search(test, REDUCTIONS, trial_seconds, on_better=better, on_sweep=_print_sweep)
    search.stop = lambda: _is_over(args, search, started)
    code = EXIT_OK
    with _interruptible(), _status() as status:
        if status is not None:
            search.on_trial = lambda name, done, total: status.update(
                f"{name}: {done} of {total}; {best.size.operations} operations, "
                f"{search.trials} trials, {perf_counter() - started:.0f} s"
            )
        try:
            search.run(candidate)
        except KeyboardInterrupt:
            print(f"{_PROG}: interrupted; the smallest so far is kept", file=sys.stderr)
            code = _INTERRUPTED
    print(
        f"{_extent(candidate)} -> {_extent(best)}: {search.trials} trials, "
        f"{perf_counter() - started:.1f} s; written to {target}"
    )
    if best.passes:
        print(f"shardopt-opt {shlex.quote(str(target))} --run-reproducer")
    return code


def _target(args: argparse.Namespace) -> Path:
    """Where to write; never over the input."""
    source = Path(args.module)
    target: Path = args.output or source.with_suffix(".reduced.mlir")
    if target.resolve() == source.resolve():
        raise UserError(f"expected an output beside the input, found '{target}' for both")
    if not target.resolve().parent.is_dir():
        raise UserError(f"cannot write '{target}': its directory does not exist")
    return target


def _read(args: argparse.Namespace) -> Candidate:
    """The input as a candidate, with the pipeline of the command line or of the reproducer."""
    from shardopt.ir.context import make_context
    from shardopt.ir.formats import decoded, read_source
    from shardopt.ir.io import load_module
    from shardopt.pipeline.parser import parse_pipeline
    from shardopt.pipeline.reproducer import read_recipe
    from shardopt.reduce.candidate import Subject, pass_texts

    data = read_source(args.module)
    with args.trace.reading(len(data)):
        module = load_module(data, make_context(), name=args.module)
    text, verify_each = args.pass_pipeline, True
    source = decoded(data) or ""
    if text is None and (args.test is None or "mlir_reproducer" in source):
        recipe = read_recipe(source, args.module)
        text, verify_each = recipe.pipeline, recipe.verify_each
    passes = None if text is None else pass_texts(parse_pipeline(text))
    return Subject(module, passes, verify_each).candidate()


def _test(args: argparse.Namespace, candidate: Candidate) -> tuple[Test, float]:
    """The test, which the input has passed, and the time for a trial."""
    pattern = _pattern(args.match)
    limit = args.trial_seconds or _FIRST_TRIAL_SECONDS
    started = perf_counter()
    test = _command(args, candidate, limit, pattern) if args.test else None
    failure = None if test is not None else _failure(candidate, limit, pattern)
    took = perf_counter() - started
    seconds = args.trial_seconds or _TRIAL_SECONDS + _TRIAL_SHARE * took
    from shardopt.reduce.interest import CommandTest, SameFailure

    if isinstance(test, CommandTest):
        return CommandTest(test.words, seconds, test.status, pattern), seconds
    assert failure is not None
    return SameFailure(failure, seconds, pattern), seconds


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UserError(f"--match: no regular expression: {error}") from None


def _command(
    args: argparse.Namespace, candidate: Candidate, seconds: float, pattern: re.Pattern[str] | None
) -> Test:
    from shardopt.reduce.interest import CommandTest, is_executable

    words = tuple(shlex.split(args.test))
    if not words or not is_executable(words[0]):
        raise UserError(f"--test: expected a command, found '{args.test}'")
    test = CommandTest(words, seconds, args.status or 0, pattern)
    outcome = test.outcome(candidate)
    if outcome.status != test.status:
        raise UserError(
            f"the input is not interesting: --test ended with {outcome.status}, "
            f"expected {test.status}"
        )
    if pattern is not None and not pattern.search(outcome.output):
        raise UserError("the input is not interesting: --match is not in what --test prints")
    return test


def _failure(candidate: Candidate, seconds: float, pattern: re.Pattern[str] | None) -> Failure:
    from shardopt.reduce.failure import failure_of, preload

    failure = failure_of(candidate, seconds, on_modules=preload)
    if failure is None:
        raise UserError("the input is not interesting: its pipeline succeeds")
    if pattern is not None and not pattern.search(failure.message):
        raise UserError(f"the input is not interesting: --match is not in '{failure.message}'")
    print(f"looking for: {failure}", file=sys.stderr)
    return failure


def _is_over(args: argparse.Namespace, search: Search, started: float) -> bool:
    too_many = args.trials is not None and search.trials >= args.trials
    return too_many or (args.seconds is not None and perf_counter() - started > args.seconds)


def _print_sweep(sweep: Sweep) -> None:
    if sweep.before != sweep.after:
        print(
            f"{sweep.name}: {_extent(sweep.before)} -> {_extent(sweep.after)}, "
            f"{sweep.trials} trials, {sweep.seconds:.1f} s",
            file=sys.stderr,
        )


def _extent(candidate: Candidate) -> str:
    size = candidate.size
    ops = f"{size.operations} operations, {size.characters} characters"
    return ops if candidate.passes is None else f"{size.passes} passes, {ops}"


@contextmanager
def _interruptible() -> Iterator[None]:
    """A termination is an interrupt, too."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _status() -> Iterator[Status | None]:
    """A line on a terminal that says what is tried."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield status

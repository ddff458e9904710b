"""The search as a whole: what it leaves, what it counts as the same failure, and that crashes and
hangs of what it tries end a trial only.

A trial is a fork. Of a process that has run a suite it takes ten times as long as of one that has
imported the search only: long searches run in such a one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.pipeline.reproducer import Reproduction, footer
from shardopt.reduce.candidate import Candidate, Size, Subject, pipeline_text
from shardopt.reduce.failure import Failure, core_of, failure_of, preload
from shardopt.reduce.interest import CommandTest, SameFailure
from shardopt.reduce.isolation import isolated
from shardopt.reduce.op_reductions import DropOps
from shardopt.reduce.reductions import REDUCTIONS
from shardopt.reduce.search import Search
from shardopt.tools.shardopt import main
from tests.warm.tools import client_command

MLP = Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir"
SPLIT = "shardopt-split-microbatches{num-microbatches=3}"
FAILING = ("shardopt-inline-calls", "func.func(cse)", SPLIT)


def mlp(passes: tuple[str, ...] | None = FAILING) -> Candidate:
    return Subject(load_module(MLP.read_bytes(), make_context()), passes).candidate()


@pytest.fixture(scope="module")
def small_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def searched(test: Callable[[Candidate], bool]) -> tuple[Candidate, list[Size]]:
    """What a search in `mlp` leaves, and the sizes on the way there."""
    sizes = [mlp().size]
    search = Search(test, REDUCTIONS, trial_seconds=60.0)
    search.on_better = lambda each: sizes.append(each.size)
    return search.run(mlp()), sizes


def _has_tanh(each: Candidate) -> bool:
    return "stablehlo.tanh" in each.text


def _has_products_and_a_difference(each: Candidate) -> bool:
    return each.text.count("dot_general") >= 2 and "subtract" in each.text


def test_what_is_looked_for_is_left_alone(small_process: ProcessPoolExecutor) -> None:
    """No pass, and one operation of one element."""
    left, _ = small_process.submit(searched, _has_tanh).result()
    assert left.passes == () and left.size.operations == 4  # function, constant, tanh, return
    assert "stablehlo.tanh %cst : tensor<1x1xf32>" in left.text and "loc(" not in left.text


def test_two_runs_leave_the_same_and_each_candidate_is_smaller(
    small_process: ProcessPoolExecutor,
) -> None:
    runs = [small_process.submit(searched, _has_products_and_a_difference) for _ in range(2)]
    (left, sizes), again = (run.result() for run in runs)
    assert (left, sizes) == again
    assert sizes == sorted(set(sizes), reverse=True) and len(sizes) > 5


@pytest.mark.slow
def test_the_failure_stays_the_same() -> None:
    failure = failure_of(mlp(), 60.0, on_modules=preload)
    assert failure is not None and failure.step == "shardopt-split-microbatches"
    left, _ = searched(SameFailure(failure, 60.0))
    assert left.passes == (SPLIT,) and left.size.operations <= 6
    again = failure_of(left, 60.0)
    assert again is not None and again.is_like(failure)


@pytest.mark.parametrize(
    "message",
    [
        "expected a batch that divides into num-microbatches=3, found extent 8 of argument 2; its "
        "divisors are 1, 2, 4, 8",
        "expected a batch that divides into num-microbatches=3, found extent 1 of argument 0; its "
        "divisors are 1\n  with another line",
    ],
)
def test_numbers_do_not_tell_failures_apart(message: str) -> None:
    other = message.replace("extent 8", "extent 512").replace("1, 2, 4, 8", "1, 512")
    assert core_of(message) == core_of(other)
    assert core_of(message) != core_of(message.replace("batch", "mesh"))


def test_names_and_types_do_not_tell_failures_apart() -> None:
    assert core_of("'%12' of @main has type tensor<4x8xf32>, not !mpmd.mesh_tensor<\"m\">") == (
        core_of("'%3' of @f_1 has type tensor<f32>, not !mpmd.mesh_tensor<\"other\">")
    )
    one = Failure("bug", "cse", "KeyError: 3", "solve")
    assert one.is_like(Failure("bug", "cse", "KeyError: 17", "solve"))
    assert not one.is_like(Failure("bug", "cse", "KeyError: 3", "build"))
    assert not one.is_like(Failure("crash", "cse", "KeyError: 3", "solve"))


def test_children_that_crash_hang_or_raise() -> None:
    def crash(write: Callable[[bytes], None]) -> None:
        write(b"begun")
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(write: Callable[[bytes], None]) -> None:
        write(b"begun")
        time.sleep(60)

    def raises(write: Callable[[bytes], None]) -> None:
        raise KeyError("nobody hears")

    crashed = isolated(crash, 10.0)
    assert (crashed.output, crashed.signal, crashed.normally) == (b"begun", signal.SIGSEGV, False)
    started = time.monotonic()
    hung = isolated(hang, 0.3)
    assert hung.timed_out and hung.output == b"begun" and time.monotonic() - started < 10
    assert isolated(raises, 10.0).output == b""
    long = isolated(lambda write: write(b"x" * 1_000_000), 10.0)
    assert len(long.output) == 1_000_000 and long.normally


class _Breaks:
    """A rewrite that ends its process at one place, and takes an operation at the others."""

    name = "breaks"
    places = DropOps(("argument",)).places

    def apply(self, subject: Subject, chosen: range) -> None:
        if 0 in chosen:
            os.kill(os.getpid(), signal.SIGABRT)
        DropOps(("argument",)).apply(subject, chosen)


def test_a_rewrite_that_crashes_costs_a_trial() -> None:
    left = Search(lambda each: True, (_Breaks(),), 60.0).run(mlp())
    assert 0 < left.size.operations < mlp().size.operations


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("import sys; sys.exit('tanh' not in open(sys.argv[1]).read())", 0),
        ("import os, sys; 'tanh' in open(sys.argv[1]).read() and os.kill(os.getpid(), 11)", 139),
        ("import sys, time; 'tanh' in open(sys.argv[1]).read() and time.sleep(60)", 124),
    ],
    ids=["exit", "crash", "hang"],
)
def test_commands(script: str, status: int) -> None:
    seconds = 1.0 if status == 124 else 30.0
    test = CommandTest((sys.executable, "-S", "-c", script), seconds, status)
    assert test(mlp())
    assert not test(Subject(load_module(b"module {}", make_context()), None).candidate())
    printing = CommandTest(("cat", "{}"), 30.0, 0, re.compile("stablehlo.t[a-z]nh"))
    assert printing(mlp()) and "tanh" in printing.outcome(mlp()).output


# ---- the command ----


@pytest.fixture
def reproducer(tmp_path: Path) -> Path:
    path = tmp_path / "failure.mlir"
    path.write_text(MLP.read_text() + footer(Reproduction(pipeline_text(FAILING))))
    return path


def _reduced(socket: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*client_command(socket, "shardopt"), "reduce", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_the_command_leaves_a_reproducer(reproducer: Path, warm_socket: str) -> None:
    before = reproducer.read_text()
    printed = _reduced(warm_socket, reproducer)
    target = reproducer.with_suffix(".reduced.mlir")
    assert f"shardopt-opt {target} --run-reproducer" in printed.stdout
    assert "looking for: error in shardopt-split-microbatches" in printed.stderr
    assert SPLIT in target.read_text() and "cse" not in target.read_text()
    assert reproducer.read_text() == before


def test_the_command_with_a_test_and_no_pipeline(tmp_path: Path, warm_socket: str) -> None:
    target = tmp_path / "small.mlir"
    printed = _reduced(warm_socket, MLP, "--test", "grep -q stablehlo.tanh", "-o", target)
    text = target.read_text()
    assert text.count("stablehlo.") == 2 and "mlir_reproducer" not in text
    assert "32 operations" in printed.stdout


def test_limits_keep_the_best_so_far(reproducer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reduce", str(reproducer), "--trials", "6"]) == 0
    assert ": 6 trials" in capsys.readouterr().out
    target = reproducer.with_suffix(".reduced.mlir")
    assert "loc(" not in target.read_text()  # the first reduction helped


def test_an_interrupt_keeps_the_best_so_far(
    reproducer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(self: SameFailure, candidate: Candidate) -> bool:
        calls.append(candidate)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(SameFailure, "__call__", interrupted)
    assert main(["reduce", str(reproducer)]) == 128 + signal.SIGINT
    target = reproducer.with_suffix(".reduced.mlir")
    assert target.read_text() == calls[1].file_text
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "failure.mlir"], "expected an output beside the input"),
        (["-o", "none/left.mlir"], "its directory does not exist"),
        (["--test", "false"], "the input is not interesting: --test ended with 1, expected 0"),
        (["--test", "no-such-command"], "expected a command, found 'no-such-command'"),
        (["--test", "cat", "--match", "nothing like it"], "--match is not in what --test prints"),
        (["--match", "nothing like it"], "--match is not in 'expected a batch that divides"),
        (["--match", "("], "--match: no regular expression"),
        (["--pass-pipeline", "builtin.module(cse)"], "its pipeline succeeds"),
    ],
)
def test_what_cannot_be_reduced(
    arguments: list[str],
    message: str,
    reproducer: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(reproducer.parent)
    before = reproducer.read_text()
    assert main(["reduce", reproducer.name, *arguments]) == 1
    assert message in capsys.readouterr().err and reproducer.read_text() == before
    assert not reproducer.with_suffix(".reduced.mlir").exists()

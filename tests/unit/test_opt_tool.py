"""The driver as a function: exit codes, what reaches which stream, and that failures leave no file."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardopt.passes.registry import PASSES
from shardopt.pipeline.phases import PHASES, When
from shardopt.tools import opt

TEXT = """\
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""

# A generous limit for a machine under load; the help takes 0.04 s on an idle one.
HELP_SECONDS = 0.5


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.mlir"
    path.write_text(TEXT)
    return str(path)


def test_success_writes_the_module(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.mlir"
    assert opt.main([source, "--cse", "-o", str(target)]) == 0
    assert target.read_text().count("stablehlo.add") == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nope"],
        ["--pass-pipeline=builtin.module(cse"],
        ["--canonicalize=depth=1"],
        ["--to=nowhere"],
        ["--phase-options=a=1", "--cse"],
        ["--cse", "--pass-pipeline=builtin.module(cse)"],
        ["--cse", "--mlir-print-ir-after=canonicalize"],
        ["--from=import", "--to=import", "--phase-options=colour=1"],
    ],
)
def test_mistakes_exit_with_1_and_leave_no_file(
    source: str, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.mlir"
    assert opt.main([source, "-o", str(target), *arguments]) == 1
    assert not target.exists()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("shardopt-opt: error: ")


@pytest.mark.parametrize("arguments", [["--verify-each=maybe"], ["a.mlir", "b.mlir"], ["-o"], ["-x"]])
def test_wrong_usage_exits_with_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        opt.main(arguments)
    assert caught.value.code == 1
    assert "shardopt-opt: error: " in capsys.readouterr().err


def test_a_bug_exits_with_2_and_a_traceback(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyError("stage")

    monkeypatch.setattr("shardopt.pipeline.manager.run_native", crash)
    target = tmp_path / "out.mlir"
    assert opt.main([source, "--cse", "-o", str(target)]) == 2
    assert not target.exists()
    errors = capsys.readouterr().err
    assert "KeyError: 'stage'" in errors and "while running cse" in errors
    assert errors.rstrip().endswith("is a bug in shardopt, not in the input")


def test_flags_keep_their_order_and_their_options() -> None:
    argv = ["in.mlir", "--shardopt-outline-stages=num-stages=2 schedule=1f1b", "-o", "out", "--cse", "--emit-bytecode"]
    known, flags = opt.split_pass_flags(opt.build_parser(), argv)
    assert known == ("in.mlir", "-o", "out", "--emit-bytecode")
    assert flags == (
        opt.PassFlag("shardopt-outline-stages", "num-stages=2 schedule=1f1b"),
        opt.PassFlag("cse", ""),
    )


def test_remarks_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    from shardopt.ir.diagnostics import Diagnostic

    remark, other = Diagnostic("remark", "is replicated", kind="no-rule"), Diagnostic("remark", "is long", kind="loop")
    warning = Diagnostic("warning", "is slow")
    for kinds, shown in {
        "": ["is slow"],
        "loop": ["is long", "is slow"],
        "all": ["is replicated", "is long", "is slow"],
    }.items():
        for diagnostic in (remark, other, warning):
            opt.message_printer(kinds)(diagnostic)
        lines = capsys.readouterr().err.splitlines()
        assert [next(text for text in shown if text in line) for line in lines] == shown


def test_every_pass_belongs_to_a_phase_and_every_phase_ends_verified() -> None:
    used = set()
    for phase in PHASES:
        steps = [part for step in phase.steps for part in (step.steps if isinstance(step, When) else (step,))]
        used.update(steps)
        assert steps[-1].startswith("shardopt-verify-")
    assert sorted(set(PASSES) - used) == []


def test_help_is_immediate() -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run = subprocess.run([sys.executable, "-m", "shardopt.tools.opt", "--help"], capture_output=True, text=True)
        times.append(time.perf_counter() - started)
        assert run.returncode == 0 and "--pass-pipeline" in run.stdout
    assert min(times) < HELP_SECONDS

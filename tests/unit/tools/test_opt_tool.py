"""The driver as a function: exit codes, what reaches which stream, and that failures leave no
file."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardopt.passes.options import option_specs
from shardopt.passes.registry import PASSES, pass_class
from shardopt.pipeline.phases import PHASES, When
from shardopt.tools import opt
from shardopt.tools.catalogue import pass_info
from shardopt.tools.opt.options import (
    PassFlag,
    build_parser,
    in_one_spelling,
    split_pass_flags,
)
from shardopt.tools.supervisor import Crash, Trace, supervised

TEXT = """\
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.mlir"
    path.write_text(TEXT)
    return str(path)


def test_success_writes_the_module(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.mlir"
    assert opt.main([source, "--cse", "-o", str(target)]) == 0
    assert target.read_text().count("stablehlo.add") == 1
    assert capsys.readouterr() == ("", "")


UNHEARD = """
import sys
from shardopt.support.errors import UserError
from shardopt.tools.common import run_tool

def body():
    raise {error}("what happened")

sys.exit(run_tool("tool", body))
"""


@pytest.mark.parametrize("error, code", [("UserError", 1), ("KeyError", 2)])
def test_an_error_into_a_pipe_that_nobody_reads_keeps_its_code(error: str, code: int) -> None:
    nobody, pipe = os.pipe()
    os.close(nobody)
    program = UNHEARD.format(error=error)
    assert subprocess.run([sys.executable, "-c", program], stderr=pipe).returncode == code
    os.close(pipe)


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
def test_errors_exit_with_1_and_leave_no_file(
    source: str, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.mlir"
    assert opt.main([source, "-o", str(target), *arguments]) == 1
    assert not target.exists()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("shardopt-opt: error: ")


@pytest.mark.parametrize(
    "arguments", [["--verify-each=maybe"], ["a.mlir", "b.mlir"], ["-o"], ["-x"]]
)
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
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = tmp_path / "out.mlir"
    assert opt.main([source, "--cse", "-o", str(target)]) == 2
    assert not target.exists()
    errors = capsys.readouterr().err
    assert "KeyError: 'stage'" in errors and "while running cse" in errors
    assert "is a bug in shardopt, not in the input" in errors
    reproducer = rerun_file(errors)
    monkeypatch.undo()
    assert opt.main([str(reproducer), "--run-reproducer", "-o", str(target)]) == 0
    assert target.read_text().count("stablehlo.add") == 1


def rerun_file(errors: str) -> Path:
    """The reproducer in the last line that the tool printed."""
    match = re.search(
        r"note: to run cse again: shardopt-opt (\S+) --run-reproducer$", errors.rstrip()
    )
    assert match is not None
    return Path(match[1])


def test_a_bug_in_one_part_does_not_stop_the_others(
    source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardopt.ir import native

    def crash_on_b(module: object, *rest: object) -> None:
        if "@b" in str(module):
            raise KeyError("stage")
        native.run_native(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("shardopt.pipeline.manager.run_native", crash_on_b)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parts = "\n// -----\n".join(f"func.func @{name}() {{ return }}" for name in "abc")
    Path(source).write_text(parts)
    assert opt.main([source, "--cse", "--split-input-file"]) == 2
    captured = capfd.readouterr()
    assert "@a" in captured.out and "@c" in captured.out and "@b" not in captured.out
    assert "@b" in rerun_file(captured.err).read_text()


def test_a_crash_of_a_native_pass_is_a_bug_with_a_reproducer(
    source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardopt.ir import native

    def abort_in_cse(module: object, pipeline: str, *rest: object) -> None:
        if "cse" in pipeline:
            faulthandler.disable()  # pytest would print stacks
            os.kill(os.getpid(), signal.SIGSEGV)
        native.run_native(module, pipeline, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("shardopt.pipeline.manager.run_native", abort_in_cse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = tmp_path / "out.mlir"
    monkeypatch.setattr(
        sys, "argv", ["shardopt-opt", source, "--canonicalize", "--cse", "-o", str(target)]
    )
    assert opt.main() == 2
    assert not target.exists()
    errors = capfd.readouterr().err
    assert "internal error: C++ code crashed (SIGSEGV, Segmentation fault) in step 'pass'" in errors
    assert 'pipeline: "builtin.module(cse)"' in rerun_file(errors).read_text()


def test_supervision_passes_exit_codes_and_traces_on() -> None:
    seen: list[Crash] = []

    def crash(trace: Trace) -> int:
        trace.note(doing="read", part=1)
        trace.note(doing="pass")
        faulthandler.disable()  # pytest would print stacks
        os.kill(os.getpid(), signal.SIGABRT)
        return 0

    def on_crash(details: Crash) -> int:
        seen.append(details)
        return 7

    assert supervised(lambda _: 3, on_crash) == 3 and not seen
    assert supervised(crash, on_crash) == 7
    assert seen == [Crash(signal.SIGABRT, {"doing": "pass", "part": 1})]
    assert (
        supervised(lambda _: os.kill(os.getpid(), signal.SIGKILL) or 0, on_crash)
        == 128 + signal.SIGKILL
    )


def test_passes_are_described_from_source_as_their_classes_say() -> None:
    for name in PASSES:
        cls, info = pass_class(name), pass_info(name)
        assert (info.summary, info.anchor, info.options) == (
            cls.summary,
            cls.anchor,
            option_specs(cls),
        )


def test_no_flag_of_the_tool_is_the_name_of_a_pass() -> None:
    from shardopt.ir.native import is_native_pass

    names = [name[2:] for name in build_parser().option_strings if name.startswith("--")]
    assert [name for name in names if name in PASSES or is_native_pass(name)] == []


def test_flags_keep_their_order_and_their_options() -> None:
    argv = [
        "in.mlir",
        "--shardopt-choose-stages=num-stages=2 schedule=1f1b",
        "-o",
        "out",
        "--cse",
        "--emit-bytecode",
    ]
    known, flags = split_pass_flags(build_parser(), argv)
    assert known == ("in.mlir", "-o", "out", "--emit-bytecode")
    assert flags == (
        PassFlag("shardopt-choose-stages", "num-stages=2 schedule=1f1b"),
        PassFlag("cse", ""),
    )


@pytest.mark.parametrize(
    ("written", "read"),
    {
        "in.mlir -cse": ["in.mlir", "--cse"],
        "-canonicalize=max-iterations=1": ["--canonicalize=max-iterations=1"],
        "-split-input-file in.mlir": ["--split-input-file=// -----", "in.mlir"],
        "--split-input-file=#### in.mlir": ["--split-input-file=####", "in.mlir"],
        "--remarks in.mlir": ["--remarks=all", "in.mlir"],
        "-verify-diagnostics - -o out": ["--verify-diagnostics=all", "-", "-o=out"],
        "--pass-pipeline any(cse) -": ["--pass-pipeline=any(cse)", "-"],
        "-verify-each=0 --verify-each": ["--verify-each=0", "--verify-each=true"],
        "--emit-bytecode=true": ["--emit-bytecode"],
        "--emit-bytecode -emit-bytecode=0": [],
        "-mlir-timing=FALSE --mlir-timing=1": ["--mlir-timing"],
        "-o": ["-o"],
        "-h": ["-h"],
        "--cse -- -strange.mlir": ["--cse", "--", "-strange.mlir"],
    }.items(),
)
def test_arguments_are_read_as_by_llvm(written: str, read: list[str]) -> None:
    assert in_one_spelling(build_parser(), written.split()) == read


def test_a_flag_is_true_or_false(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        opt.main(["--mlir-timing=maybe"])
    assert ended.value.code == 1
    expected = "argument --mlir-timing: expected true, false, 1 or 0, found 'maybe'"
    assert expected in capsys.readouterr().err


def test_run_lines_of_mlir_opt_work_as_they_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file behind a flag with an optional value is read: an empty module would pass any test."""
    path = tmp_path / "in.mlir"
    path.write_text(f"{TEXT}// -----\n{TEXT}")
    for line in ("-split-input-file {} -cse", "-cse --verify-each=false --split-input-file {}"):
        assert opt.main(line.format(path).split()) == 0
        output = capsys.readouterr().out
        assert output.count("func.func @main") == 2 and output.count("stablehlo.add") == 2


def test_remarks_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    from shardopt.ir.diagnostics import Diagnostic
    from shardopt.tools.opt.reporter import Reporter

    remark = Diagnostic("remark", "is replicated", kind="no-sharding-rule", category="missed")
    other = Diagnostic("remark", "is long", kind="dynamic-loop", category="analysis")
    warning = Diagnostic("warning", "is slow")
    for kinds, shown in {
        "": ["is slow"],
        "dynamic-loop": ["is long", "is slow"],
        "missed": ["is replicated", "is slow"],
        "passed,analysis": ["is long", "is slow"],
        "all": ["is replicated", "is long", "is slow"],
    }.items():
        options = build_parser().parse_args([f"--remarks={kinds}"])
        for diagnostic in (remark, other, warning):
            Reporter(options, "in.mlir")(diagnostic)
        lines = capsys.readouterr().err.splitlines()
        assert [next(text for text in shown if text in line) for line in lines] == shown


def test_every_pass_belongs_to_a_phase_and_every_phase_ends_verified() -> None:
    used = set()
    for phase in PHASES:
        steps = [
            part
            for step in phase.steps
            for part in (step.steps if isinstance(step, When) else (step,))
        ]
        used.update(steps)
        assert steps[-1].startswith("shardopt-verify-")
    # Programs of others come without our phases; `shardopt run` puts them on meshes.
    assert sorted(set(PASSES) - used) == ["shardopt-assign-meshes"]


def test_help_names_passes_and_their_options() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shardopt.tools.opt", "--help"], capture_output=True, text=True
    )
    assert (
        run.returncode == 0 and "--pass-pipeline" in run.stdout and "num-stages (int" in run.stdout
    )

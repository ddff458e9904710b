"""Lit tests of others are counted by what made them fail; the wheel's C++ alone is the control."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tools.upstream_lit import main

CALL = """\
// RUN: mlir-opt {flags} %s {pipe}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {{
  // CHECK: {check}
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}}
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""
PIPE = "| FileCheck %s"
# name -> (flags, pipe, check)
TESTS = {
    "passes": ("-cse", PIPE, "stablehlo.negate"),
    "other-words": ("-cse -canonicalize", PIPE, "stablehlo.minus"),
    "no-pass": ("-no-such-pass", PIPE, "stablehlo.negate"),
    "no-option": ("-sdy-inline-meshes='spin=1'", PIPE, "stablehlo.negate"),
}


def test_failures_are_counted_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, TESTS)
    assert main([str(tmp_path), "--show"]) == 0
    printed = capsys.readouterr().out
    assert "other-words.mlir: the wheel's C++ alone does the same" in printed
    assert "no-pass.mlir: no such pass or option: no-such-pass" in printed
    assert "no-option.mlir: no such pass or option: sdy-inline-meshes: 'spin'" in printed
    assert "passes.mlir" not in printed


def test_what_shardopt_opt_alone_does_is_no_difference_of_the_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"ours": ("-shardopt-inline-calls", PIPE, "call @f")})
    assert main([str(tmp_path), "--show"]) == 1
    assert "ours.mlir: prints something else" in capsys.readouterr().out


def write(folder: Path, tests: dict[str, tuple[str, str, str]]) -> None:
    for name, (flags, pipe, check) in tests.items():
        text = CALL.format(flags=flags, pipe=pipe, check=check)
        (folder / f"{name}.mlir").write_text(text)

"""Programs in lit tests of others run, or are counted by what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tools.upstream_programs import main

TOPOLOGY = 'attributes {topology = #mpmd.topology<<"m0": <["x"=1]>>, <"m1": <["x"=1]>>>}'
T = "tensor<4xf32>"
TEXT = f"""
func.func @sum(%x: {T}, %y: {T}) -> {T} {TOPOLOGY} {{
  %0 = mpmd.named_computation<"f"> (%x) (%a: {T}) {{
    %r = stablehlo.tanh %a : {T}
    mpmd.return %r : {T}
  }} : ({T}) -> {T}
  %1 = mpmd.reduce<add> %0, %y, %x : ({T}, {T}, {T}) -> {T}
  return %1 : {T}
}}
func.func private @called(%x: {T}) -> {T} {TOPOLOGY} {{
  return %x : {T}
}}
// -----
func.func @unknown(%x: {T}) -> {T} {TOPOLOGY} {{
  %0 = stablehlo.custom_call @nobody(%x) : ({T}) -> {T}
  return %0 : {T}
}}
// -----
func.func @does_not_parse(
"""


def test_programs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.mlir").write_text(TEXT)
    assert main([str(tmp_path), "--show"]) == 0
    shown, table = capsys.readouterr().out.split("┏", 1)
    assert shown.startswith("a.mlir: 1 @unknown: refused: … is a custom call that neither XLA")
    assert len(shown.splitlines()) == 1
    assert [cell.strip() for cell in table.splitlines()[3].split("│")[2:5]] == ["1", "2", "1"]

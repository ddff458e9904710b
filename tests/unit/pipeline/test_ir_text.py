"""Broken lines read back as what they were, and diffs show what changed and nothing else."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.line_breaking import broken
from shardopt.ir.printing import PLAIN, PrintStyle
from shardopt.pipeline.ir_diff import ir_diff

NESTED = """\
module attributes {a.x = {b = [1, 2, 3], c = "a, {b", d = array<i64: 1, 2>}, mhlo.s = "\\22, [", a.z} {
  sdy.mesh @m = <["x"=2, "y"=4]>
  func.func @f(%a: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>}, %b: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>) {
    %c = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>
    %d:2 = stablehlo.while(%i = %a, %j = %c) : tensor<4x8xf32>, tensor<8xf32>
    cond {
      %t = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do {
      stablehlo.return %i, %j : tensor<4x8xf32>, tensor<8xf32>
    }
    %s = stablehlo.slice %d#1 [0:8:2] : (tensor<8xf32>) -> tensor<4xf32>
    return %d#0, %d#1 : tensor<4x8xf32>, tensor<8xf32>
  }
}
"""


def test_any_width_reads_back() -> None:
    context = make_context()
    module = ir.Module.parse(NESTED, context)
    whole = PLAIN.text(module.operation)
    for width in (1, 20, 40, 80, 120, 1000):
        text = PrintStyle(width=width).text(module.operation)
        assert PLAIN.text(ir.Module.parse(text, context).operation) == whole
        assert (text == whole) == (width == 1000)


def test_strings_and_types_stay_whole() -> None:
    lines = broken(NESTED, 40).split("\n")
    assert '    c = "a, {b",' in lines and '  mhlo.s = "\\22, [",' in lines
    assert any(line.endswith('#sdy.sharding<@m, [{"x"}, {"y"}]>') for line in lines)


@pytest.mark.parametrize("depth", range(1, 6))
def test_types_in_types_stay_whole(depth: int) -> None:
    """Also where a function type in one has an arrow, and a string a bracket."""
    kind = '!t<(i1) -> i2, "a>, b", [c, d]' + ", !t<e, {f, g}" * (depth - 1) + ">" * depth
    text = f"func.func @f(%a: {kind}, %b: {kind})"
    assert broken(text, 20) == f"func.func @f(\n  %a: {kind},\n  %b: {kind}\n)"


OLD = """\
module {
  func.func @f(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.sine %arg0 : tensor<4xf32>
    %1 = stablehlo.tanh %arg0 : tensor<4xf32>
    %2 = stablehlo.subtract %0, %1 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func @g(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.cosine %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def changed(new: str) -> list[str]:
    return [line for line in ir_diff(OLD, new) if line[0] in "+-"]


def test_new_numbers_alone_are_no_change() -> None:
    renumbered = OLD.replace("%2", "%9").replace("%1 ", "%7 ").replace("%1:", "%7:")
    renumbered = renumbered.replace("%0, %1", "%0, %7")
    assert renumbered != OLD and ir_diff(OLD, renumbered) == []


def test_an_operation_in_front_changes_one_line() -> None:
    new = OLD.replace("%2", "%3").replace("%0, %1", "%1, %2").replace("%1 = ", "%2 = ")
    new = new.replace(
        "%0 = stablehlo.sine %arg0",
        "%0 = stablehlo.abs %arg0 : tensor<4xf32>\n    %1 = stablehlo.sine %arg0",
    )
    assert changed(new) == ["+    %0+ = stablehlo.abs %arg0 : tensor<4xf32>"]


def test_swapped_operands_are_a_change() -> None:
    assert changed(OLD.replace("%0, %1", "%1, %0")) == [
        "-    %2 = stablehlo.subtract %0, %1 : tensor<4xf32>",
        "+    %2 = stablehlo.subtract %1, %0 : tensor<4xf32>",
    ]


def test_names_belong_to_their_function() -> None:
    """What @f calls %0 says nothing of @g, where the value that is returned keeps its name."""
    assert changed(OLD.replace("cosine %arg0", "cosine %arg0 {a}")) == [
        "-    %0 = stablehlo.cosine %arg0 : tensor<4xf32>",
        "+    %0 = stablehlo.cosine %arg0 {a} : tensor<4xf32>",
    ]

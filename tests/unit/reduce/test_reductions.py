"""What every reduction makes of modules: nothing that verification would not find, and what it is
for."""

from __future__ import annotations

from pathlib import Path

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.reduce.attribute_reductions import DropAttributeNames
from shardopt.reduce.candidate import Candidate, Subject, subject_of
from shardopt.reduce.op_reductions import DropFunctions, DropOps, HoistRegions, ShrinkConstants
from shardopt.reduce.pipeline_reductions import DropPasses, DropPassOptions, RunPasses
from shardopt.reduce.reductions import REDUCTIONS
from shardopt.reduce.search import Reduction
from shardopt.reduce.shape_reductions import DivideShapes
from shardopt.reduce.signature_reductions import DropArguments, DropCarried, DropResults

MLP = Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir"
PASSES = (
    "shardopt-inline-calls",
    "func.func(cse)",
    "shardopt-unroll-loops{max-iterations=4 only=all}",
)

STEP = """
func.func public @main(%w: tensor<4x8xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<8x4xf32>)
    -> (tensor<f32>, tensor<4x8xf32>) {
  %c = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {mhlo.sharding = "{replicated}"}
      : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %flat = stablehlo.reshape %y : (tensor<8x8xf32>) -> tensor<64xf32>
  %part = stablehlo.slice %flat [0:32] : (tensor<64xf32>) -> tensor<32xf32>
  %sum = stablehlo.reduce(%part init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<32xf32>, tensor<f32>) -> tensor<f32>
  %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
  %new:2 = func.call @update(%w, %b) : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
  return %sum, %new#0 : tensor<f32>, tensor<4x8xf32>
}
func.func private @update(%w: tensor<4x8xf32>, %g: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %r = stablehlo.subtract %w, %g : tensor<4x8xf32>
  return %r, %g : tensor<4x8xf32>, tensor<4x8xf32>
}
"""
LOOP = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %a = %x, %b = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.tanh %b : tensor<4xf32>
    %s = stablehlo.add %a, %t : tensor<4xf32>
    stablehlo.return %next, %s, %t : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}
"""


def subject(text: str, passes: tuple[str, ...] | None = None) -> Subject:
    return Subject(ir.Module.parse(text, make_context()), passes, keeps_locations=False)


def reduced(
    text: str, reduction: Reduction, chosen: range, passes: tuple[str, ...] | None = None
) -> Candidate:
    made = subject(text, passes)
    with made.module.context, ir.Location.unknown():
        reduction.apply(made, chosen)
    return made.candidate()


def all_of(text: str, reduction: Reduction) -> range:
    return range(reduction.places(subject(text)))


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=[each.name for each in REDUCTIONS])
@pytest.mark.parametrize("text", [MLP.read_text(), STEP, LOOP], ids=["mlp", "step", "loop"])
def test_single_places_leave_what_reads_back(text: str, reduction: Reduction) -> None:
    """One place of each kind at a time: what verifies is no larger for most, and none ends the
    process."""
    first = subject(text, PASSES).candidate()
    for place in range(reduction.places(subject_of(first))):
        made = subject_of(first)
        try:
            with made.module.context, ir.Location.unknown():
                reduction.apply(made, range(place, place + 1))
            candidate = made.candidate()
        except (DiagnosedError, ValueError, KeyError, ir.MLIRError):
            continue
        assert subject_of(candidate).candidate() == candidate


def test_functions_go_with_their_calls() -> None:
    left = reduced(STEP, DropFunctions(), range(1, 2)).text
    assert "@update" not in left and "call" not in left
    assert "tensor<4x8xf32>" in left.partition("return")[2]


def test_operations_go_with_what_only_they_read() -> None:
    made = subject(STEP)
    names = ["dot_general", "reshape", "slice", "reduce", "add", "broadcast_in_dim", "call"]
    reduction = DropOps(("constant", "argument", "operand"))
    assert reduction.places(made) == len(names) + 1  # and the subtraction
    left = reduced(STEP, reduction, range(2, 3)).text  # the slice
    assert not any(name in left for name in ("slice", "reshape", "dot_general"))
    assert "reduce(" in left and "call @update" in left


def test_new_arguments_stand_behind_the_old_ones() -> None:
    left = reduced(STEP, DropOps(("argument", "constant", "operand")), range(2, 3)).text
    head = left[left.index("@main(") : left.index("{\n", left.index("@main("))]
    assert "tf.aliasing_output = 1" in head and head.rstrip().count("%arg") == 3
    assert "%arg2: tensor<32xf32>)" in head


def test_results_take_aliases_and_numbers_along() -> None:
    without_loss = reduced(STEP, DropResults(), range(1)).text
    assert "tf.aliasing_output = 0" in without_loss and "dot_general" not in without_loss
    without_weight = reduced(STEP, DropResults(), range(1, 2)).text
    assert "aliasing" not in without_weight and "dot_general" in without_weight
    kept = reduced(STEP, DropResults(keeps_unread=True), range(1)).text
    assert "dot_general" in kept and "-> tensor<4x8xf32>" in kept


def test_a_call_has_the_results_and_arguments_that_are_left() -> None:
    made = reduced(STEP, DropResults(), range(3, 4)).text
    assert "call @update(%arg0, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>" in (
        made.replace("%5", "%0").replace("%4", "%0")
    )
    made = reduced(STEP, DropArguments(), range(3, 4)).text
    assert "@update(%arg0: tensor<4x8xf32>) ->" in made and "call @update(%arg0) :" in made


def test_what_a_loop_carries() -> None:
    left = reduced(LOOP, DropCarried(), range(2, 3)).text
    assert left.count("iterArg") and "stablehlo.while" in left and "%r:3" not in left
    assert "%0:2 = stablehlo.while" in left and "tanh %arg0" in left


def test_bodies_take_the_place_of_loops_and_calls() -> None:
    left = reduced(LOOP, HoistRegions(), all_of(LOOP, HoistRegions())).text
    assert "while" not in left and "tanh" in left
    left = reduced(STEP, HoistRegions(), all_of(STEP, HoistRegions())).text
    assert "call" not in left and "subtract" in left


def test_constants_become_zero() -> None:
    left = reduced(STEP, ShrinkConstants(), all_of(STEP, ShrinkConstants())).text
    assert "dense<0.000000e+00> : tensor<8xf32>" in left and "[1.0" not in left


def test_attributes_of_a_name_go_everywhere() -> None:
    reduction = DropAttributeNames()
    for place in all_of(STEP, reduction):
        try:
            left = reduced(STEP, reduction, range(place, place + 1)).text
        except DiagnosedError:
            continue
        if "mhlo.sharding" not in left:
            assert "dot_general" in left and "tf.aliasing_output" in left
            return
    raise AssertionError("no place drops mhlo.sharding")


def test_factors_leave_reshapes_and_slices_valid() -> None:
    """8x4 by 4x8 to 8x8, which is 64 elements, half of which are sliced."""
    flat = STEP.replace("[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]", "0.0")
    assert len(all_of(flat, DivideShapes("primes"))) == 1
    left = reduced(flat, DivideShapes("primes"), range(1)).text
    assert "(tensor<1x1xf32>) -> tensor<1xf32>" in left and "[0:1] : (tensor<1xf32>)" in left
    assert len(all_of(flat, DivideShapes("extents"))) == len([64, 32, 8, 4])
    with pytest.raises(ir.MLIRError):  # 2x2 are not 64 / 4 / 4 / 4 elements
        reduced(flat, DivideShapes("extents"), range(3, 4))
    left = reduced(LOOP, DivideShapes("steps"), range(1)).text
    assert "tensor<2xf32>" in left and "tensor<4xf32>" not in left


def test_passes_and_their_options_go_one_by_one() -> None:
    assert reduced(LOOP, DropPasses(), range(2), PASSES).passes == PASSES[2:]
    left = reduced(LOOP, DropPassOptions(), range(1, 2), PASSES).passes
    assert left == (*PASSES[:2], "shardopt-unroll-loops{max-iterations=4}")
    run = reduced(STEP, RunPasses(), range(1), PASSES)
    assert run.passes == PASSES[1:] and "call" not in run.text
    with pytest.raises(ValueError, match="behind those before it"):
        reduced(STEP, RunPasses(), range(1, 2), PASSES)

"""What nobody reads is not made, and a function keeps what takes an argument's buffer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.forms.exported_form import keep_results
from shardopt.ir.context import make_context
from shardopt.ir.io import module_bytecode
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import Free, Program, Run
from shardopt.runtime.program.unused_results import drop_unused_results

_T = '!mpmd.mesh_tensor<"m", tensor<4xf32>, sharding=<@m, [{}]>>'
_SHARDING = 'mhlo.sharding = "{replicated}"'

# @make gives zeros that nobody reads, a sum that is read, and a copy in the buffer of its argument;
# @waste gives nothing that is read.
STEP = f"""
func.func public @main(%s: {_T} {{tf.aliasing_output = 0 : i32}}, %x: {_T}) -> ({_T}, {_T})
    attributes {{topology = #mpmd.topology<<"m" : <["x"=1]>>>}} {{
  %0:3 = mpmd.fragment_call<mesh="m", origin=["a"]> @make(%s, %x)
      {{shardopt.kind = "prologue", shardopt.stage = 0 : i64}} : ({_T}, {_T}) -> ({_T}, {_T}, {_T})
  %1 = mpmd.fragment_call<mesh="m", origin=["b"]> @waste(%x)
      {{shardopt.kind = "update", shardopt.stage = 0 : i64}} : ({_T}) -> {_T}
  return %0#2, %0#1 : {_T}, {_T}
}}
func.func private @make(%s: tensor<4xf32> {{{_SHARDING}, tf.aliasing_output = 2 : i32}},
    %x: tensor<4xf32> {{{_SHARDING}}}) -> (tensor<4xf32> {{{_SHARDING}}},
    tensor<4xf32> {{{_SHARDING}}}, tensor<4xf32> {{{_SHARDING}}})
    attributes {{mesh_shape = #sdy.mesh<["x"=1]>}} {{
  %z = stablehlo.constant dense<0.0> : tensor<4xf32>
  %r = stablehlo.add %s, %x : tensor<4xf32>
  %t = stablehlo.multiply %s, %x : tensor<4xf32>
  return %z, %r, %t : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}}
func.func private @waste(%x: tensor<4xf32> {{{_SHARDING}}}) -> (tensor<4xf32> {{{_SHARDING}}})
    attributes {{mesh_shape = #sdy.mesh<["x"=1]>}} {{
  %r = stablehlo.negate %x : tensor<4xf32>
  return %r : tensor<4xf32>
}}
"""


def _prepared(text: str) -> Program:
    with make_context():
        return prepare(ir.Module.parse(text))


def test_what_nobody_reads_is_not_made() -> None:
    program = _prepared(STEP)
    assert not check_program(program)
    (part,) = program.meshes
    (run,) = (each for each in part.instructions if isinstance(each, Run))
    assert (run.function, len(run.outputs)) == ("make", 2)
    assert [each.name for each in part.functions] == ["make"]
    assert not any(isinstance(each, Free) for each in part.instructions)


def test_state_that_is_nobodys_result_is_made() -> None:
    """As older versions of weights are."""
    program = _prepared(STEP)
    (part,) = program.meshes
    hidden = replace(part, results=part.results[1:])
    (kept,) = drop_unused_results(
        replace(program, meshes=(hidden,)), lambda bytecode, wanted: (bytecode, tuple(wanted))
    ).meshes
    assert kept.instructions == part.instructions


def test_numbers_and_state_are_as_before() -> None:
    state, x = np.arange(4, dtype=np.float32), np.full(4, 3, np.float32)
    with open_run(_prepared(STEP), checked_steps=2) as run:
        run.load([state, x])
        for _ in range(2):
            results = run.step()
            np.testing.assert_array_equal(results[1], state + x)
            state = state * x
            np.testing.assert_array_equal(results[0], state)


@pytest.mark.parametrize(
    ("wanted", "kept", "alias"), [({0}, (0, 2), 1), (set(), (2,), 0), ({0, 1}, (0, 1, 2), 2)]
)
def test_results_in_an_arguments_buffer_stay(
    wanted: set[int], kept: tuple[int, ...], alias: int
) -> None:
    text = STEP[STEP.index("func.func private @make") : STEP.index("func.func private @waste")]
    with make_context() as context:
        module = ir.Module.parse(text.replace("private @make", "public @main"))
        bytecode, numbers = keep_results(module_bytecode(module), wanted)
        after = str(ir.Module.parse(bytecode, context))
    assert numbers == kept
    assert f"tf.aliasing_output = {alias} : i32" in after
    signature = after.partition("->")[2].partition("attributes")[0]
    assert signature.count("tensor<4xf32>") == len(kept)

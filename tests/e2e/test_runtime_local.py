"""The in-process backend: numbers against numpy, state between steps, and failures that are named
and do not hang."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.runtime.backends.local import LocalBackend
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.program.instructions import MeshProgram, Program
from shardopt.runtime.reference import compare, difference, run_reference
from shardopt.runtime.run import Run
from shardopt.support.errors import UserError
from tests.e2e.exported_model import TEXT, example, expected_step, inputs, load

TOLERANCE = 1e-5

PLAIN = """
func.func public @main(
    %w: !mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>> {tf.aliasing_output = 0 : i32},
    %k: !mpmd.mesh_tensor<"m", tensor<4x4xf64>>)
    -> (!mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>,
        !mpmd.mesh_tensor<"m", tensor<4x4xf64>>)
    attributes {topology = #mpmd.topology<<"m" : <["x"=2, "y"=2]>>>} {
  %s = mpmd.transfer %k : (!mpmd.mesh_tensor<"m", tensor<4x4xf64>>)
      -> !mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>
  %r = mpmd.fragment_call<mesh="m", origin=["all"]> @add(%w, %s) {shardopt.kind = "update", shardopt.stage = 0 : i64}
      : (!mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>,
         !mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>)
      -> !mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>
  return %r, %k : !mpmd.mesh_tensor<"m", tensor<4x4xf64>, sharding=<@m, [{"y", "x"}, {}]>>,
      !mpmd.mesh_tensor<"m", tensor<4x4xf64>>
}
func.func private @add(
    %a: tensor<4x4xf64> {mhlo.sharding = "{devices=[4,1]<=[2,2]T(1,0)}", tf.aliasing_output = 0 : i32},
    %b: tensor<4x4xf64> {mhlo.sharding = "{devices=[4,1]<=[2,2]T(1,0)}"})
    -> (tensor<4x4xf64> {mhlo.sharding = "{devices=[4,1]<=[2,2]T(1,0)}"})
    attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=2]>} {
  %r = stablehlo.add %a, %b {mhlo.sharding = "{devices=[4,1]<=[2,2]T(1,0)}"} : tensor<4x4xf64>
  return %r : tensor<4x4xf64>
}
"""

REFERENCE = """
func.func public @main(%x: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<i32>) {
  %y = stablehlo.add %x, %x : tensor<3xf32>
  %m = stablehlo.add %n, %n : tensor<i32>
  return %y, %m : tensor<3xf32>, tensor<i32>
}
"""


def start(program: Program) -> Run:
    return open_run(program, checked_steps=100, quick_compile=True)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_three_steps_match_numpy(schedule: str) -> None:
    w0, w1, x, t = inputs()
    with start(example(schedule)) as run:
        run.load([w0, w1, x, t])
        for _ in range(3):
            outputs = run.step()
            expected = expected_step(w0, w1, x, t)
            assert all(row.within(TOLERANCE) for row in compare(outputs, expected))
            w0, w1 = expected[:2]


def test_a_step_works_nothing_out_about_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is the same in every step is known before the first: a set of buffers for each result
    took 6 ms of a step with 220 results."""
    with start(example()) as run:
        run.load(inputs())

        def asked(program: MeshProgram) -> frozenset[int]:
            raise AssertionError("a property of the program was worked out in a step")

        for name in ("state_buffers", "kept_buffers"):
            monkeypatch.setattr(MeshProgram, name, property(asked))
        run.step()
        run.step()


def test_inputs_are_kept_until_replaced() -> None:
    w0, w1, x, t = inputs()
    other = inputs(seed=1)[2]
    with start(example()) as run:
        run.load([w0, w1, x, t])
        first = expected_step(w0, w1, x, t)
        run.step()
        run.step({0: w0, 1: w1})
        assert run.fetch(2) == pytest.approx(first[2])
        outputs = run.step({0: w0, 1: w1, 2: other})
        assert outputs[-1] == pytest.approx(expected_step(w0, w1, other, t)[2])
        x[:] = np.nan  # the workers have copies
        assert run.step({0: w0, 1: w1})[2] == outputs[2]


def test_outputs_are_fetched_lazily() -> None:
    with start(example()) as run:
        run.load(inputs())
        first = run.step()
        loss = first[2]
        second = run.step()
        assert first[2] is loss and len(first) == 3
        with pytest.raises(
            RuntimeError, match="result 0 of step 1 was not fetched before the next step"
        ):
            first[0]
        assert [array.shape for array in second[:]] == [(8, 8), (8, 4), ()]


def test_a_run_that_is_closed_says_so() -> None:
    with start(example()) as run:
        run.load(inputs())
        outputs = run.step()
    for look in (lambda: outputs[2], run.step, lambda: run.argument(0)):
        with pytest.raises(UserError, match="the run is closed; look at results and state before"):
            look()
    run.close()


def test_one_microbatch() -> None:
    text = TEXT.replace("iterations = 4", "iterations = 1")
    for four, one in (("16x8", "4x8"), ("16x4", "4x4"), ("4x4x8", "1x4x8"), ("4x4x4", "1x4x4")):
        text = text.replace(f"<{four}x", f"<{one}x")
    w0, w1, x, t = inputs()
    with start(load(text)) as run:
        run.load([w0, w1, x[:4], t[:4]])
        rows = compare(run.step(), expected_step(w0, w1, x[:4], t[:4], microbatches=1))
        assert all(row.within(TOLERANCE) for row in rows)


def test_bfloat16_travels() -> None:
    program = load(TEXT.replace("xf32>", "xbf16>").replace("tensor<f32>", "tensor<bf16>"))
    narrow = [array.astype(ml_dtypes.bfloat16) for array in inputs()]
    with start(program) as run:
        run.load(narrow)
        loss = run.step()[2]
    assert loss.dtype == ml_dtypes.bfloat16
    assert float(loss) == pytest.approx(
        float(expected_step(*(a.astype(np.float32) for a in narrow))[2]), rel=0.1
    )


def test_one_mesh_without_a_loop() -> None:
    """A transposed sharding, a transfer inside the mesh, 64-bit values, an argument returned as it
    is."""
    w, k = np.arange(16.0).reshape(4, 4), np.full((4, 4), 1e-12)
    with start(load(PLAIN)) as run:
        run.load([w, k])
        run.step()
        outputs = run.step()
        np.testing.assert_array_equal(outputs[0], w + k + k)
        np.testing.assert_array_equal(outputs[1], k)


def test_wrong_inputs_are_refused() -> None:
    with start(example()) as run:
        with pytest.raises(UserError, match=r"expected load\(\) with all inputs"):
            run.step()
        with pytest.raises(UserError, match="expected 4 inputs, found 3"):
            run.load(inputs()[:3])
        with pytest.raises(
            UserError, match=r"input 1 'w1': expected float32\[8, 4\], found float64\[8, 4\]"
        ):
            run.load(
                [
                    each.astype(np.float64) if number == 1 else each
                    for number, each in enumerate(inputs())
                ]
            )
        run.load(inputs())
        with pytest.raises(UserError, match="argument 9 does not exist"):
            run.step({9: np.zeros(3)})
        with pytest.raises(UserError, match="result 0 does not exist"):
            run.fetch(0)
    with pytest.raises(
        UserError, match="backend 'local' knows the transports auto, nccl, found 'ray'"
    ):
        open_run(example(), transport="ray")
    with pytest.raises(UserError, match="transport 'nccl' needs platform 'gpu', found 'auto'"):
        open_run(example(), transport="nccl")
    with pytest.raises(
        UserError, match="unknown backend 'mpi': known backends are local, process, ray"
    ):
        open_run(example(), "mpi")


def test_faulty_module_is_refused_with_all_its_faults() -> None:
    with pytest.raises(UserError) as caught:
        load(
            TEXT.replace('name = "1f1b"', 'name = "x"').replace(
                "array<i64: 2, 3>", "array<i64: 1, 3>"
            )
        )
    assert "device 1 is in mesh" in str(caught.value)


@pytest.mark.parametrize("mesh", ["m0", "m1"])
def test_failure_in_a_step_names_mesh_and_instruction(mesh: str) -> None:
    """The other mesh waits for a message that never comes; it must be woken."""
    threads = threading.active_count()
    with start(example()) as run:
        run.load(inputs())
        run.step()
        backend = run._backend
        assert isinstance(backend, LocalBackend)
        name = {"m0": "stage0_bwd", "m1": "stage1_fwd"}[mesh]

        def broken() -> None:
            raise OverflowError("too hot")

        run_instruction = next(
            number
            for number, each in enumerate(backend._workers[mesh].program.instructions)
            if getattr(each, "function", "") == name
        )
        backend._workers[mesh]._actions[run_instruction] = broken
        where = rf"mesh '{mesh}', host 0, step 1, instruction {run_instruction} \(.*RUN @{name}"
        with pytest.raises(MeshError, match=where + ".*OverflowError: too hot"):
            run.step()
        with pytest.raises(RuntimeError, match="can only be closed"):
            run.step()
    assert threading.active_count() <= threads


def test_failure_in_a_send_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(example()) as run:
        run.load(inputs())
        backend = run._backend
        assert isinstance(backend, LocalBackend)

        def broken(*_: object, **__: object) -> None:
            raise ConnectionError("cut")

        monkeypatch.setattr(backend._workers["m1"]._transport, "send", broken)
        with pytest.raises(
            MeshError,
            match=r"mesh 'm1', host 0, step 0, instruction \d+ \(SEND #2 .*ConnectionError: cut",
        ):
            run.step()


def test_compiler_failure_names_mesh_and_function() -> None:
    broken = TEXT.replace(
        "%h = stablehlo.tanh %z", "%h = stablehlo.custom_call @no_such_target(%z)"
    ).replace(
        'custom_call @no_such_target(%z) {mhlo.sharding = "{devices=[2,1]<=[2]}"} : '
        "tensor<4x8xf32>",
        'custom_call @no_such_target(%z) {mhlo.sharding = "{devices=[2,1]<=[2]}"}'
        " : (tensor<4x8xf32>) -> tensor<4x8xf32>",
    )
    program = load(broken, custom_calls="no_such_target")
    with pytest.raises(MeshError, match=r"mesh 'm0'.*no_such_target"), start(program) as run:
        run.load(inputs())
        run.step()


def test_reference_runs_the_module_on_one_device() -> None:
    with make_context():
        module = ir.Module.parse(REFERENCE)
        outputs = run_reference(
            module, [np.array([1, np.nan, 2], np.float32), np.array(4, np.int32)]
        )
        with pytest.raises(UserError, match="expected 2 inputs, found 0"):
            run_reference(module, [])
    np.testing.assert_array_equal(outputs[0], np.array([2, np.nan, 4], np.float32))
    assert outputs[1] == 8


def test_comparison_knows_nan_and_infinity() -> None:
    nan, inf = np.nan, np.inf
    row = difference("x", np.array([nan, inf, 1.5]), np.array([nan, inf, 2.0]))
    assert (row.max_abs, row.max_rel, row.unmatched) == (0.5, 0.25, 0)
    assert difference("x", np.array([nan, inf, 1.0]), np.array([0.0, -inf, 1.0])).unmatched == 2
    assert difference("x", np.array([3]), np.array([4])).unmatched == 1
    assert difference("x", np.zeros((0, 3)), np.zeros((0, 3))).within(0)
    assert difference("x", np.array([1j]), np.array([0j])).max_abs == 1
    with pytest.raises(ValueError, match=r"x: expected float64\[2\], found float64\[1\]"):
        difference("x", np.zeros(1), np.zeros(2))

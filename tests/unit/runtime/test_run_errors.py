"""Which of the errors that come in together is reported, and in which words."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest
from jaxlib.mlir import ir

import shardopt
from shardopt.frontend.plans.plan import Plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import operations
from shardopt.runtime.driver import prepare
from shardopt.runtime.errors import (
    Cancelled,
    FailureKind,
    MeshError,
    MessageLost,
    PeerGone,
    first_failure,
    kind_of,
    mesh_error,
)
from shardopt.support.errors import UserError
from shardopt.tools.run.check import plan_reference

CAUSES = {
    "m2": MeshError(
        "m2", "step 1, instruction 4 (FREE %1)", "process 7 was killed (signal 9)", FailureKind.DIED
    ),
    "m3/1": ValueError("too hot"),
    "m4": MessageLost("message 3 was lost"),
    "m5": MeshError("m5", "", "no sign of life", FailureKind.STUCK),
    "m3/0": MeshError("m3/0", "", "process 8 aborted itself", FailureKind.ABORTED),
    "m1": RuntimeError("Gloo all-reduce failed: Connection closed by peer"),
    "m0": PeerGone("the connection from worker 'm2' was closed"),
    "m6": Cancelled("mesh 'm2' failed"),
}


def test_causes_come_before_their_consequences_in_any_order_of_arrival() -> None:
    for pair in itertools.permutations(CAUSES, 2):
        failure = first_failure({name: CAUSES[name] for name in pair})
        assert isinstance(failure, MeshError) and failure.kind == min(
            kind_of(CAUSES[name]) for name in pair
        )
        assert failure.worker == min(pair, key=lambda name: kind_of(CAUSES[name]))
    assert str(first_failure(CAUSES)) == (
        "mesh 'm2', host 0, step 1, instruction 4 (FREE %1): process 7 was killed (signal 9)"
    )


def test_of_equal_kinds_the_first_to_arrive_counts() -> None:
    errors = {"b": ValueError("late?"), "a": ValueError("no")}
    assert str(first_failure(errors)) == "mesh 'b', host 0: ValueError: late?"


def test_errors_of_the_user_stay_what_they_are() -> None:
    error = UserError("damaged")
    assert first_failure({"m0": CAUSES["m2"], "m1": error}) is error


def test_an_error_names_mesh_and_host_and_survives_pickling() -> None:
    error = mesh_error("m3/1", "step 2, end of step", KeyError("w"))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "mesh 'm3', host 1, step 2, end of step: KeyError: 'w'"
    assert (again.mesh, again.host, again.kind) == ("m3", 1, FailureKind.FAILED)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory (MemoryError: no message)"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"),
            "out of memory (RuntimeError: RES",
        ),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
    ],
)
def test_running_out_of_memory_is_called_that(error: BaseException, text: str) -> None:
    failure = mesh_error("m", "", error)
    assert (
        failure.cause.startswith(text)
        and "\n" not in str(failure)
        and failure.kind is FailureKind.FAILED
    )


def test_broken_connections_are_consequences() -> None:
    assert {
        kind_of(error) for error in (BrokenPipeError(), EOFError(), ConnectionResetError())
    } == {FailureKind.CUT}


_CALL = """
func.func public @main(%b: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @{target}(%b) {api_version = 4 : i32, backend_config = {index = 5 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}"""


def _planned(target: str, **options: str) -> Plan:
    text = _CALL.replace("{target}", target)
    return shardopt.optimize(text.encode(), "cpu-test:1x1", microbatches=1, **options)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("xla_ffi_python_cpu_callback", "calls a Python function of the process that made"),
        ("mine", "neither XLA nor JAX registers"),
    ],
)
def test_custom_calls_that_are_not_known_are_refused_when_planned(target: str, fault: str) -> None:
    with pytest.raises(UserError, match=f"^-:3:8: error: '@{target}' .*{fault}"):
        _planned(target)


def test_a_plan_folder_vouches_for_no_custom_call(tmp_path: Path) -> None:
    """Whoever wrote it may have edited all of it: who runs it says what may be called."""
    folder = _planned("mine", custom_calls="mine").save(tmp_path / "plan")
    assert "custom_calls" not in (folder / "plan.json").read_text()
    with pytest.raises(UserError, match="'@mine' is a custom call that neither"):
        Plan.load(folder).program()
    with pytest.raises(UserError, match="'@mine' is a custom call that neither"):
        plan_reference(Plan.load(folder))  # `run --check` executes the model, too
    assert Plan.load(folder, custom_calls="mine").program().meshes


def test_a_module_that_calls_python_by_number_is_refused_when_loaded() -> None:
    """Native code would follow the number of a function of another process, and end this one."""
    plan = _planned("mine", custom_calls="mine")
    with make_context():
        module = load_module(plan.module, ir.Context.current)
        (call,) = operations(module.operation, ("stablehlo.custom_call",))
        target = "xla_ffi_python_cpu_callback"
        call.attributes["call_target_name"] = ir.StringAttr.get(target)
        with pytest.raises(UserError, match=f"'@{target}' calls a Python function of the process"):
            prepare(module, custom_calls=target)

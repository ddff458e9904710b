"""Modules, and work with them, that would end the process that reads them."""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from shardopt.ir import trial
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError, Diagnostic, Position
from shardopt.ir.io import MAX_NESTING, load_module, module_bytecode, portable_artifact
from shardopt.ir.trial import check_readable
from shardopt.support import children, time_limits
from shardopt.support.errors import UserError
from shardopt.tools.shardopt import main

FAULT = Diagnostic("error", "no", Position("a.mlir", 3, 4))


@pytest.fixture(autouse=True)
def _no_stacks() -> Iterator[None]:
    """Children die on purpose: their stacks would fill the log."""
    faulthandler.disable()
    yield
    faulthandler.enable(sys.__stderr__)


@pytest.fixture(scope="module")
def fatal() -> bytes:
    """Bytecode with a call of no function, at which a C++ verifier runs into a null pointer."""
    with make_context():
        module = ir.Module.parse(
            """
            func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
              %0 = mpmd.call @f(%a) {call_counter = 0 : ui32} : (tensor<4xf32>) -> tensor<4xf32>
              return %0 : tensor<4xf32>
            }
            func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }
            """
        )
        callee = list(module.body.operations)[1].operation
        callee.attributes["sym_name"] = ir.StringAttr.get("g")
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def test_a_child_reads_first(fatal: bytes) -> None:
    with pytest.raises(UserError, match=r"^m\.mlirbc: not a readable module: .*SIGSEGV"):
        check_readable(fatal, "m.mlirbc")


def test_bytes_are_read_by_a_child_first_as_files_are(fatal: bytes) -> None:
    with pytest.raises(UserError, match=r"^m\.mlirbc: not a readable module: .*SIGSEGV"):
        load_module(fatal, make_context(), name="m.mlirbc")


def test_no_child_reads_what_this_process_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("a child was started")

    with make_context() as context:
        module = ir.Module.parse("func.func @main() { return }", context)
        monkeypatch.setattr("subprocess.run", start)
        for data in (module_bytecode(module), portable_artifact(module), str(module).encode()):
            load_module(data, context)


def test_run_survives_a_module_that_ends_its_reader(
    fatal: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.mlirbc"
    path.write_bytes(fatal)
    assert main(["run", str(path)]) == 1
    assert "not a readable module" in capsys.readouterr().err


@pytest.mark.parametrize("opening", ["[", "tuple<", '"a.b"() ({'])
def test_deep_nesting_is_refused(opening: str) -> None:
    text = f"func.func @main() attributes {{x = {opening * 100_000}"
    with pytest.raises(UserError, match=f"at most {MAX_NESTING} brackets inside each other, found"):
        load_module(text.encode(), make_context())


def test_brackets_of_strings_and_shardings_do_not_count() -> None:
    sharding = '{mhlo.sharding = "{devices=[2,1]<=[2]}", x = "((("}'
    line = f"%0 = stablehlo.negate %a {sharding} : tensor<4xf32>\n"
    text = "".join(line.replace("%0", f"%{k}") for k in range(2 * MAX_NESTING))
    text = f"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{ {text} return %0 : tensor<4xf32> }}"
    load_module(text.encode(), make_context())


@pytest.mark.parametrize(
    "line", ["%0:2147483648 = func.call @f() : () -> ()", "func.call @f(%0#2147483648) : () -> ()"]
)
def test_numbers_of_results_do_not_fill_the_memory(line: str) -> None:
    text = f'func.func @main() {{\n  "a.b"() {{c = "%0#2147483647"}} : () -> ()\n  {line}\n}}'
    expected = r"m\.mlir:3:\d+: error: expected at most 65536 results, found 2147483648"
    with pytest.raises(DiagnosedError, match=expected):
        load_module(text.encode(), make_context(), name="m.mlir")


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a command that has begun nothing yet."""
    monkeypatch.setattr(children, "_may_fork", True)
    monkeypatch.setattr(children, "_has_loaded_jax", lambda: False)
    monkeypatch.setattr(trial, "_SECONDS", 0.25)
    monkeypatch.setattr(time_limits, "_WAITING", 4)


@pytest.mark.usefixtures("forking")
def test_what_a_child_returns_comes_back() -> None:
    me = os.getpid()
    value, process = trial.in_child(lambda: ({"a": (1, b"2")}, os.getpid()), "plan", 0)
    assert value == {"a": (1, b"2")} and process != me


@pytest.mark.usefixtures("forking")
def test_what_a_child_raises_is_raised() -> None:
    def refuse() -> None:
        raise DiagnosedError(FAULT, FAULT)

    with pytest.raises(DiagnosedError, match=r"a\.mlir:3:4: error: no") as caught:
        trial.in_child(refuse, "plan", 0)
    assert caught.value.diagnostics == (FAULT, FAULT)


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (os.abort, "SIGABRT, Aborted"),
        (lambda: time.sleep(30), "it did not finish within 0 s"),
        (lambda: sum(iter(int, 1)), "it did not finish within 0 s"),
        (lambda: os.kill(os.getpid(), 11), "SIGSEGV, Segmentation fault"),
    ],
)
def test_what_ends_a_child_is_an_error(work: Callable[[], object], reason: str) -> None:
    with pytest.raises(UserError, match=rf"^plan: not readable: its reader failed \({reason}\)$"):
        trial.in_child(work, "plan", 0)


@pytest.mark.usefixtures("forking")
def test_a_child_that_waits_for_a_processor_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still for longer than it may work."""
    monkeypatch.setattr(time_limits, "_WAITING", 1000)
    assert trial.in_child(lambda: time.sleep(1), "plan", 0) is None


def test_nothing_is_forked_where_threads_may_run() -> None:
    assert trial.in_child(os.getpid, "plan", 0) == os.getpid()

"""Modules that would end the process that reads them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import MAX_NESTING, load_module
from shardopt.ir.trial import check_readable
from shardopt.support.errors import UserError
from shardopt.tools.shardopt import main


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

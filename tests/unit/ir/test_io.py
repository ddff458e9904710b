"""Reading the formats in use and rejecting others; writing all or nothing."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import (
    DiagnosedError,
    Diagnostic,
    Position,
    in_binary_file,
    in_file,
    position_of,
    render,
)
from shardopt.ir.formats import exported_module, format_of
from shardopt.ir.io import (
    OutputForm,
    encode_module,
    load_module,
    module_bytecode,
    module_text,
    save_module,
)
from shardopt.ir.trial import made_here
from shardopt.support.errors import UserError
from shardopt.tools.opt.roundtrip import verify_roundtrip

TEXT = """\
module @step {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def portable_artifact(text: str) -> bytes:
    """The versioned form of a module; serialising changes the module, hence one of its own."""
    return stablehlo.serialize_portable_artifact(
        ir.Module.parse(text, make_context()), stablehlo.get_current_version()
    )


@pytest.fixture
def context() -> ir.Context:
    return make_context()


@pytest.fixture
def module(context: ir.Context) -> ir.Module:
    return load_module(TEXT.encode(), context)


def test_text_bytecode_and_portable_artifacts_read_alike(module: ir.Module, tmp_path: Path) -> None:
    portable = portable_artifact(TEXT)
    assert module_text(module) == TEXT
    for name, data in {
        "a.mlir": TEXT.encode(),
        "a.mlirbc": module_bytecode(module),
        "b.mlirbc": portable,
    }.items():
        (tmp_path / name).write_bytes(data)
        assert module_text(load_module(tmp_path / name, make_context())) == TEXT
        assert module_text(load_module(data, make_context())) == TEXT


def test_stdin_and_stdout(
    context: ir.Context, monkeypatch: pytest.MonkeyPatch, capfdbinary
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    save_module(load_module("-", context), "-")
    assert capfdbinary.readouterr().out == TEXT.encode()


def test_bytecode_keeps_locations(context: ir.Context, tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(TEXT)
    save_module(load_module(path, context), tmp_path / "out.mlirbc", bytecode=True)
    again = load_module(tmp_path / "out.mlirbc", context)
    assert position_of(again.body.operations[0]) == Position(str(path), 2, 3)


def test_another_process_reads_a_binary_file_first(context: ir.Context) -> None:
    """C++ ends the process that reads this one."""
    path = Path(__file__).parents[2] / "lit" / "tools" / "Inputs" / "aborting.mlirbc"
    with pytest.raises(UserError, match=r"aborting\.mlirbc: not a readable module"):
        load_module(path, context)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"a.py":3:4', "a.py:3:4"),
        ('"layer_0"("a.py":3:4)', "a.py:3:4"),
        ('"layer_0"', '"layer_0"'),
        ('callsite("f"("a.py":1:2) at "b.py":3:4)', "a.py:1:2"),
        ('callsite("f" at "b.py":3:4)', "b.py:3:4"),
        ('fused<"x">["g", "b.py":3:4]', "b.py:3:4"),
        ("unknown", "<unknown>"),
    ],
)
def test_positions_of_every_kind_of_location(
    location: str, expected: str, context: ir.Context
) -> None:
    operation = ir.Module.parse(f"module {{}} loc({location})", context).operation
    assert str(position_of(operation)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "func.func @main( {\n}\n",
            [
                "{file}:1:17: error: expected non-function type",
                "  func.func @main( {",
                " " * 18 + "^",
            ],
        ),
        (
            "func.func @main(%x: i32) -> i64 {\n\treturn %x : i32\n}\n",
            [
                "{file}:2:2: error: type of return operand 0 ('i32') doesn't match function result "
                "type ('i64') in function @main",
                "   return %x : i32",
                "   ^",
            ],
        ),
    ],
)
def test_text_that_is_no_module_is_diagnosed(
    text: str, expected: list[str], context: ir.Context, tmp_path: Path
) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(text)
    with pytest.raises(DiagnosedError) as caught:
        load_module(path, context)
    assert render(caught.value.diagnostic).split("\n") == [
        line.replace("{file}", str(path)) for line in expected
    ]
    assert context.emit_error_diagnostics is False  # left as it was


def test_bytes_are_called_by_their_name(context: ir.Context) -> None:
    with pytest.raises(DiagnosedError, match=r"^exported step:1:7: error: "):
        load_module(b"module {", context, name="exported step")


@pytest.mark.parametrize(
    "data", [b"\x7fELF\x02\x01\x01\x00", b"\xff\xfe", b"module {}\0", b"PK\x03\x04"]
)
def test_foreign_files_are_rejected_unread(data: bytes, context: ir.Context) -> None:
    with pytest.raises(UserError, match="'-' holds neither MLIR text nor MLIR bytecode"):
        load_module(data, context)


def test_truncated_bytecode_is_diagnosed(module: ir.Module) -> None:
    for data in (module_bytecode(module), portable_artifact(TEXT)):
        for length in range(4, len(data)):
            with pytest.raises(DiagnosedError):
                load_module(made_here(data[:length]), make_context())


def test_missing_files_and_folders_are_diagnosed(
    context: ir.Context, module: ir.Module, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"cannot read '.*gone\.mlir': No such file or directory"):
        load_module(tmp_path / "gone.mlir", context)
    with pytest.raises(UserError, match="Is a directory"):
        load_module(tmp_path, context)
    with pytest.raises(UserError, match=r"cannot write '.*out\.mlir': No such file or directory"):
        save_module(module, tmp_path / "gone" / "out.mlir")


def test_an_invalid_module_is_not_written(
    context: ir.Context, module: ir.Module, tmp_path: Path
) -> None:
    target = tmp_path / "out.mlir"
    target.write_text("old")
    with context:
        module.body.operations[0].attributes["function_type"] = ir.TypeAttr.parse(
            "(tensor<4xf32>) -> tensor<8xf32>"
        )
    with pytest.raises(DiagnosedError):
        save_module(module, target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.mlir"]


def test_writing_keeps_links_and_permissions(module: ir.Module, tmp_path: Path) -> None:
    target, link = tmp_path / "out.mlir", tmp_path / "link.mlir"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    save_module(module, link)
    assert link.is_symlink() and target.read_text() == TEXT
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    save_module(module, tmp_path / "new.mlir")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.mlir").stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir(tmp_path)) == ["link.mlir", "new.mlir", "out.mlir"]


def test_a_device_is_written_not_replaced(module: ir.Module) -> None:
    save_module(module, os.devnull)
    assert Path(os.devnull).is_char_device()


EXPORTED = Path(__file__).parents[2] / "lit" / "tools" / "Inputs" / "exported.bin"


def test_exported_files_hold_a_module(context: ir.Context) -> None:
    """`jax.export.export(jax.jit(lambda x: jnp.sin(x) @ x))(f32[4,4]).serialize(vjp_order=1)` of
    jax 0.10.2."""
    assert format_of(EXPORTED.read_bytes()) == "exported"
    text = module_text(load_module(EXPORTED, context))
    # The function, not its derivative.
    assert "module @jit__lambda" in text and "stablehlo.cosine" not in text
    assert "jax" not in sys.modules or "jax._src.export.serialization" not in sys.modules


def test_damaged_exported_files_are_never_read_out_of_bounds(context: ir.Context) -> None:
    data = EXPORTED.read_bytes()
    assert exported_module(data[:1000]) is None
    for offset in range(0, 600, 3):  # the tables in front of the module
        damaged = data[:offset] + b"\xff\xff\xff" + data[offset + 3 :]
        module = exported_module(damaged)
        assert module is None or len(module) < len(data)


@pytest.mark.parametrize("form", ["text", "bytecode", "portable"])
def test_output_forms_read_back(module: ir.Module, form: OutputForm) -> None:
    before = module_text(module)
    data = encode_module(module, form)
    assert format_of(data) == form
    assert module_text(load_module(data, make_context())) == TEXT
    assert module_text(module) == before  # encoding leaves the module alone


def test_a_mesh_type_has_no_portable_form(context: ir.Context) -> None:
    text = """func.func @main(%x: !mpmd.mesh_tensor<"m", tensor<2xf32>>)
      attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} { return }"""
    with pytest.raises(DiagnosedError, match=re.escape("failed to legalize operation 'func.func'")):
        encode_module(load_module(text.encode(), context), "portable")


def test_source_lines_of_inputs_that_are_no_files(context: ir.Context) -> None:
    text = "func.func @main( {\n}\n"
    with pytest.raises(DiagnosedError) as caught:
        load_module(text.encode(), context, name="<pipe>")
    assert (
        render(caught.value.diagnostic, sources={"<pipe>": text}).split("\n")[1]
        == "  func.func @main( {"
    )


def test_a_roundtrip_that_loses_nothing(module: ir.Module) -> None:
    verify_roundtrip(module)


def test_errors_in_binary_files_name_the_file() -> None:
    inside = Diagnostic(
        "error", "expected type", Position('!mpmd.mesh_tensor<"m", tensor<2xf-1>>', 1, 33)
    )
    expected = """a.mlirbc: error: expected type (at !mpmd.mesh_tensor<"m", tensor<2xf-1>>:1:33)"""
    assert str(in_binary_file(inside, "a.mlirbc")) == expected
    assert str(in_binary_file(Diagnostic("error", "x"), "a.mlirbc")) == "a.mlirbc: error: x"
    assert (
        in_file(Diagnostic("error", "x", Position("b.mlir", 2, 1)), "a.mlir").position.file
        == "b.mlir"
    )

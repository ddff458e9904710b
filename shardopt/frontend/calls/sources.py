"""Models as the front end takes them: a path, bytes, a `jax.export.Exported` or an MLIR module;
their names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Diagnostic, Handler


@contextmanager
def reported_in(name: str, handler: Handler | None) -> Iterator[Handler]:
    """A handler for messages about a model, and a block whose errors name it too where the IR has
    no locations."""
    from shardopt.ir.diagnostics import DiagnosedError, in_file

    def report(diagnostic: Diagnostic) -> None:
        if handler is not None:
            handler(in_file(diagnostic, name))

    try:
        yield report
    except DiagnosedError as error:
        raise error.changed(lambda diagnostic: in_file(diagnostic, name)) from error


def source_name(source: Any) -> str:
    """What messages call the model."""
    if hasattr(source, "fun_name"):
        return str(source.fun_name)
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "<model>"


def resolve_source(source: Any) -> bytes | str | os.PathLike[str]:
    """A model as `make_plan` takes it, as bytes or the path of a file that can be read again.
    Raises UserError."""
    from shardopt.ir.formats import STDIO, read_source
    from shardopt.ir.trial import check_readable, made_here

    if hasattr(source, "mlir_module_serialized"):
        return made_here(bytes(source.mlir_module_serialized))
    if isinstance(source, str) and "\n" in source:
        raise UserError(
            "expected a path, found text of several lines: the text of a module is passed as "
            "bytes (text.encode())"
        )
    if isinstance(source, str | os.PathLike):
        data = read_source(source)
        check_readable(data, os.fspath(source))
        return source if Path(source).is_file() and os.fspath(source) != STDIO else data
    if isinstance(source, bytes):
        check_readable(source, source_name(source))
        return source
    if hasattr(source, "operation"):  # an `ir.Module` of another context
        return bytes(source.operation.get_asm(enable_debug_info=True).encode())
    raise UserError(
        "expected a path, bytes, a jax.export.Exported or an MLIR module, found "
        f"{type(source).__name__}"
    )


def source_bytes(source: bytes | str | os.PathLike[str]) -> bytes:
    """What a resolved source holds. Raises UserError."""
    from shardopt.ir.formats import read_source

    return source if isinstance(source, bytes) else read_source(source)

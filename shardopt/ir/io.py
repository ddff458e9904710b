"""Reading and writing modules: MLIR text, MLIR bytecode and StableHLO portable artifacts.

Reading looks at the first bytes before any parser runs, because jaxlib's readers are made for trusted input: text, a
truncated file and a foreign format are diagnosed, while flipped bits inside bytecode may still abort the process.
Writing is atomic: the target either keeps its old content or has the whole new module.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.cost.errors import UserError
from shardopt.ir.diagnostics import DiagnosedError, in_file, native_errors_raised
from shardopt.ir.native import verify

BYTECODE_MAGIC = b"ML\xefR"
# The producer string, after the magic and the one-byte version, of `serialize_portable_artifact`.
PORTABLE_PRODUCER = b"StableHLO_v"
STDIO = "-"

# A byte that no text file holds.
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")

# What the parsers call a buffer that has no file name.
BUFFER_NAME = "-"


def load_module(source: str | os.PathLike[str] | bytes, context: ir.Context, *, name: str = "") -> ir.Module:
    """Read a module from a path, from stdin (`"-"`), or from bytes, and verify it.

    `name` stands for the source in messages; by default its path. Raises DiagnosedError (file:line:column) for a
    module that does not parse or verify, and UserError for a file that cannot be read or holds something else.
    """
    data = source if isinstance(source, bytes) else read_source(source)
    name = name or (BUFFER_NAME if isinstance(source, bytes) else os.fspath(source))
    try:
        with native_errors_raised(context, also=ValueError):
            return _parse(data, source, context, name)
    except DiagnosedError as error:
        raise DiagnosedError(*(in_file(diagnostic, name, BUFFER_NAME) for diagnostic in error.diagnostics)) from error


def read_source(source: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, or of stdin for `"-"`. Raises UserError."""
    if os.fspath(source) == STDIO:
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read '{os.fspath(source)}': {error.strerror}") from error


def save_module(
    module: ir.Module,
    target: str | os.PathLike[str],
    *,
    bytecode: bool = False,
    debug_info: bool = False,
) -> None:
    """Write a module as text or bytecode to a path or to stdout (`"-"`), the whole of it or nothing.

    Text leaves locations out unless `debug_info`; bytecode always keeps them. Raises DiagnosedError when the module
    does not verify, since invalid IR does not read back, and UserError when the file cannot be written.
    """
    verify(module)
    data = module_bytecode(module) if bytecode else module_text(module, debug_info=debug_info).encode()
    if os.fspath(target) == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        write_atomically(Path(target), data)
    except OSError as error:
        raise UserError(f"cannot write '{os.fspath(target)}': {error.strerror}") from error


def module_text(module: ir.Module, *, debug_info: bool = False) -> str:
    """The text of a verified module, ending in a newline."""
    text: str = module.operation.get_asm(enable_debug_info=debug_info, assume_verified=True)  # type: ignore[assignment]
    return text if text.endswith("\n") else text + "\n"


def module_bytecode(module: ir.Module) -> bytes:
    """MLIR bytecode, which keeps locations and every dialect (StableHLO's portable form rejects mpmd types)."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def write_atomically(target: Path, data: bytes) -> None:
    """Replace the content of `target` in one step; devices and pipes are written directly. Raises OSError."""
    target = target.resolve()  # a symbolic link keeps pointing at the file it names
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode_of(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode_of(target: Path) -> int:
    """Permissions of the old file, or those a new file would get (temporary files are private by default)."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _parse(data: bytes, source: str | os.PathLike[str] | bytes, context: ir.Context, name: str) -> ir.Module:
    if data.startswith(BYTECODE_MAGIC):
        if data[len(BYTECODE_MAGIC) + 1 :].startswith(PORTABLE_PRODUCER):
            return stablehlo.deserialize_portable_artifact(context, data)
        return ir.Module.parse(data, context)
    text = _decoded(data)
    if text is None:
        raise UserError(f"'{name}' holds neither MLIR text nor MLIR bytecode (first bytes: {data[:8].hex(' ')})")
    if isinstance(source, bytes) or os.fspath(source) == STDIO:
        return ir.Module.parse(text, context)
    return ir.Module.parseFile(os.fspath(source), context)  # reads again, but gives every op its file name


def _decoded(data: bytes) -> str | None:
    """The text, or None for what is no text: MLIR writes control characters only as escapes."""
    if BINARY.search(data):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None

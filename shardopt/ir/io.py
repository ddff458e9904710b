"""Reading and writing modules: MLIR text, MLIR bytecode, StableHLO portable artifacts; `jax.export`
files are read.

Reading looks at the first bytes before any parser runs, because jaxlib's readers are made for
trusted input: text, a truncated file and a foreign format are diagnosed, while flipped bits inside
bytecode may still abort the process. So another process reads a binary file first
(`shardopt.ir.trial`), unless this one is supervised (`shardopt.tools.supervisor`).
Writing is atomic: the target either keeps its old content or has the whole new module."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.diagnostics import (
    DiagnosedError,
    Diagnostic,
    Handler,
    Position,
    in_binary_file,
    in_file,
    native_errors_raised,
)
from shardopt.ir.formats import STDIO, decoded, exported_module, format_of, read_source
from shardopt.ir.native import verify
from shardopt.ir.printing import PLAIN, PrintStyle
from shardopt.ir.rewriting import copy_of
from shardopt.ir.trial import check_readable, made_here
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

OutputForm: TypeAlias = Literal["text", "bytecode", "portable"]

# What the parsers call a buffer that has no file name.
BUFFER_NAME = "-"

# The parser has stack for some four thousand, and passes of ours less.
MAX_NESTING = 500
_CHUNK = 1 << 18
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord(bracket) for bracket in "([{<"]] = 1
_STEPS[[ord(bracket) for bracket in ")]}>"]] = -1
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')

MAX_RESULTS = 1 << 16
_LARGE_COUNT = re.compile(r"[#:](\d{5,})\b")
_VALUE = re.compile(r"%[\w$.-]+$")

# Functions, calls of the mpmd dialect and topologies of other types, in the form for people and in
# the generic one; strings and comments are pieces of their own, in which none is found.
_NAME = r'@([\w$.-]+|"(?:[^"\\]|\\.)*")'
_PIECE = re.compile(
    rf"\bmpmd\.call +{_NAME}"
    rf'|"mpmd\.call"\([^)]*\) *<?\{{[^}}]*?callee = {_NAME}'
    rf"|\bfunc(?:\.func)? +(?:(?:public|private|nested) +)?{_NAME}"
    r'|\bsym_name = ("(?:[^"\\]|\\.)*")'
    r'|(\btopology|"topology") *= *+(?!#mpmd\.topology<|#\w+(?![\w.]))'
    r'|"(?:[^"\\\n]|\\.)*"|//[^\n]*'
)


@contextmanager
def text_expected(name: str) -> Iterator[None]:
    """Around work with a module of `name`. Raises UserError where one of its strings, which may
    hold any bytes, is asked for as text and is none."""
    try:
        yield
    except RuntimeError as error:
        if "conversion error" not in str(error):
            raise
        raise UserError(f"{name}: a string that should be text is not in UTF-8") from error


def load_module(
    source: str | os.PathLike[str] | bytes,
    context: ir.Context,
    *,
    name: str = "",
    handler: Handler | None = None,
) -> ir.Module:
    """Read a module from a path, from stdin (`"-"`), or from bytes, and verify it. Another process
    reads first what this one has neither made nor tried (`shardopt.ir.trial`).

    `name` stands for the source in messages; by default its path. Warnings go to `handler`. Raises
    DiagnosedError (file:line:column) for a module that does not parse or verify, and UserError for
    a file that cannot be read or holds something else."""
    data = source if isinstance(source, bytes) else read_source(source)
    name = name or (BUFFER_NAME if isinstance(source, bytes) else os.fspath(source))
    check_readable(data, name)
    try:
        with native_errors_raised(context, handler, also=ValueError):
            return _parse(data, source, context, name)
    except MemoryError as error:
        raise UserError(f"{name}: reading it takes more memory than there is") from error
    except DiagnosedError as error:
        moved = in_file if format_of(data) == "text" else in_binary_file
        raise error.changed(lambda diagnostic: moved(diagnostic, name, BUFFER_NAME)) from error


def save_module(
    module: ir.Module,
    target: str | os.PathLike[str],
    *,
    bytecode: bool = False,
    debug_info: bool = False,
) -> None:
    """Write a module as text or bytecode to a path or to stdout (`"-"`), the whole of it or
    nothing.

    Text leaves locations out unless `debug_info`; bytecode always keeps them. Raises DiagnosedError
    when the module does not verify, since invalid IR does not read back, and UserError when the
    file cannot be written."""
    write_output(
        encode_module(module, "bytecode" if bytecode else "text", PrintStyle(debug_info)), target
    )


def encode_module(
    module: ir.Module,
    form: OutputForm = "text",
    style: PrintStyle = PLAIN,
    bytecode_version: int | None = None,
) -> bytes:
    """A module as the bytes of a file. Raises DiagnosedError when it does not verify, unless the
    style takes that for granted, or does not fit the form."""
    if not style.assume_verified:
        verify(module)
    if form == "text":
        return style.text(module.operation, verified=True).encode()
    with native_errors_raised(module.context, also=ValueError):
        return (
            module_bytecode(module, bytecode_version)
            if form == "bytecode"
            else portable_artifact(module)
        )


def write_output(data: bytes, target: str | os.PathLike[str]) -> None:
    """Write to stdout (`"-"`) or replace a file in one step. Raises UserError."""
    if os.fspath(target) == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        write_atomically(Path(target), data)
    except OSError as error:
        raise UserError(f"cannot write '{os.fspath(target)}': {error.strerror}") from error


def check_output(target: str | os.PathLike[str]) -> None:
    """Raises UserError where `write_output` would: asked before what is to be written is
    computed."""
    path = Path(target)
    if os.fspath(target) == STDIO or (path.exists() and not path.is_file() and not path.is_dir()):
        return
    if path.is_dir():
        raise UserError(f"cannot write '{path}': it is a folder")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UserError(f"cannot write '{path}': its folder does not exist")
    try:  # rights do not tell it all: of read-only and virtual file systems, say
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def module_text(module: ir.Module, *, debug_info: bool = False) -> str:
    """The text of a verified module, ending in a newline."""
    return PrintStyle(debug_info).text(module.operation, verified=True)


def module_bytecode(module: ir.Module, version: int | None = None) -> bytes:
    """MLIR bytecode, which keeps locations and every dialect (StableHLO's portable form rejects
    mpmd types)."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, version)
    return made_here(buffer.getvalue())


def portable_artifact(module: ir.Module) -> bytes:
    """StableHLO's versioned form, at the newest version. Raises ValueError for ops of other
    dialects."""
    # Serialising changes the module that it is given.
    data: bytes = stablehlo.serialize_portable_artifact(
        copy_of(module), stablehlo.get_current_version()
    )
    return made_here(data)


def write_atomically(target: Path, data: bytes) -> None:
    """Replace the content of `target` in one step; devices and pipes are written directly. Raises
    OSError."""
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
    """Permissions of the old file, or those a new file would get (temporary files are private by
    default)."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _check_mpmd(text: str, name: str) -> None:
    """Raises DiagnosedError for an `mpmd.call` of what is no function of the text, and for a
    topology of another type: the verifiers of their dialect end the process on these."""
    if "mpmd." not in text:
        return
    pieces = list(_PIECE.finditer(text))
    known = {_unquoted(piece[3] or piece[4]) for piece in pieces if piece[3] or piece[4]}
    for piece in pieces:
        callee = _unquoted(piece[1] or piece[2] or "")
        if callee and callee not in known:
            message = f"'mpmd.call': {unknown_name('function', callee, sorted(known))}"
        elif piece[5]:
            message = "expected 'topology' to be an #mpmd.topology, found another attribute"
        else:
            continue
        line = text.count("\n", 0, piece.start()) + 1
        column = piece.start() - text.rfind("\n", 0, piece.start())
        raise DiagnosedError(Diagnostic("error", message, Position(name, line, column)))


def _check_nesting(text: str, name: str) -> None:
    """Raises UserError for brackets inside each other that would run the parser out of stack."""
    if _deepest(text) <= MAX_NESTING:
        return
    depth = _deepest(_STRING.sub("", text))
    if depth > MAX_NESTING:
        raise UserError(
            f"{name}: expected at most {MAX_NESTING} brackets inside each other, found {depth}"
        )


def _check_results(text: str, name: str) -> None:
    """Raises DiagnosedError for a value's number or count for which the parser would fill the
    memory with places."""
    for match in _LARGE_COUNT.finditer(text):
        first = text.rfind("\n", 0, match.start()) + 1
        in_string = text.count('"', first, match.start()) % 2
        if in_string or not _VALUE.search(text, first, match.start()):
            continue
        if int(match[1]) > MAX_RESULTS:
            line = text.count("\n", 0, first) + 1
            position = Position(name, line, match.start() - first + 1)
            message = f"expected at most {MAX_RESULTS} results, found {match[1]}"
            raise DiagnosedError(Diagnostic("error", message, position))


def _deepest(text: str) -> int:
    codes = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    depth = most = 0
    for first in range(0, len(codes), _CHUNK):
        part = codes[first : first + _CHUNK]
        steps = _STEPS[part]
        # an arrow, and what stands between the parts of a sharding
        steps[1:][(part[1:] == ord(">")) & (part[:-1] == ord("-"))] = 0
        steps[:-1][(part[:-1] == ord("<")) & (part[1:] == ord("="))] = 0
        depths = np.cumsum(steps, dtype=np.int32)
        most = max(most, depth + int(depths.max()))
        depth += int(depths[-1])
    return most


def _unquoted(symbol: str) -> str:
    return symbol.strip('"')


def _parse(
    data: bytes, source: str | os.PathLike[str] | bytes, context: ir.Context, name: str
) -> ir.Module:
    form = format_of(data)
    if form == "portable":
        return stablehlo.deserialize_portable_artifact(context, data)
    if form == "bytecode":
        return ir.Module.parse(data, context)
    if form == "exported":
        return _parse(exported_module(data) or b"", data, context, name)
    text = decoded(data)
    if text is None:
        raise UserError(
            f"'{name}' holds neither MLIR text nor MLIR bytecode (first bytes: {data[:8].hex(' ')})"
        )
    _check_nesting(text, name)
    _check_results(text, name)
    _check_mpmd(text, name)
    # Stdin and pipes cannot be read again.
    if isinstance(source, bytes) or not Path(source).is_file():
        return ir.Module.parse(text, context)
    # Reads again, but gives every op its file name.
    return ir.Module.parseFile(os.fspath(source), context)

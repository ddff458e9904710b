"""Recognising what a file holds by its bytes, and the module inside a serialized
`jax.export.Exported`.

Nothing here loads MLIR.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path
from typing import Literal, TypeAlias

from shardopt.support.errors import UserError

Format: TypeAlias = Literal["text", "bytecode", "portable", "exported", "unknown"]

STDIO = "-"

BYTECODE_MAGIC = b"ML\xefR"
# The producer string, after the magic and the one-byte version, of `serialize_portable_artifact`.
PORTABLE_PRODUCER = b"StableHLO_v"

# A byte that no text file holds.
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")

# Where the table `Exported` of jax's flatbuffer schema keeps the module: fields are only ever added
# behind others, so the slot is the same in all schema versions (1 to 11 checked in
# jax/_src/export/serialization_generated.py).
_MODULE_SLOT = 30


def read_source(source: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, or of stdin for `"-"`. Raises UserError."""
    if os.fspath(source) == STDIO:
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read '{os.fspath(source)}': {error.strerror}") from error


def format_of(data: bytes) -> Format:
    """The format, judged from the bytes alone."""
    if data.startswith(BYTECODE_MAGIC):
        return (
            "portable"
            if data[len(BYTECODE_MAGIC) + 1 :].startswith(PORTABLE_PRODUCER)
            else "bytecode"
        )
    if decoded(data) is not None:
        return "text"
    return "exported" if exported_module(data) is not None else "unknown"


def decoded(data: bytes) -> str | None:
    """The text, or None for what is no text: MLIR writes control characters only as escapes."""
    if BINARY.search(data):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def exported_module(data: bytes) -> bytes | None:
    """The module (a portable artifact) inside `Exported.serialize()`, or None when `data` is
    something else.

    The file is a flatbuffer: the first word is the offset of its root table, which begins with the
    distance back to its vtable; slots of the vtable hold offsets of fields, and a byte vector is a
    word with its length, then the bytes. Reading this one field needs neither jax nor the
    flatbuffers package, and takes the outer of nested `vjp` modules."""
    try:
        table = _word(data, 0)
        vtable = table - struct.unpack_from("<i", data, table)[0]
        if (
            not 0 < table < len(data)
            or vtable < 0
            or struct.unpack_from("<H", data, vtable)[0] <= _MODULE_SLOT
        ):
            return None
        field = table + struct.unpack_from("<H", data, vtable + _MODULE_SLOT)[0]
        vector = field + _word(data, field)
        length = _word(data, vector)
    except struct.error:  # an offset that leads out of the file
        return None
    module = data[vector + 4 : vector + 4 + length]
    return module if len(module) == length and module.startswith(BYTECODE_MAGIC) else None


def _word(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<I", data, offset)[0])

"""A program as a JSON document: to look at, to keep, and to send to workers, who then need not
unpickle anything.

    {"format": "shardopt.program", "version": 3,
     "tables": {"TensorSpec": […], "StageFunction": […]},       each once; elsewhere by number
     "program": {"arguments": […], "results": […], "routes": […],
                 "meshes": [{"instructions": [{"op": "SEND", …}]}]}}

The version goes up with every change after which an older document would be read wrongly or not at
all."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.plain import PlainReader, Writer
from shardopt.support.documents import json_text

FORMAT = "shardopt.program"
VERSION = 3
_SHARED = (TensorSpec, StageFunction)


def program_to_json(program: Program) -> str:
    """One line, with the bytecode of all functions."""
    return json.dumps(_document(program), separators=(",", ":"))


def program_from_json(text: str | bytes) -> Program:
    """The inverse of `program_to_json`. Raises ValueError, which says where, for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a program in JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"expected a JSON document of format '{FORMAT}'")
    if document.get("version") != VERSION:
        raise ValueError(
            f"expected version {VERSION} of '{FORMAT}', found {document.get('version')}"
        )
    tables = document.get("tables")
    read: Program = PlainReader(_SHARED, tables if isinstance(tables, dict) else {}).read(
        Program, document.get("program"), "program"
    )
    return read


def readable_json(program: Program) -> str:
    """The document with a line for every item, for people and for tests; functions are named by
    their hash."""
    document = _document(program)
    functions = (function for part in program.meshes for function in part.functions)
    for row, function in zip(
        document["tables"]["StageFunction"], dict.fromkeys(functions), strict=True
    ):
        row["bytecode"] = f"sha256:{sha256(function.bytecode).hexdigest()}"
    return json_text(document)


def only_mesh(program: Program, name: str) -> Program:
    """What the workers of one mesh need to know."""
    return replace(program, meshes=tuple(part for part in program.meshes if part.mesh.name == name))


def _document(program: Program) -> dict[str, Any]:
    writer = Writer(_SHARED)
    written = writer.write(program)
    return {"format": FORMAT, "version": VERSION, "tables": writer.tables, "program": written}

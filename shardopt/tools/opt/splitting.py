"""`--split-input-file`: one text as several modules, each with the line numbers of the whole
file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardopt.ir.diagnostics import Diagnostic, Position

DEFAULT_MARKER = "// -----"


@dataclass(frozen=True)
class Chunk:
    """A part of an input; `text` has as many empty lines in front as the file has lines before the
    part."""

    text: str
    first_line: int


def split_input(text: str, marker: str = DEFAULT_MARKER) -> tuple[Chunk, ...]:
    """The parts between the lines that hold nothing but the marker; a text without one is a single
    part."""
    chunks: list[Chunk] = []
    lines = text.split("\n")
    start = 0
    for number, line in enumerate([*lines, marker]):
        if line.strip() == marker:
            chunks.append(Chunk("\n" * start + "\n".join(lines[start:number]) + "\n", start + 1))
            start = number + 1
    return tuple(chunks)


def near_misses(text: str, file: str, marker: str = DEFAULT_MARKER) -> list[Diagnostic]:
    """Warnings for lines that look like the default marker but do not split."""
    if marker != DEFAULT_MARKER:
        return []
    return [
        Diagnostic(
            "warning", f"near miss with the split marker '{marker}'", Position(file, number, 1)
        )
        for number, line in enumerate(text.split("\n"), start=1)
        if re.fullmatch(r"\s*//\s*-{3,}\s*", line) and line.strip() != marker
    ]

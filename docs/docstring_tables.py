"""An extension of griffe: tables of plain text in our docstrings become definition lists of
Markdown.

microbatches   into how many parts the batch is cut;     becomes   `microbatches`
               None tries several                                  :   into how many parts … several
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

# A name (or several), and its text in a column of its own.
_ROW = re.compile(r"[\w`*.,= ]*\w[`,]*  +(?=\S)")


class DocstringTables(Extension):
    """Rewrites docstrings as they are loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_definition_lists(obj.docstring.value)


def with_definition_lists(docstring: str) -> str:
    """The docstring with every paragraph that is a table of names as a definition list."""
    return "\n\n".join(_definitions(part) or part for part in docstring.split("\n\n"))


def _definitions(part: str) -> str | None:
    """The definition list of a table; None for other text. All rows begin their text in the column
    of the first."""
    lines = part.split("\n")
    first = _ROW.match(lines[0])
    if first is None or len(lines) < 2:
        return None
    column = first.end()
    if any(line[column - 1 : column].strip() for line in lines):
        return None
    rows: list[tuple[str, list[str]]] = []
    for line in lines:
        name, text = line[:column].strip(), line[column:].strip()
        # Two names of one text, one below the other.
        if name and rows and rows[-1][0].endswith(","):
            rows[-1] = (f"{rows[-1][0]} {name}", [*rows[-1][1], text])
        elif name:
            rows.append((name, [text]))
        else:
            rows[-1][1].append(text)
    return "\n\n".join(f"`{name}`\n:   {' '.join(text)}" for name, text in rows)

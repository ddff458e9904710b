"""Long lines of printed IR broken at the commas of their lists, so that they can be read and
compared: one argument, one attribute, one choice a line. What is broken still parses.

    func.func @f(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {

    func.func @f(
      %a: tensor<4xf32>,
      %b: tensor<4xf32>
    ) -> tensor<4xf32> {"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_IN_TYPE = rf"[^<>\"-]++|-(?!>)|{_STRING}"
# Types and their parameters are one token, up to three deep: nothing in angle brackets is broken.
_TYPE = rf"<(?:{_IN_TYPE}|<(?:{_IN_TYPE}|<(?:{_IN_TYPE})*+>)*+>)*+>"
_TOKEN = re.compile(rf"{_STRING}|->|<=|>=|==|{_TYPE}|[\[\](){{}}<>,]")
_OPENING, _CLOSING = "[{(<", "]})>"
_INDENT = "  "


def broken(text: str, width: int) -> str:
    """The text with no line longer than `width` that has a comma to break it at."""
    return "\n".join(
        line if len(line) <= width else _lines(line, width) for line in text.split("\n")
    )


# Equal blocks have equal lines, and most lines of a phase stand in the text of the next.
@lru_cache(maxsize=8192)
def _lines(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return "\n".join(_broken_line(line.lstrip(), indent, width))


@dataclass
class _Commas:
    """The longest list of a line, as the places where it opens, has its commas and closes, and the
    commas outside of all brackets. In angle brackets, which types have, nothing is broken."""

    longest: tuple[int, ...] = ()
    outside: list[int] = field(default_factory=list)


def _broken_line(line: str, indent: str, width: int) -> Iterator[str]:
    """The longest list goes on lines of its own, then what stands before and behind it, as far as
    that is too long as well."""
    commas = _commas(line) if len(indent) + len(line) > width else _Commas()
    if commas.longest:
        opening, *between, closing = commas.longest
        yield from _broken_line(line[: opening + 1], indent, width)
        for item in _pieces(line[:closing], opening + 1, between):
            yield from _broken_line(item, indent + _INDENT, width)
        yield from _broken_line(line[closing:], indent, width)
    elif commas.outside:
        first, *others = _pieces(line, 0, commas.outside)
        yield indent + first
        yield from (indent + 2 * _INDENT + item for item in others)
    else:
        yield indent + line


def _pieces(line: str, start: int, commas: list[int]) -> Iterator[str]:
    for comma in commas:
        yield line[start : comma + 1].strip()
        start = comma + 1
    yield line[start:].strip()


def _commas(line: str) -> _Commas:
    commas = _Commas()
    stack: list[tuple[str, list[int]]] = []
    for token in _TOKEN.finditer(line):
        place, end = token.span()
        if end - place > 1:  # nothing to break at
            continue
        text = line[place]
        if text in _OPENING:
            stack.append((text, [place]))
        elif text == "," and end < len(line):  # behind the last nothing is left to break off
            (stack[-1][1] if stack else commas.outside).append(place)
        elif text in _CLOSING and stack:
            bracket, places = stack.pop()
            in_type = bracket == "<" or any(each == "<" for each, _ in stack)
            length = place - places[0]
            if not in_type and length > 1 and (not commas.longest or length > _length(commas)):
                commas.longest = (*places, place)
    return commas


def _length(commas: _Commas) -> int:
    return commas.longest[-1] - commas.longest[0]

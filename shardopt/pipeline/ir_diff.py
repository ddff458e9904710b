"""What a pass changed, as a unified diff of the text before and after it.

Printed IR numbers its values, so one operation that goes would change every line below it. Lines
are therefore matched without the numbers first, and values of matched lines keep the names that
they had; what then still differs has changed. A value that is new has a `+` behind its name where
the old text has another one under it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from functools import partial

_VALUE = re.compile(r"%[\w$.-]+")
_FUNCTION = re.compile(r"\s*func\.func\b")

# (function, name): names of values mean something within a function only.
_Value = tuple[int, str]


def ir_diff(before: str, after: str) -> list[str]:
    """The lines of the diff, without a header; empty when nothing changed but names of values."""
    old, new = before.splitlines(), after.splitlines()
    lines = unified_diff(old, _with_old_names(old, new), lineterm="")
    return list(lines)[2:]  # names of files stand in front


def _with_old_names(old: Sequence[str], new: Sequence[str]) -> list[str]:
    old_scopes, new_scopes = _scopes(old), _scopes(new)
    names: dict[_Value, str] = {}
    taken: set[_Value] = set()
    for i, j in _matches(old, new):
        for was, now in zip(_VALUE.findall(old[i]), _VALUE.findall(new[j]), strict=True):
            key, place = (new_scopes[j], now), (new_scopes[j], was)
            if key not in names and place not in taken:
                names[key] = was
                taken.add(place)
    known = {
        (scope, name)
        for scope, line in zip(old_scopes, old, strict=True)
        for name in _VALUE.findall(line)
    }

    def renamed(scope: int, match: re.Match[str]) -> str:
        key = (scope, match[0])
        return names.get(key, f"{match[0]}+" if key in known else match[0])

    return [
        _VALUE.sub(partial(renamed, scope), line)
        for scope, line in zip(new_scopes, new, strict=True)
    ]


def _matches(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Lines that are the same but for names of values."""
    was, now = ([_VALUE.sub("%", line) for line in lines] for lines in (old, new))
    for block in SequenceMatcher(None, was, now).get_matching_blocks():
        yield from ((block.a + k, block.b + k) for k in range(block.size))


def _scopes(lines: Sequence[str]) -> list[int]:
    """The number of the function around each line."""
    scope, scopes = 0, []
    for line in lines:
        scope += _FUNCTION.match(line) is not None
        scopes.append(scope)
    return scopes

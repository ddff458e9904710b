"""Readers: descriptions of fields, which check a value and can say what they expect as a JSON
Schema.

A format has one description, from which come the values, the messages about errors and the
schema. A reader that finds an error adds a message with the path of the field and returns None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Schema = dict[str, Any]


class ValueReader(Protocol):
    """Reads a value found under a field path; adds what is wrong to `errors`, each with the
    path."""

    def read(self, value: Any, path: str, errors: list[str]) -> Any: ...

    def schema(self) -> Schema: ...


def wrong(expected: str, value: Any, path: str, errors: list[str]) -> Any:
    """Adds that something else was expected; None, for a reader to return."""
    where = f"field '{path}': " if path else ""
    errors.append(f"{where}expected {expected}, got {shown(value)}")
    return None


def shown(value: Any) -> str:
    """A value in a message, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Text:
    """A name that is not empty, or any text; with `choices`, one of these."""

    expected: str = "a name"
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False

    def read(self, value: Any, path: str, errors: list[str]) -> str | None:
        if not isinstance(value, str) or not (value or self.may_be_empty):
            return wrong(self.expected, value, path, errors)
        if self.choices and value not in self.choices:
            errors.append(f"field '{path}': {_unknown(value, self.choices)}")
            return None
        return value

    def schema(self) -> Schema:
        if self.choices:
            return {"enum": list(self.choices)}
        return {"type": "string"} if self.may_be_empty else {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Flag:
    def read(self, value: Any, path: str, errors: list[str]) -> bool | None:
        return value if isinstance(value, bool) else wrong("true or false", value, path, errors)

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Scalar:
    """A text, a finite number, true, false or null, as it is."""

    def read(self, value: Any, path: str, errors: list[str]) -> str | float | bool | None:
        if isinstance(value, float) and not math.isfinite(value):
            return wrong("a finite number", value, path, errors)
        fits = value is None or isinstance(value, str | int | float)
        return (
            value if fits else wrong("a text, a number, true, false or null", value, path, errors)
        )

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True)
class Number:
    """A finite number, `at_least` or `above` a bound and `at_most` another; an int if `whole`.

    Texts of numbers count as numbers: YAML 1.1 reads `15.7e12` (no sign in the exponent) as a text.
    """

    at_least: float | None = None
    above: float | None = None
    whole: bool = False
    at_most: float | None = None

    def read(self, value: Any, path: str, errors: list[str]) -> float | int | None:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            return wrong("a number", value, path, errors)
        if self.above is not None and number <= self.above:
            return wrong(
                "a positive number" if self.above == 0 else f"more than {self.above}",
                value,
                path,
                errors,
            )
        if self.at_least is not None and number < self.at_least:
            return wrong(f"a number of at least {self.at_least:g}", value, path, errors)
        if self.at_most is not None and number > self.at_most:
            return wrong(f"a number of at most {self.at_most:g}", value, path, errors)
        if not self.whole:
            return number
        return (
            int(number) if number == int(number) else wrong("a whole number", value, path, errors)
        )

    def schema(self) -> Schema:
        kind: Schema = {"type": "integer" if self.whole else "number"}
        if self.above is not None:
            kind["exclusiveMinimum"] = self.above
        if self.at_least is not None:
            kind["minimum"] = self.at_least
        if self.at_most is not None:
            kind["maximum"] = self.at_most
        return kind


COUNT = Number(above=0, whole=True)
POSITIVE = Number(above=0)
NOT_NEGATIVE = Number(at_least=0)
SHARE = Number(above=0, at_most=1)
INDEX = Number(at_least=0, whole=True)


def _unknown(word: str, known: Sequence[str]) -> str:
    return f"expected one of {', '.join(known)}, got '{word}'"

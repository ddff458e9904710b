"""Readers: descriptions of fields, which check a value and can say what they expect as a JSON Schema.

A format has one description, from which come the values, the messages about mistakes and the schema. A reader that
finds a mistake adds a message with the path of the field and returns None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

REQUIRED = object()

Schema = dict[str, Any]


class Reader(Protocol):
    """Reads a value found under a field path; adds what is wrong to `mistakes`, each with the path."""

    def read(self, value: Any, path: str, mistakes: list[str]) -> Any: ...

    def schema(self) -> Schema: ...


def _wrong(expected: str, value: Any, path: str, mistakes: list[str]) -> Any:
    where = f"field '{path}': " if path else ""
    mistakes.append(f"{where}expected {expected}, got {_shown(value)}")
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Text:
    """A name that is not empty, or any text; with `choices`, one of these."""

    expected: str = "a name"
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False

    def read(self, value: Any, path: str, mistakes: list[str]) -> str | None:
        if not isinstance(value, str) or not (value or self.may_be_empty):
            return _wrong(self.expected, value, path, mistakes)
        if self.choices and value not in self.choices:
            mistakes.append(f"field '{path}': {_unknown(value, self.choices)}")
            return None
        return value

    def schema(self) -> Schema:
        if self.choices:
            return {"enum": list(self.choices)}
        return {"type": "string"} if self.may_be_empty else {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Flag:
    def read(self, value: Any, path: str, mistakes: list[str]) -> bool | None:
        return value if isinstance(value, bool) else _wrong("true or false", value, path, mistakes)

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Scalar:
    """A text, a finite number, true, false or null, as it is."""

    def read(self, value: Any, path: str, mistakes: list[str]) -> str | float | bool | None:
        if isinstance(value, float) and not math.isfinite(value):
            return _wrong("a finite number", value, path, mistakes)
        fits = value is None or isinstance(value, str | int | float)
        return value if fits else _wrong("a text, a number, true, false or null", value, path, mistakes)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True)
class Number:
    """A finite number, `at_least` or `above` a bound; an int if `whole`.

    Texts of numbers count as numbers: YAML 1.1 reads `15.7e12` (no sign in the exponent) as a text.
    """

    at_least: float | None = None
    above: float | None = None
    whole: bool = False

    def read(self, value: Any, path: str, mistakes: list[str]) -> float | int | None:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            return _wrong("a number", value, path, mistakes)
        if self.above is not None and number <= self.above:
            return _wrong("a positive number" if self.above == 0 else f"more than {self.above}", value, path, mistakes)
        if self.at_least is not None and number < self.at_least:
            return _wrong(f"a number of at least {self.at_least:g}", value, path, mistakes)
        if not self.whole:
            return number
        return int(number) if number == int(number) else _wrong("a whole number", value, path, mistakes)

    def schema(self) -> Schema:
        kind: Schema = {"type": "integer" if self.whole else "number"}
        if self.above is not None:
            kind["exclusiveMinimum"] = self.above
        if self.at_least is not None:
            kind["minimum"] = self.at_least
        return kind


COUNT = Number(above=0, whole=True)
POSITIVE = Number(above=0)
NOT_NEGATIVE = Number(at_least=0)
INDEX = Number(at_least=0, whole=True)


@dataclass(frozen=True)
class Nullable:
    """`null`, or what `inner` reads."""

    inner: Reader

    def read(self, value: Any, path: str, mistakes: list[str]) -> Any:
        return None if value is None else self.inner.read(value, path, mistakes)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "null"}, self.inner.schema()]}


@dataclass(frozen=True)
class Items:
    """A list, read into a tuple, of `least` to `most` items."""

    item: Reader
    least: int = 0
    most: int | None = None

    def read(self, value: Any, path: str, mistakes: list[str]) -> tuple[Any, ...] | None:
        if not isinstance(value, list | tuple) or len(value) < self.least or len(value) > (self.most or len(value)):
            return _wrong(self._expected(), value, path, mistakes)
        return tuple(self.item.read(item, f"{path}[{k}]", mistakes) for k, item in enumerate(value))

    def _expected(self) -> str:
        if self.most is not None and self.most == self.least:
            return f"a list of {self.least} items"
        return "a list" + (f" of at least {self.least} items" if self.least > 1 else " that is not empty" * self.least)

    def schema(self) -> Schema:
        kind: Schema = {"type": "array", "items": self.item.schema()}
        if self.least:
            kind["minItems"] = self.least
        if self.most is not None:
            kind["maxItems"] = self.most
        return kind


@dataclass(frozen=True)
class Row:
    """A list with a meaning for each place, read into a tuple."""

    items: tuple[Reader, ...]

    def read(self, value: Any, path: str, mistakes: list[str]) -> tuple[Any, ...] | None:
        if not isinstance(value, list | tuple) or len(value) != len(self.items):
            return _wrong(f"a list of {len(self.items)} items", value, path, mistakes)
        pairs = enumerate(zip(self.items, value, strict=True))
        return tuple(reader.read(item, f"{path}[{k}]", mistakes) for k, (reader, item) in pairs)

    def schema(self) -> Schema:
        items = [item.schema() for item in self.items]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


@dataclass(frozen=True)
class Table:
    """A mapping of names to values of one kind, read into a dict: any names, or in the order of `known`."""

    item: Reader
    known: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def read(self, value: Any, path: str, mistakes: list[str]) -> dict[str, Any] | None:
        if not _is_mapping(value, path, mistakes):
            return None
        known = self.known or tuple(value)
        _check_names(value, known, self.required, path, mistakes)
        return {name: self.item.read(value[name], _join(path, name), mistakes) for name in known if name in value}

    def schema(self) -> Schema:
        if not self.known:
            return {"type": "object", "additionalProperties": self.item.schema()}
        properties = {name: self.item.schema() for name in self.known}
        return _object(properties, self.required)


@dataclass(frozen=True)
class Field:
    """A field of a `Record`: its reader, what it means, and its value where it is left out."""

    reader: Reader
    about: str = ""
    default: Any = REQUIRED


@dataclass(frozen=True)
class Record:
    """A mapping with known fields, read into `make(**fields)`; `check(made)` may object with a message."""

    make: Callable[..., Any]
    fields: Mapping[str, Field]
    check: Callable[[Any], str] | None = None

    def read(self, value: Any, path: str, mistakes: list[str]) -> Any:
        if not _is_mapping(value, path, mistakes):
            return None
        before = len(mistakes)
        required = tuple(name for name, field in self.fields.items() if field.default is REQUIRED)
        _check_names(value, tuple(self.fields), required, path, mistakes)
        found = {
            name: field.reader.read(value[name], _join(path, name), mistakes) if name in value else field.default
            for name, field in self.fields.items()
        }
        if len(mistakes) > before:
            return None
        made = self.make(**found)
        objection = self.check(made) if self.check is not None else ""
        if objection:
            mistakes.append(f"field '{path}': {objection}" if path else objection)
        return made

    def schema(self) -> Schema:
        properties = {
            name: {**field.reader.schema(), **({"description": field.about} if field.about else {})}
            for name, field in self.fields.items()
        }
        return _object(properties, tuple(n for n, field in self.fields.items() if field.default is REQUIRED))


def _object(properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_mapping(value: Any, path: str, mistakes: list[str]) -> bool:
    if not isinstance(value, dict):
        where = f" in {path!r}" if path else ""
        mistakes.append(f"expected a mapping of fields{where}, got {_shown(value)}")
    return isinstance(value, dict)


def _check_names(
    value: Mapping[Any, Any], known: Sequence[str], required: Sequence[str], path: str, mistakes: list[str]
) -> None:
    unknown = [str(key) for key in value if key not in known]
    mistakes += [f"unknown field '{_join(path, key)}'{suggestion(key, known)}" for key in unknown]
    mistakes += [f"missing field '{_join(path, key)}'" for key in required if key not in value]


def suggestion(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: the known word that was meant, or all of them."""
    close = get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f" (known: {', '.join(known)})"


def _unknown(word: str, known: Sequence[str]) -> str:
    return f"expected one of {', '.join(known)}, got '{word}'"

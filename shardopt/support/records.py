"""Readers of what has parts: lists, rows, tables, and mappings into dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardopt.support.readers import Schema, ValueReader, shown, wrong
from shardopt.support.suggestions import suggestion

REQUIRED = object()


@dataclass(frozen=True)
class Nullable:
    """`null`, or what `inner` reads."""

    inner: ValueReader

    def read(self, value: Any, path: str, errors: list[str]) -> Any:
        return None if value is None else self.inner.read(value, path, errors)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "null"}, self.inner.schema()]}


@dataclass(frozen=True)
class Items:
    """A list, read into a tuple, of `least` to `most` items."""

    item: ValueReader
    least: int = 0
    most: int | None = None

    def read(self, value: Any, path: str, errors: list[str]) -> tuple[Any, ...] | None:
        if (
            not isinstance(value, list | tuple)
            or len(value) < self.least
            or len(value) > (self.most or len(value))
        ):
            return wrong(self._expected(), value, path, errors)
        return tuple(self.item.read(item, f"{path}[{k}]", errors) for k, item in enumerate(value))

    def _expected(self) -> str:
        if self.most is not None and self.most == self.least:
            return f"a list of {self.least} items"
        return "a list" + (
            f" of at least {self.least} items"
            if self.least > 1
            else " that is not empty" * self.least
        )

    def schema(self) -> Schema:
        kind: Schema = {"type": "array", "items": self.item.schema()}
        if self.least:
            kind["minItems"] = self.least
        if self.most is not None:
            kind["maxItems"] = self.most
        return kind


@dataclass(frozen=True)
class TupleOf:
    """A list with a meaning for each place, read into a tuple."""

    items: tuple[ValueReader, ...]

    def read(self, value: Any, path: str, errors: list[str]) -> tuple[Any, ...] | None:
        if not isinstance(value, list | tuple) or len(value) != len(self.items):
            return wrong(f"a list of {len(self.items)} items", value, path, errors)
        pairs = enumerate(zip(self.items, value, strict=True))
        return tuple(reader.read(item, f"{path}[{k}]", errors) for k, (reader, item) in pairs)

    def schema(self) -> Schema:
        items = [item.schema() for item in self.items]
        return {
            "type": "array",
            "prefixItems": items,
            "minItems": len(items),
            "maxItems": len(items),
        }


@dataclass(frozen=True)
class Table:
    """A mapping of names to values of one kind, read into a dict: any names, or in the order of
    `known`."""

    item: ValueReader
    known: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def read(self, value: Any, path: str, errors: list[str]) -> dict[str, Any] | None:
        if not _is_mapping(value, path, errors):
            return None
        known = self.known or tuple(value)
        _check_names(value, known, self.required, path, errors)
        return {
            name: self.item.read(value[name], _join(path, name), errors)
            for name in known
            if name in value
        }

    def schema(self) -> Schema:
        if not self.known:
            return {"type": "object", "additionalProperties": self.item.schema()}
        properties = {name: self.item.schema() for name in self.known}
        return _object(properties, self.required)


@dataclass(frozen=True)
class Field:
    """A field of a `Record`: its reader, what it means, and its value where it is left out."""

    reader: ValueReader
    about: str = ""
    default: Any = REQUIRED


@dataclass(frozen=True)
class Record:
    """A mapping with known fields, read into `make(**fields)`; `check(made)` may object with a
    message."""

    make: Callable[..., Any]
    fields: Mapping[str, Field]
    check: Callable[[Any], str] | None = None

    def read(self, value: Any, path: str, errors: list[str]) -> Any:
        if not _is_mapping(value, path, errors):
            return None
        before = len(errors)
        required = tuple(name for name, field in self.fields.items() if field.default is REQUIRED)
        _check_names(value, tuple(self.fields), required, path, errors)
        fields = {
            name: field.reader.read(value[name], _join(path, name), errors)
            if name in value
            else field.default
            for name, field in self.fields.items()
        }
        if len(errors) > before:
            return None
        made = self.make(**fields)
        objection = self.check(made) if self.check is not None else ""
        if objection:
            errors.append(f"field '{path}': {objection}" if path else objection)
        return made

    def schema(self) -> Schema:
        properties = {
            name: {**field.reader.schema(), **({"description": field.about} if field.about else {})}
            for name, field in self.fields.items()
        }
        return _object(
            properties, tuple(n for n, field in self.fields.items() if field.default is REQUIRED)
        )


def _object(properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_mapping(value: Any, path: str, errors: list[str]) -> bool:
    if not isinstance(value, dict):
        where = f" in {path!r}" if path else ""
        errors.append(f"expected a mapping of fields{where}, got {shown(value)}")
    return isinstance(value, dict)


def _check_names(
    value: Mapping[Any, Any],
    known: Sequence[str],
    required: Sequence[str],
    path: str,
    errors: list[str],
) -> None:
    unknown = [str(key) for key in value if key not in known]
    errors += [f"unknown field '{_join(path, key)}'{suggestion(key, known)}" for key in unknown]
    errors += [f"missing field '{_join(path, key)}'" for key in required if key not in value]

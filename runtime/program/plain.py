"""Frozen dataclasses as plain JSON values and back, by their type hints; made for what arrives over
a connection.

A dataclass is an object of its fields; in a union it has a field "op" with its name. Tuples are
lists, bytes base64. Values of the types in `shared` are kept once each in tables and named by their
number there, equal ones together. Reading checks everything against the hints, and calls nothing
but the constructors of the dataclasses that they name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_OP = "op"
_SCALARS = (bool, int, float, str)


class Writer:
    """Values to plain ones; `tables` grows by what is shared."""

    def __init__(self, shared: tuple[type, ...]) -> None:
        self.tables: dict[str, list[Any]] = {type_.__name__: [] for type_ in shared}
        self._numbers: dict[str, dict[Any, int]] = {name: {} for name in self.tables}
        self._tagged: dict[type, bool] = {}

    def write(self, value: Any, tagged: bool = False) -> Any:
        """`tagged` objects name their type, which those of a union must."""
        if isinstance(value, tuple):
            return [self.write(item, tagged) for item in value]
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if not is_dataclass(value):
            return value
        name = type(value).__name__
        if name not in self.tables:
            return self._object(value, tagged)
        numbers = self._numbers[name]
        if value not in numbers:
            numbers[value] = len(numbers)
            self.tables[name].append(self._object(value, tagged))
        return numbers[value]

    def _object(self, value: Any, tagged: bool) -> dict[str, Any]:
        plain: dict[str, Any] = {_OP: type(value).__name__.upper()} if tagged else {}
        hints = _hints(type(value))
        for each in fields(value):
            plain[each.name] = self.write(getattr(value, each.name), _has_union(hints[each.name]))
        return plain


class PlainReader:
    """Plain values to values of a type. Raises ValueError, which names the place, for what does not
    fit the type."""

    def __init__(self, shared: tuple[type, ...], tables: Mapping[str, Any]) -> None:
        self._shared = shared
        self._known: dict[type, list[Any]] = {}
        for type_ in shared:
            items = tables.get(type_.__name__)
            if not isinstance(items, list):
                raise ValueError(f"tables.{type_.__name__}: expected a list, found {_kind(items)}")
            where = f"tables.{type_.__name__}"
            self._known[type_] = [
                self._object(type_, item, f"{where}[{k}]") for k, item in enumerate(items)
            ]

    def read(self, type_: Any, value: Any, where: str) -> Any:
        origin, arguments = get_origin(type_), get_args(type_)
        if origin is tuple:
            return self._tuple(arguments, value, where)
        if origin in (Union, UnionType):
            return self._union(arguments, value, where)
        if origin is Literal:
            _expect(value in arguments, f"one of {', '.join(map(str, arguments))}", value, where)
            return value
        if type_ is bytes:
            _expect(isinstance(value, str), "base64 text", value, where)
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{where}: {error}") from None
        if type_ in _SCALARS:
            # The very type: to `isinstance` a truth value is a number.
            _expect(type(value) is type_, type_.__name__, value, where)
            return value
        if type_ in self._shared:
            known = self._known.get(type_, [])
            _expect(
                type(value) is int and 0 <= value < len(known),
                f"a number below {len(known)}",
                value,
                where,
            )
            return known[value]
        return self._object(type_, value, where)

    def _tuple(self, arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
        _expect(isinstance(value, list), "a list", value, where)
        if arguments[-1:] == (Ellipsis,):
            return tuple(
                self.read(arguments[0], item, f"{where}[{k}]") for k, item in enumerate(value)
            )
        _expect(len(value) == len(arguments), f"{len(arguments)} items", value, where)
        pairs = zip(arguments, value, strict=True)
        return tuple(
            self.read(type_, item, f"{where}[{k}]") for k, (type_, item) in enumerate(pairs)
        )

    def _union(self, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
        if value is None and NoneType in arguments:
            return None
        others = [argument for argument in arguments if argument is not NoneType]
        if len(others) == 1:
            return self.read(others[0], value, where)
        _expect(isinstance(value, dict), "an object", value, where)
        by_name = {argument.__name__.upper(): argument for argument in others}
        _expect(
            isinstance(value.get(_OP), str) and value[_OP] in by_name,
            f"an op of {', '.join(by_name)}",
            value.get(_OP),
            where,
        )
        return self._object(
            by_name[value[_OP]], {key: item for key, item in value.items() if key != _OP}, where
        )

    def _object(self, type_: Any, value: Any, where: str) -> Any:
        _expect(isinstance(value, dict), "an object", value, where)
        hints = _hints(type_)
        names = [each.name for each in fields(type_)]
        if set(value) != set(names):
            raise ValueError(
                f"{where}: expected the fields {', '.join(names)}, found "
                f"{', '.join(map(str, value))}"
            )
        read = {name: self.read(hints[name], value[name], f"{where}.{name}") for name in names}
        try:
            return type_(**read)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(type_: type) -> dict[str, Any]:
    if type_ not in _HINTS:
        _HINTS[type_] = get_type_hints(type_)
    return _HINTS[type_]


def _has_union(hint: Any) -> bool:
    """Whether dataclasses of several types may stand there."""
    if get_origin(hint) in (Union, UnionType):
        return sum(is_dataclass(argument) for argument in get_args(hint)) > 1
    return get_origin(hint) is tuple and any(_has_union(argument) for argument in get_args(hint))


def _expect(holds: bool, expected: str, value: Any, where: str) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {expected}, found {_kind(value)}")


def _kind(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"

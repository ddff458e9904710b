"""Typed options as dataclass fields, and their text form `{num-stages=2 schedule=1f1b
devices=0,1}`.

A field `num_stages: int = option(1, help="…")` is the option `num-stages`; `gap: float =
plan_option("gap")` is one that all of planning has (`shardopt.options`). Supported types: int,
float, bool, str, `Literal` of strings, `tuple[int | float | str, ...]`, and `T | None` with default
None. Printing writes only values that differ from their default, and parsing the printed text gives
an equal object.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import row_of
from shardopt.options.words import words_text
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

T = TypeVar("T")

# Text that needs no quotes: nothing that separates options, items or pipeline steps.
BARE_TEXT = re.compile(r"[^\s{}()\"',]+")


class OptionError(UserError):
    """An option that does not exist or a value of the wrong type; `offset` is where in the parsed
    text, or -1."""

    def __init__(self, message: str, offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


def option(default: T, *, help: str) -> T:
    """A dataclass field that is an option of a pass, with its default and one line of help."""
    return dataclasses.field(default=default, metadata={"help": help})


def plan_option(
    name: str, *, default: Any = None, help: str = "", table: type = PlanOptions
) -> Any:
    """A field that is an option of planning, too: its default and its help are those of the table.

    `default` is for a pass that takes another one, or holds the same in another form; `help` for a
    pass to which the option means less.
    """
    row = row_of(table, name)
    return option(row.pass_default if default is None else default, help=help or row.pass_help)


@dataclass(frozen=True)
class OptionSpec:
    """One option of a class: its kebab-case name, the field it fills, its resolved type, default
    and help."""

    name: str
    field: str
    type: Any
    default: Any
    help: str

    @property
    def type_text(self) -> str:
        """The type as the user reads it: `int`, `list of str`, `1f1b | gpipe`."""
        return _type_text(self.type)

    @property
    def default_text(self) -> str:
        """The default as the user would write it."""
        return _print_value(self.default) if self.default not in (None, "") else "none"


@cache
def option_specs(cls: type) -> tuple[OptionSpec, ...]:
    """The options of a dataclass in the order of its fields. A plan asks for those of a pass a
    hundred times, and to read what the annotations say takes a fraction of a millisecond."""
    hints = typing.get_type_hints(cls)
    return tuple(
        OptionSpec(
            f.name.replace("_", "-"), f.name, hints[f.name], f.default, f.metadata.get("help", "")
        )
        for f in dataclasses.fields(cls)
    )


@dataclass(frozen=True)
class OptionText:
    """`name=text` as written; `text` is None for a bare name, which means true. Offsets count in
    the parsed text."""

    name: str
    text: str | None
    offset: int

    def __str__(self) -> str:
        return self.name if self.text is None else f"{self.name}={self.text}"


def split_options(text: str) -> tuple[OptionText, ...]:
    """Split `a=1 b="x y" c={p=1 q=2} d=1,2` at blanks outside of quotes and braces. Raises
    OptionError."""
    options = []
    for offset, part in _split(text, blanks=True):
        name, equals, value = part.partition("=")
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise OptionError(f"expected 'name=value', found '{part}'", offset)
        options.append(OptionText(name, value if equals else None, offset))
    return tuple(options)


def parse_options(cls: type, text: str, owner: str) -> dict[str, Any]:
    """Field values from the text between the braces. `owner` names the pass in errors. Raises
    OptionError."""
    specs = {spec.name: spec for spec in option_specs(cls)}
    values: dict[str, Any] = {}
    for option in split_options(text):
        spec = specs.get(option.name)
        if spec is None:
            raise OptionError(
                unknown_name(f"option of {owner}", option.name, tuple(specs)), option.offset
            )
        if spec.field in values:
            raise OptionError(f"option '{option.name}' of {owner} is given twice", option.offset)
        try:
            values[spec.field] = _parse_value(spec.type, option.text)
        except ValueError as error:
            value_text = option.text if option.text is not None else ""
            message = (
                f"option '{option.name}' of {owner} expects {spec.type_text}, found '{value_text}'"
            )
            raise OptionError(
                f"{message} ({error})" if str(error) else message, option.offset
            ) from None
    return values


def print_options(obj: Any) -> str:
    """The text between the braces: the options of a dataclass instance that differ from their
    defaults."""
    values = [(spec, getattr(obj, spec.field)) for spec in option_specs(obj.__class__)]
    return " ".join(
        f"{spec.name}={_print_value(value)}" for spec, value in values if value != spec.default
    )


def balanced_end(text: str, start: int) -> int:
    """Index just past the bracketed or quoted text that begins at `start`. Raises OptionError if it
    is not closed."""
    closers = []
    index = start
    while index < len(text):
        char = text[index]
        if char in "\"'":
            index = _quote_end(text, index)
        else:
            if char in "{(":
                closers.append("}" if char == "{" else ")")
            elif char in "})" and (not closers or closers.pop() != char):
                raise OptionError(f"unexpected '{char}'", index)
            index += 1
        if not closers:
            return index
    raise OptionError(f"'{text[start]}' is never closed", start)


def _quote_end(text: str, start: int) -> int:
    index = start + 1
    while index < len(text) and text[index] != text[start]:
        index += 2 if text[index] == "\\" else 1
    if index >= len(text):
        raise OptionError(f"{text[start]} is never closed", start)
    return index + 1


def _split(text: str, *, blanks: bool) -> list[tuple[int, str]]:
    """Parts between blanks (dropped when empty) or between commas (kept when empty), with their
    offsets."""
    parts = []
    start = index = 0
    while index < len(text):
        if text[index] in "{(\"'})":
            index = balanced_end(text, index)
            continue
        if text[index].isspace() if blanks else text[index] == ",":
            parts.append((start, text[start:index]))
            start = index + 1
        index += 1
    parts.append((start, text[start:]))
    return [part for part in parts if part[1]] if blanks else parts


def _parse_value(type_: Any, text: str | None) -> Any:
    """A value of the type, or ValueError (with a reason, or empty when the type says it all)."""
    if text is None:
        if type_ is bool:
            return True
        raise ValueError("a value is missing")
    inner, origin = _without_none(type_), typing.get_origin(type_)
    if origin is tuple:
        element = typing.get_args(type_)[0]
        items = text[1:-1] if text.startswith("{") and balanced_end(text, 0) == len(text) else text
        return (
            tuple(_parse_value(element, item) for _, item in _split(items, blanks=False))
            if items
            else ()
        )
    if origin is Literal:
        value = _unquote(text)
        if value not in typing.get_args(type_):
            raise ValueError
        return value
    if inner is not type_:
        return _parse_value(inner, text)
    return _parse_scalar(type_, _unquote(text))


def _parse_scalar(type_: Any, text: str) -> Any:
    if type_ is str:
        return text
    if type_ is bool:
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"
    if type_ in (int, float):
        try:
            return type_(text)
        except ValueError:
            raise ValueError from None  # Python's own wording says less than the expected type
    raise TypeError(f"option type {type_} is not supported")


def _unquote(text: str) -> str:
    if not text or text[0] not in "{\"'" or balanced_end(text, 0) != len(text):
        return text
    return text[1:-1] if text[0] == "{" else re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _print_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_print_value(item) for item in value) if value else "{}"
    text = repr(value) if isinstance(value, float) else str(value)
    if BARE_TEXT.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _without_none(type_: Any) -> Any:
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return type_
    members = [member for member in typing.get_args(type_) if member is not type(None)]
    return members[0] if len(members) == 1 else type_


def _type_text(type_: Any) -> str:
    inner = _without_none(type_)
    if typing.get_origin(inner) is tuple:
        return f"list of {_type_text(typing.get_args(inner)[0])}"
    if typing.get_origin(inner) is Literal:
        return words_text(typing.get_args(inner))
    return "true or false" if inner is bool else getattr(inner, "__name__", str(inner))

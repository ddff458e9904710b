"""The field `options` of a plan file: a reader for each option of the table of planning.

A plan file is read with any scalars as options, since passes take parts from it that do not depend
on them. Whoever plans after the file, or checks it, reads the options by the table
(`read_options`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import OptionRow, rows
from shardopt.planfile.parts import PlanFile
from shardopt.support.readers import NOT_NEGATIVE, Flag, Number, Scalar, Schema, Text, ValueReader
from shardopt.support.records import Field, Nullable, Record, Table

_LEFT_OUT = object()


@dataclass(frozen=True)
class _WordOr:
    """One of some words, or what `inner` reads."""

    words: tuple[str, ...]
    inner: ValueReader

    def read(self, value: Any, path: str, errors: list[str]) -> Any:
        is_word = isinstance(value, str) and value in self.words
        return value if is_word else self.inner.read(value, path, errors)

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": list(self.words)}, self.inner.schema()]}


@dataclass(frozen=True)
class Options:
    """Reads scalars by any names; the schema tells the options of the table."""

    table: type

    def read(self, value: Any, path: str, errors: list[str]) -> Any:
        return Table(Scalar()).read(value, path, errors)

    def schema(self) -> Schema:
        return options_reader(self.table).schema()


def read_options(plan: PlanFile) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options of a plan file, and what is wrong with them; where something is, they must not be
    used."""
    errors: list[str] = []
    return options_reader(PlanOptions).read(plan.options, "options", errors), tuple(errors)


def options_reader(table: type) -> Record:
    """Reads the options that files may have into a dictionary of those that the file has."""
    readable = (row for row in rows(table) if row.in_file != "no")
    return Record(
        _without_missing, {row.field: Field(_reader(row), row.help, _LEFT_OUT) for row in readable}
    )


def _without_missing(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not _LEFT_OUT}


def _reader(row: OptionRow) -> ValueReader:
    reader = _of_base(row)
    return Nullable(reader) if row.is_optional else reader


def _of_base(row: OptionRow) -> ValueReader:
    if row.base is bool:
        return Flag()
    if row.base is float:
        return NOT_NEGATIVE
    if row.base is int:
        number = Number(at_least=row.least or 0, whole=True)
        return _WordOr(row.choices, number) if row.choices else number
    return Text(choices=row.choices) if row.choices else Text("a text", may_be_empty=True)

"""Options on the command line, from their table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from shardopt.options.table import OptionRow, rows
from shardopt.options.words import words_text
from shardopt.tools.common import count
from shardopt.tools.completion import is_completing, suggest

# On the command line None, the planner's choice, is a word.
_UNSET = "auto"


def add_options(parser: argparse.ArgumentParser, table: type) -> None:
    """Add a flag for every option, whose value is stored under the name of its field."""
    for row in rows(table):
        action = parser.add_argument(row.flag, dest=row.field, **_settings(row))
        if is_completing():
            suggest(action, _words(row))


def _words(row: OptionRow) -> tuple[str, ...]:
    """What may be typed, as far as that has names."""
    from shardopt.hardware.cluster_file import presets
    from shardopt.schedule.schedules import AUTO, SCHEDULES, SEARCH

    if row.field == "cluster":
        return presets()
    if row.field == "schedule":
        return (AUTO, SEARCH, *SCHEDULES)
    return (*map(str, row.choices), *((_UNSET,) if row.is_optional else ()))


def _settings(row: OptionRow) -> dict[str, Any]:
    if row.base is bool:
        is_on = row.default is True
        action, text = ("store_false", row.off) if is_on else ("store_true", row.help)
        return {"action": action, "help": _escaped(text)}
    settings: dict[str, Any] = {
        "default": row.default if row.has_default else "",
        "type": _parser(row),
        "help": _escaped(_help(row)),
        "metavar": row.metavar,
    }
    if row.base is str and row.choices:
        settings["choices"] = row.choices
    return settings


def _help(row: OptionRow) -> str:
    text = row.described(_UNSET)
    if row.metavar is not None and row.base is str and row.choices:
        text = f"{text}: {words_text(row.choices)}"
    has_text = row.has_default and row.default not in (None, "")
    return f"{text} (default {row.default})" if has_text else text


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _parser(row: OptionRow) -> Callable[[str], Any]:
    return partial(_number, row) if row.base is int else row.base


def _number(row: OptionRow, text: str) -> int | str | None:
    """A whole number, a word that the option knows, or None. Raises argparse.ArgumentTypeError."""
    if text in row.choices:
        return text
    if row.is_optional and text == _UNSET:
        return None
    if row.least == 1:
        return count(text)
    if not text.isdecimal():
        least = row.least or 0
        raise argparse.ArgumentTypeError(f"expected a number of at least {least}, found '{text}'")
    return int(text)

"""Functions that take options as keyword arguments, and show them: to editors by `keywords`, at run
time from here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import fill
from typing import Any, TypeVar

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import Function, OptionRow, rows

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 100


def shows_options(
    function: Function, table: type = PlanOptions, *, has_others: bool = False
) -> Callable[[F], F]:
    """Have `inspect.signature` and `help` list the options that `function` takes, where it says
    `**options`; this stays behind them where it has others, too."""
    taken = [row for row in rows(table) if function in row.functions]

    def show(decorated: F) -> F:
        signature = inspect.signature(decorated)
        listed = [
            _parameter(row, function) for row in taken if row.field not in signature.parameters
        ]
        *named, others = signature.parameters.values()
        shown = [*named, *listed, *([others] if has_others else [])]
        decorated.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        doc = inspect.cleandoc(decorated.__doc__ or "")
        decorated.__doc__ = "\n\n".join((doc, "\n".join(map(_line, taken))))
        return decorated

    return show


def _parameter(row: OptionRow, function: Function) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    annotation = row.accepts.get(function, row.type)
    return inspect.Parameter(row.field, kind, default=row.default, annotation=annotation)


def _line(row: OptionRow) -> str:
    text = f"{row.field:16}{row.described('None')}"
    return fill(text, _WIDTH, subsequent_indent=" " * 16, break_on_hyphens=False)

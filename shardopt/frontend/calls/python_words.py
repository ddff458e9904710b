"""Messages of passes in the words of Python: passes name options as command lines and pipelines do,
callers of functions know them as keyword arguments.

    batch-coupling=per-microbatch lets …     ─▶     batch_coupling='per-microbatch' lets …
    divides into num-microbatches=4          ─▶     divides into microbatches=4
    the option --cluster                     ─▶     the option cluster

The names are those of the table of options, with those under which it hands options to passes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Diagnostic, Handler


def python_words(message: str) -> str:
    """A message with options under the names of keyword arguments."""
    return _options().sub(_keyword, message)


@cache
def spellings() -> dict[str, str]:
    """How command lines, pipelines and passes spell each option -> the keyword argument."""
    names = {name: row.field for row in rows(PlanOptions) for name in row.phases.values() if name}
    # Where a pass gives a name another meaning, callers mean the option that has it.
    return names | {row.name: row.field for row in rows(PlanOptions)}


@cache
def _options() -> re.Pattern[str]:
    names = spellings()
    flags = "|".join(row.name for row in rows(PlanOptions))
    compound = "|".join(name for name in names if "-" in name)
    # A word like `method` is an option only where a value follows.
    words = "|".join(name for name, keyword in names.items() if "-" not in name and name != keyword)
    return re.compile(
        rf"(?<![\w-])(?:--(?:no-)?(?P<flag>{flags})|(?P<name>{compound})|(?P<word>{words})(?==))"
        r"(?P<value>=(?:[A-Z]+(?:\[[^\]\s]*\])+|[\w:.-]*\w))?(?![\w-])"
    )


def _keyword(match: re.Match[str]) -> str:
    name = spellings()[match["flag"] or match["name"] or match["word"]]
    value = (match["value"] or "")[1:]
    if not value:
        return name
    return f"{name}={value}" if re.fullmatch(r"[\d.]+|true|false", value) else f"{name}='{value}'"


@contextmanager
def errors_for_python() -> Iterator[None]:
    """Users' errors from inside, in the words of Python."""
    from shardopt.ir.diagnostics import DiagnosedError

    try:
        yield
    except DiagnosedError as error:
        raise error.changed(_reworded) from error
    except UserError as error:
        raise UserError(python_words(str(error))) from error


def python_handler(handler: Handler | None) -> Handler:
    """What gets messages of planning: `handler`, or, where the caller has none, Python's warnings
    for those that are."""
    report: Callable[[Diagnostic], None] = _warn if handler is None else handler
    return lambda diagnostic: report(_reworded(diagnostic))


def _reworded(diagnostic: Diagnostic) -> Diagnostic:
    return replace(
        diagnostic,
        message=python_words(diagnostic.message),
        notes=tuple(map(_reworded, diagnostic.notes)),
    )


def _warn(diagnostic: Diagnostic) -> None:
    if diagnostic.severity == "warning":
        # The user's line is known from the message; the frames below are ours.
        warnings.warn(str(diagnostic), UserWarning, stacklevel=2)

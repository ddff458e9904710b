"""What is made from the table of planning options: `docs/reference/options.md`, and the keyword
arguments that editors see."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

from shardopt.options import names
from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import Function, OptionRow, rows
from shardopt.options.words import words_text

# The classes of `shardopt.options.keywords`, and the function that takes each.
_CLASSES: tuple[tuple[str, Function], ...] = (
    ("PlanKeywords", "optimize"),
    ("ShardKeywords", "shard"),
    ("StepKeywords", "parallelize"),
)
_WIDTH = 100
_IN_FILE = {"always": "yes", "changed": "where changed", "read": "read only", "no": "no"}


HEADER = ("keyword", "flag", "type", "default", "", "keyword of", "handed to", "in plan files")


def option_rows(table: type = PlanOptions) -> Iterator[tuple[str, ...]]:
    """The cells under `HEADER` for each option."""
    for row in rows(table):
        phases = [f"{phase}: `{name}`" if name else phase for phase, name in row.phases.items()]
        default = f"`{row.default!r}`" if row.has_default else "required"
        functions = ", ".join(f"`{function}`" for function in row.functions)
        meaning = row.described("None, or auto on the command line")
        is_word = row.base is str and bool(row.choices)
        kind = words_text(row.choices) if is_word else _text_of(row.type)
        spelt = (f"`{row.field}`", f"`{row.flag}`", f"`{kind}`", default, meaning)
        yield *spelt, functions, ", ".join(phases), _IN_FILE[row.in_file]


def keywords_module(table: type = PlanOptions) -> str:
    """The source of `shardopt/options/keywords.py`."""
    used = {_keyword_type(row, function) for row in rows(table) for function in row.functions}
    imported = sorted(used & set(_NAMES.values()))
    lines = [
        '"""What functions take as `**options: Unpack[PlanKeywords]`, for type checkers and '
        "editors.",
        "",
        "Made from `shardopt.options.plan_options` by `python -m scripts.docs`; a test",
        "checks that it is up to date.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import os",
        "from typing import Literal, TypedDict",
        "",
        "from shardopt.options.names import (",
        *(f"    {name}," for name in imported),
        ")",
    ]
    for name, function in _CLASSES:
        lines += ["", "", f"class {name}(TypedDict, total=False):"]
        lines += [f'    """Options of `shardopt.{function}`."""']
        for row in rows(table):
            if function in row.functions:
                lines += ["", f"    {row.field}: {_keyword_type(row, function)}", *_docstring(row)]
    return "\n".join(lines) + "\n"


def _docstring(row: OptionRow) -> list[str]:
    text = row.described("None")
    sentence = f"{text[:1].upper()}{text[1:]}. Default: {row.default!r}."
    first, *rest = wrap(sentence, _WIDTH - 10, break_on_hyphens=False)
    if not rest:
        return [f'    """{first}"""']
    return [f'    """{first}', *(f"    {line}" for line in rest[:-1]), f'    {rest[-1]}"""']


# What literals are called in the source; those that mean one thing only have no name.
_NAMES: dict[Any, str] = {
    value: name for name, value in vars(names).items() if name[0].isupper() and get_args(value)
}


def _keyword_type(row: OptionRow, function: Function) -> str:
    return row.accepts.get(function) or _type_text(row)


def _type_text(row: OptionRow) -> str:
    if row.type in _NAMES:
        return _NAMES[row.type]
    return _text_of(row.type)


def _text_of(type_: Any) -> str:
    if type_ is type(None):
        return "None"
    if isinstance(type_, type):
        return type_.__name__
    arms = get_args(type_)
    if get_origin(type_) is not Literal:
        return " | ".join(map(_text_of, arms))
    return f"Literal[{', '.join(map(repr, arms))}]".replace("'", '"')

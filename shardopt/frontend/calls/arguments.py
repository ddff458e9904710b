"""What callers of the Python API hand over, as the options that planning takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from shardopt.options.names import BatchArguments, MeshIntraOp
from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import Function, OptionRow, rows
from shardopt.support.errors import UserError
from shardopt.support.sizes import parse_bytes
from shardopt.support.suggestions import unknown_name

# Keywords that name a file, and what they are expected to be.
_PATHS = {
    "cluster": "a file or the name of a preset",
    "constraints": "a file",
    "profile": "a file",
    "plan": "a file",
}


def options_of(
    function: Function,
    cluster: str | os.PathLike[str],
    keywords: Mapping[str, Any],
    model: Any = None,
) -> PlanOptions:
    """The options that `function` was called with, in the form of the table. Raises UserError for
    those that it does not take, and for values of other types than it takes."""
    check_names(function, keywords)
    values = {"cluster": cluster, **keywords}
    if "batch_args" in values:
        values["batch_args"] = batch_text(values["batch_args"], model)
    if "memory_budget" in values:
        values["memory_budget"] = _bytes_text(values["memory_budget"])
    values |= {name: path_text(name, values[name]) for name in _PATHS if name in values}
    for row in rows(PlanOptions):
        if row.field in values:
            if row.unset and isinstance(values[row.field], str) and values[row.field] == "auto":
                values[row.field] = None  # as the command line has it
            accepted = _words(MeshIntraOp) if "MeshIntraOp" in row.accepts.get(function, "") else ()
            check_value(row, values[row.field], accepted)
    return PlanOptions(**values)


def check_value(row: OptionRow, value: object, words: Sequence[str] = ()) -> None:
    """Raises UserError for a value of another type than the option has, a number that it does not
    allow, or none of its words (`words` if there are any)."""
    words = words or row.choices
    if value is None and row.is_optional:
        return
    if isinstance(value, str) and words:
        if value in words:
            return
        raise UserError(unknown_name(f"value of {row.field}", value, words))
    if not words or row.base is not str:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            int: type(value) is int,
            float: number,
            bool: isinstance(value, bool),
            str: isinstance(value, str),
        }
        if fits[row.base] and _is_within(row, value):
            return
    raise UserError(f"expected {row.field} to be {_expected(row, words)}, found {value!r}")


def _is_within(row: OptionRow, value: Any) -> bool:
    # Not the opposites, which nan passes.
    return (row.least is None or value >= row.least) and (row.most is None or value <= row.most)


def _expected(row: OptionRow, words: Sequence[str]) -> str:
    kinds = {int: "an integer", float: "a number", bool: "True or False", str: "text"}
    text = kinds[row.base] if row.base is not str or not words else ""
    text += f" of at least {row.least}" if row.least is not None else ""
    text += f" and at most {row.most}" if row.most is not None else ""
    parts = [text, *(f"'{word}'" for word in words), "None" if row.is_optional else ""]
    return " or ".join(part for part in parts if part)


def _words(literals: Any) -> tuple[str, ...]:
    return tuple(
        word
        for each in get_args(literals)
        for word in ([each] if isinstance(each, str) else _words(each))
    )


def _bytes_text(budget: object) -> object:
    text = str(budget) if type(budget) is int else budget
    if isinstance(text, str) and text:
        try:
            parse_bytes(text)
        except ValueError as error:
            raise UserError(f"memory_budget: {error}") from None
    return text


def check_names(
    function: Function,
    keywords: Mapping[str, Any],
    others: tuple[str, ...] = (),
) -> None:
    """Raises UserError for a keyword that is no option of `function`, nor one of the `others` that
    it has."""
    known = (*(row.field for row in rows(PlanOptions) if function in row.functions), *others)
    for name in keywords:
        if name not in known:
            raise UserError(f"{function}: {unknown_name('option', name, known)}")


def path_text(name: str, path: str | os.PathLike[str]) -> str:
    """A keyword that names a file, as text. Raises UserError."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"expected {name} to be {_PATHS[name]}, found {type(path).__name__}")
    return os.fspath(path)


def batch_text(batch_args: BatchArguments, model: Any = None) -> str:
    """The `batch_args` of `PlanOptions`. Raises UserError for anything but text, numbers and names,
    or a mapping from such to dimensions.

    Numbers count the flat arguments of the function; an `Exported` may have dropped some of them
    from its module."""
    if isinstance(batch_args, str):
        return batch_args
    dims = _dimensions(batch_args)
    kept = getattr(model, "module_kept_var_idx", None)
    if kept is not None:
        missing = [number for number in dims if isinstance(number, int) and number not in kept]
        if missing:
            total = len(model.in_avals)
            raise UserError(
                f"batch argument {missing[0]} is not used by '{model.fun_name}' ({total} "
                "flat arguments)"
            )
        dims = {kept.index(key) if isinstance(key, int) else key: dim for key, dim in dims.items()}
    numbers = sorted((key, dim) for key, dim in dims.items() if isinstance(key, int))
    names = [(key, dim) for key, dim in dims.items() if isinstance(key, str)]
    return ",".join(f"{key}:{dim}" for key, dim in (*numbers, *names)) or "none"


def _dimensions(batch_args: BatchArguments) -> dict[int | str, int]:
    try:
        mapping = batch_args if isinstance(batch_args, Mapping) else dict.fromkeys(batch_args, 0)
        dims: dict[int | str, int] = dict(mapping.items())
    except TypeError:
        dims = {-1: 0}
    if not all(isinstance(key, str) or _is_count(key) for key in dims) or not all(
        map(_is_count, dims.values())
    ):
        raise UserError(
            "expected batch_args to be text, argument numbers and names, or a dictionary from such "
            f"to dimensions, found {batch_args!r}"
        )
    return dims


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0

"""What callers of the Python API hand over, as the options that planning takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from shardopt.support.errors import UserError

# Text as of the command line; numbers of flat arguments or names, split along dimension 0; or number or name ->
# dimension.
BatchArguments = str | Sequence[int | str] | Mapping[int, int] | Mapping[str, int] | Mapping[int | str, int]


def cluster_text(cluster: str | os.PathLike[str]) -> str:
    """The `cluster` of `PlanOptions`. Raises UserError."""
    if not isinstance(cluster, str | os.PathLike):
        raise UserError(f"expected cluster to be a file or the name of a preset, found {type(cluster).__name__}")
    return os.fspath(cluster)


def constraints_text(constraints: str | os.PathLike[str]) -> str:
    """The `constraints` of `PlanOptions`. Raises UserError."""
    if not isinstance(constraints, str | os.PathLike):
        raise UserError(f"expected constraints to be a file, found {type(constraints).__name__}")
    return os.fspath(constraints)


def batch_text(batch_args: BatchArguments, model: Any = None) -> str:
    """The `batch_args` of `PlanOptions`. Raises UserError for anything but text, numbers and names, or a mapping from
    such to dimensions.

    Numbers count the flat arguments of the function; an `Exported` may have dropped some of them from its module.
    """
    if isinstance(batch_args, str):
        return batch_args
    dims = _dimensions(batch_args)
    kept = getattr(model, "module_kept_var_idx", None)
    if kept is not None:
        missing = [number for number in dims if isinstance(number, int) and number not in kept]
        if missing:
            total = len(model.in_avals)
            raise UserError(f"batch argument {missing[0]} is not used by '{model.fun_name}' ({total} flat arguments)")
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
    if not all(isinstance(key, str) or _is_count(key) for key in dims) or not all(map(_is_count, dims.values())):
        raise UserError(
            "expected batch_args to be text, argument numbers and names, or a dictionary from such to dimensions, "
            f"found {batch_args!r}"
        )
    return dims


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def option_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if text and not set(text) & set(' {}="') else '"' + text + '"'

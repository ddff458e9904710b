"""Which arguments of a function hold the batch, as its caller names them: by number or by name,
with a dimension for the whole argument or a tree of dimensions, as `in_axes` of `jax.vmap` has
them.

    batch_argnums={1: {"tokens": 0, "states": (1, 1), "weights": None}}

A dimension stands for all leaves below it that have it; one that stands at a leaf has to be there.
None stands for what has no rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from shardopt.support.errors import UserError

K = TypeVar("K", int, str)

# A dimension, None for no rows, or a tree of these with the structure of the argument's upper part.
Dims: TypeAlias = Any
# Positional arguments whose leaves hold the batch in dimension 0; or number -> dimensions.
ArgumentNumbers: TypeAlias = "int | Sequence[int] | Mapping[int, Dims]"
# The same by the names of parameters.
ArgumentNames: TypeAlias = "str | Sequence[str] | Mapping[str, Dims]"


@dataclass(frozen=True)
class BatchNames:
    """What was named; nothing if the step has no batch."""

    numbers: Mapping[int, Dims]
    names: Mapping[str, Dims]

    def __str__(self) -> str:
        given = (("batch_argnums", self.numbers), ("batch_argnames", self.names))
        return " and ".join(f"{option}={_brief(dims)}" for option, dims in given if dims)

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)


def batch_names(
    argnums: ArgumentNumbers | None, argnames: ArgumentNames | None
) -> BatchNames | None:
    """None where neither is given. Raises UserError."""
    if argnums is None and argnames is None:
        return None
    numbers = _mapping("batch_argnums", "numbers", argnums, int)
    return BatchNames(numbers, _mapping("batch_argnames", "names", argnames, str))


def leaf_dims(
    dims: Dims, numbers: Any, where: str, *, inside: bool = False
) -> Iterator[tuple[int, int, str]]:
    """Of an argument as a tree of leaf numbers: (leaf, its dimension, its place) for those that
    `dims` give one; no place ("") unless a tree says the dimension for this leaf alone. Raises
    UserError, which names `where`, for trees that do not fit."""
    if dims is None:
        return
    if type(dims) is int:
        place = where if inside and type(numbers) is int else ""
        yield from ((number, dims, place) for number in jax.tree.leaves(numbers))
        return
    inner, outer = _children(dims), _children(numbers)
    if inner.keys() != outer.keys():
        raise UserError(
            f"expected the batch dimensions of {where} to be for {_listed(outer)}, found "
            f"{_listed(inner)}; None stands for what has no rows"
        )
    for name, (_, child) in inner.items():
        key, numbers_below = outer[name]
        yield from leaf_dims(child, numbers_below, where + key, inside=True)


def _mapping(option: str, what: str, given: Any, kind: type[K]) -> dict[K, Dims]:
    if given is None:
        return {}
    given = (given,) if isinstance(given, str | int) else given
    keys = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(type(key) is kind and (isinstance(key, str) or key >= 0) for key in keys):
        raise UserError(
            f"expected {option} to be argument {what}, or a dictionary from {what} to dimensions, "
            f"found {given!r}"
        )
    dims = dict(given) if isinstance(given, Mapping) else dict.fromkeys(keys, 0)
    for key, tree in dims.items():
        for path, dim in tree_flatten_with_path(tree)[0]:
            if type(dim) is not int or dim < 0:
                raise UserError(
                    f"expected {option}[{key!r}]{keystr(path)} to be a dimension, None for what "
                    f"has no rows, or a tree of such, found {dim!r}"
                )
    return dims


def _children(node: Any) -> dict[str, tuple[str, Any]]:
    """The entries of a tree by their bare names: how they are written, and what they are. Nodes of
    other types with the same names fit, such as a dictionary for a data class."""
    below, _ = tree_flatten_with_path(node, is_leaf=lambda each: each is not node)
    return {
        keystr(path, simple=True): (keystr(path), child) for path, child in below if len(path) == 1
    }


def _listed(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in entries) or "nothing"


def _brief(dims: Mapping[Any, Dims]) -> str:
    return str(dict(dims) if any(dim != 0 for dim in dims.values()) else tuple(dims))

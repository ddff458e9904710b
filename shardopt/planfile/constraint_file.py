"""The constraints file: what a user demands of values and operations, by pattern. YAML, or JSON
with the same fields.

    # an argument of @main: its number, its name, or a pattern for names
    - argument: "params['dense']['kernel']"
      sharding: [[x], []]                     # the axes of every dimension, major to minor
    # operations by name and, or, by a pattern found in their location
    - op: dot_general
      location: "layer_0/"
      dims: {0: [x]}                          # some dimensions; the others are free
    - result: 0
      replicated: true
    - location: "attention"
      forbid: [y]                             # axes that split nothing of these operations

Axes are those of the planner's meshes: x, y and z. `mesh` (a pattern for names) limits an entry to
some meshes of a pipeline; an entry that matches nothing is an error unless it is `optional: true`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shardopt.mesh.annotation import Annotation
from shardopt.mesh.mesh import Mesh
from shardopt.support.documents import parse_text
from shardopt.support.errors import UserError

Dims = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Entry:
    """One entry; `place` says where it stands. Of the demands exactly one is given, or `forbid`
    next to another."""

    place: str
    argument: int | str | None = None
    result: int | str | None = None
    op: str | None = None
    location: str | None = None
    mesh: str | None = None
    sharding: tuple[tuple[str, ...], ...] | None = None
    dims: Dims | None = None
    replicated: bool = False
    forbid: tuple[str, ...] = ()
    optional: bool = False

    @property
    def is_of_ops(self) -> bool:
        return self.op is not None or self.location is not None

    @property
    def wants_sharding(self) -> bool:
        return self.sharding is not None or self.dims is not None or self.replicated

    def on_mesh(self, mesh: Mesh) -> bool:
        return self.mesh is None or re.fullmatch(self.mesh, mesh.name) is not None

    def names(self, which: int | str | None, number: int, name: str) -> bool:
        """Whether `argument` or `result` means the one with this number and name. A name stands for
        itself too."""
        if isinstance(which, int):
            return which == number
        return which is not None and bool(name) and (which == name or _matches(which, name))

    def names_op(self, name: str, location: str) -> bool:
        """Whether the entry means an operation (`dot_general`), by its name and what its location
        prints as."""
        if not self.is_of_ops or self.op not in (None, name, f"stablehlo.{name}"):
            return False
        return self.location is None or re.search(self.location, location) is not None

    def annotation(self, rank: int, mesh: Mesh) -> Annotation:
        """What the entry says about a value of this rank. Raises ValueError for axes and dimensions
        it has not."""
        if self.replicated:
            return Annotation(mesh.axes, ((),) * rank)
        if self.sharding is not None:
            return Annotation(mesh.axes, self.sharding)
        axes_of = dict(self.dims or ())
        beyond = [dim for dim in axes_of if dim >= rank]
        if beyond:
            raise ValueError(f"it names dimension {beyond[0]} of a value of rank {rank}")
        free = tuple(dim for dim in range(rank) if dim not in axes_of)
        return Annotation(mesh.axes, tuple(axes_of.get(dim, ()) for dim in range(rank)), free)

    def __str__(self) -> str:
        return self.place


def load_constraints(path: str) -> tuple[Entry, ...]:
    """The entries of a file. Raises UserError that names the file, the entry and the field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read the constraints file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot read the constraints file: not UTF-8 text") from None
    return parse_constraints(parse_text(text, path), path)


def parse_constraints(data: Any, file: str) -> tuple[Entry, ...]:
    """The entries of a parsed file; see `load_constraints`."""
    if data is None:
        return ()
    if not isinstance(data, list):
        raise UserError(f"{file}: expected a list of entries, found {_kind(data)}")
    return tuple(_entry(item, f"{file}, entry {number}") for number, item in enumerate(data))


def _entry(item: Any, place: str) -> Entry:
    if not isinstance(item, Mapping):
        raise UserError(f"{place}: expected fields, found {_kind(item)}")
    unknown = [name for name in item if name not in _FIELDS]
    if unknown:
        raise UserError(
            f"{place}: unknown field '{unknown[0]}', expected one of {', '.join(_FIELDS)}"
        )
    fields = {
        name: _FIELDS[name](value, f"{place}, field '{name}'") for name, value in item.items()
    }
    entry = Entry(place, **fields)
    targets = [entry.argument is not None, entry.result is not None, entry.is_of_ops]
    if sum(targets) != 1:
        raise UserError(
            f"{place}: expected argument, or result, or op and location, found {_listed(item)}"
        )
    shardings = [entry.sharding is not None, entry.dims is not None, entry.replicated]
    if sum(shardings) > 1 or not (any(shardings) or entry.forbid):
        raise UserError(
            f"{place}: expected one of sharding, dims, replicated, or forbid, found {_listed(item)}"
        )
    return entry


def _listed(item: Mapping[str, Any]) -> str:
    return ", ".join(map(str, item)) or "no field"


def _number_or_name(value: Any, where: str) -> int | str:
    if (isinstance(value, str) and value) or (type(value) is int and value >= 0):
        return value
    raise UserError(f"{where}: expected a number or a name, found {value!r}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: expected text, found {value!r}")
    return value


def _pattern(value: Any, where: str) -> str:
    text = _text(value, where)
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(
            f"{where}: expected a regular expression, found {text!r}: {error}"
        ) from error
    return text


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where}: expected true or false, found {value!r}")
    return value


def _axes(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(axis, str) and axis for axis in value):
        if len(set(value)) != len(value):
            raise UserError(f"{where}: expected every axis once, found {value!r}")
        return tuple(value)
    raise UserError(f"{where}: expected a list of axes such as [x], found {value!r}")


def _sharding(value: Any, where: str) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list):
        raise UserError(
            f"{where}: expected a list with the axes of each dimension such as [[x], []], "
            f"found {value!r}"
        )
    dims = tuple(_axes(dim, f"{where}, dimension {number}") for number, dim in enumerate(value))
    _axes([axis for dim in dims for axis in dim], where)
    return dims


def _dims(value: Any, where: str) -> Dims:
    if not isinstance(value, Mapping) or not all(str(dim).isdecimal() for dim in value):
        raise UserError(f"{where}: expected axes by dimension such as {{0: [x]}}, found {value!r}")
    dims = tuple(
        sorted((int(dim), _axes(axes, f"{where}, dimension {dim}")) for dim, axes in value.items())
    )
    _axes([axis for _, dim in dims for axis in dim], where)
    return dims


def _kind(value: Any) -> str:
    return {dict: "fields", list: "a list", str: "text", type(None): "nothing"}.get(
        type(value), repr(value)
    )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:  # names such as params['w'] need not be patterns
        return False


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "argument": _number_or_name,
    "result": _number_or_name,
    "op": _text,
    "location": _pattern,
    "mesh": _pattern,
    "sharding": _sharding,
    "dims": _dims,
    "replicated": _flag,
    "forbid": _axes,
    "optional": _flag,
}
_FIELDS = {field.name: _READERS[field.name] for field in fields(Entry) if field.name in _READERS}

"""Rows of a table of options: a frozen dataclass whose fields say, beside type and default, who
takes them and how.

    @dataclass(frozen=True)
    class PlanOptions:
        gap: float = row(0.001, help="stop within this share of the optimum", phases=("shard",))

    row_of(PlanOptions, "gap").flag    # "--gap"
    row_of(PlanOptions, "gap").phases  # {"shard": ""}: phases that take it, "" under its own name

All faces of an option are read from its row, so that none can say something else than the others.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin

# Who takes an option as a keyword argument.
Function = Literal["optimize", "shard", "parallelize"]
# Whether plan files have an option: written always, written where it was changed (so that a plan
# made without it reads where the option is unknown), only read, or not at all.
InFile = Literal["always", "changed", "read", "no"]

Phases = Sequence[str] | Mapping[str, str]


def row(
    default: Any = MISSING,
    *,
    help: str,
    phases: Phases = (),
    functions: Sequence[Function] = ("optimize", "parallelize"),
    in_file: InFile = "always",
    **shown: Any,
) -> Any:
    """A field that is an option. `phases` (and `intra`, the pipeline of one mesh) are given it,
    under its own name or the one that they map to; `shown` are further fields of `OptionRow`."""
    names = phases if isinstance(phases, Mapping) else dict.fromkeys(phases, "")
    about = {
        "help": help,
        "phases": names,
        "functions": tuple(functions),
        "in_file": in_file,
        **shown,
    }
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class OptionRow:
    """One option, with what its faces need.

    `type` is the resolved type, `default` is None or MISSING where there is none. `unset` says what
    None means, `note` what only people need to know (passes never see it); `off` is the help of a
    flag that turns the option off. `metavar` stands for a value on the command line, `least` and
    `most` are the least and the largest number allowed; `accepts` is, by function, the type of the
    keyword argument as text, where that takes more than the table holds.
    """

    field: str
    type: Any
    default: Any
    help: str
    phases: Mapping[str, str]
    functions: tuple[Function, ...]
    in_file: InFile
    unset: str = ""
    note: str = ""
    off: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    accepts: Mapping[Function, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """As options are written: `batch-args`."""
        return self.field.replace("_", "-")

    @property
    def flag(self) -> str:
        """On the command line, where what is on by default can only be turned off."""
        return f"--no-{self.name}" if self.default is True else f"--{self.name}"

    @property
    def is_optional(self) -> bool:
        """Whether None leaves the choice to the planner."""
        return type(None) in _arms(self.type)

    @property
    def base(self) -> type:
        """`int`, `float`, `bool` or `str`."""
        return next(arm for arm in (*_arms(self.type), str) if arm in (int, float, bool, str))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the option is one of; numbers may be allowed beside them (`base`)."""
        literals = [arm for arm in _arms(self.type) if get_origin(arm) is Literal]
        return tuple(word for literal in literals for word in get_args(literal))

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

    @property
    def pass_default(self) -> Any:
        """What a pass takes the option to be where it is not given: 0 or "" for None."""
        return self.base() if self.default is None or not self.has_default else self.default

    @property
    def pass_help(self) -> str:
        is_choice_of_planner = self.default is None and self.base is int
        return f"{self.help}; 0: {self.unset}" if is_choice_of_planner else self.help

    def described(self, none: str) -> str:
        """The help for people, with `none` as the text of None."""
        unset = f"{none}: {self.unset}" if self.unset else ""
        return "; ".join(part for part in (self.help, unset, self.note) if part)


def rows(table: type) -> tuple[OptionRow, ...]:
    """The options of a table in the order of its fields."""
    return _rows(cast("Hashable", table))  # type checkers take the class for one of its instances


@cache
def _rows(table: Any) -> tuple[OptionRow, ...]:
    hints = typing.get_type_hints(table)
    declared = fields(table)
    return tuple(
        OptionRow(each.name, hints[each.name], each.default, **each.metadata) for each in declared
    )


def row_of(table: type, name: str) -> OptionRow:
    """The option that is the field `name`. Raises LookupError."""
    for each in rows(table):
        if each.field == name:
            return each
    raise LookupError(f"{table.__name__} has no option '{name}'")


def _arms(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)

"""What a step takes and returns for those who call it: the arguments and results of the model, of
which some are parts on several meshes.

    program.arguments[0] is rows 0 to 4 of `w` on m0, program.arguments[9] rows 4 to 8 on m1:
    signature.arguments[0] is `w`, with both as its homes

The parts stand behind everything else in a program, so the numbers of both are the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Argument, MeshValue, ProgramResult
from shardopt.mesh.parts import Part, Slice


@dataclass(frozen=True)
class Home:
    """Argument (result) `number` of a program: which part of one of the model it is, None for
    all."""

    number: int
    value: MeshValue
    part: Part | None

    @property
    def fields(self) -> tuple[int, ...] | None:
        """Those of the part, as plain numbers."""
        return None if self.part is None else (self.part.whole, *self.part.bounds)

    @property
    def rows(self) -> str:
        """Which rows of the whole it is, as text."""
        return "" if self.part is None else str(self.part)

    def of_whole(self, array: np.ndarray) -> np.ndarray:
        """What an array of the whole has of it."""
        return array if self.part is None else array[self.part.place]

    def place(self) -> Any:
        """Where an array of the whole has it."""
        return ... if self.part is None else self.part.place

    def outer(self, slice_: Slice) -> Slice:
        """A slice of it as one of the whole."""
        return slice_ if self.part is None else self.part.outer(slice_)

    def inner(self, slice_: Slice) -> Slice | None:
        """What a slice of the whole has of it, as a slice of it; None where it has nothing."""
        return slice_ if self.part is None else self.part.inner(slice_)

    def cut(self, tile: np.ndarray) -> np.ndarray:
        """A tile of the whole, which lies in it, at its shape."""
        is_row = self.part is not None and self.part.is_row
        return tile.squeeze(self.part.dim) if self.part is not None and is_row else tile


@dataclass(frozen=True)
class Whole:
    """An argument or result of the model: global shape, numpy dtype name, and where it lives.
    Of state `alias` is the number of the result that replaces it, another Whole."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias: int | None
    homes: tuple[Home, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.dtype)

    @property
    def elements(self) -> Slice:
        """All of it."""
        return tuple((0, extent) for extent in self.shape)


@dataclass(frozen=True)
class Signature:
    arguments: tuple[Whole, ...]
    results: tuple[Whole, ...]


def signature_of(arguments: Sequence[Argument], results: Sequence[ProgramResult]) -> Signature:
    return Signature(_wholes(arguments), _wholes(results))


def _wholes(values: Sequence[Argument | ProgramResult]) -> tuple[Whole, ...]:
    homes: dict[int, list[Home]] = {}
    for number, each in enumerate(values):
        whole = number if each.part is None else each.part.whole
        homes.setdefault(whole, []).append(Home(number, each.value, each.part))
    wholes = []
    for number, found in sorted(homes.items()):
        each, spec = values[number], found[0].value.spec
        shape = spec.shape if each.part is None else each.part.whole_shape(spec.shape)
        alias = each.alias if isinstance(each, Argument) else None
        wholes.append(Whole(each.name, shape, spec.dtype, alias, tuple(found)))
    return tuple(wholes)

"""Parts of arguments and results: rows of a stack as an argument of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Slice = tuple[tuple[int, int], ...]  # (start, limit) of each dimension

_T = TypeVar("_T")


@dataclass(frozen=True)
class Part:
    """`rows` rows from `start` on along dimension `dim` of argument (or result) `whole`, which has
    `extent` of them. A part of one row is without that dimension."""

    whole: int
    dim: int
    start: int
    rows: int
    extent: int

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """Dimension, first row, number of rows, and rows of the whole."""
        return self.dim, self.start, self.rows, self.extent

    @property
    def is_row(self) -> bool:
        """Whether it is without the dimension of rows."""
        return self.rows == 1

    @property
    def place(self) -> tuple[Any, ...]:
        """Which part of an array of the whole it is: what to index that with for a view."""
        rows = self.start if self.is_row else slice(self.start, self.start + self.rows)
        return (*[slice(None)] * self.dim, rows, ...)

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole, of that of the part."""
        return self._replaced(shape, self.extent)

    def outer(self, slice_: Slice) -> Slice:
        """A slice of the part as one of the whole."""
        low, high = (0, 1) if self.is_row else slice_[self.dim]
        return self._replaced(slice_, (self.start + low, self.start + high))

    def inner(self, slice_: Slice) -> Slice | None:
        """What a slice of the whole has of the part, as a slice of that; None where it has
        nothing."""
        low, high = (min(max(bound - self.start, 0), self.rows) for bound in slice_[self.dim])
        if low >= high:
            return None
        rows = () if self.is_row else ((low, high),)
        return (*slice_[: self.dim], *rows, *slice_[self.dim + 1 :])

    def _replaced(self, values: Sequence[_T], value: _T) -> tuple[_T, ...]:
        behind = values[self.dim + (not self.is_row) :]
        return (*values[: self.dim], value, *behind)

    def __str__(self) -> str:
        """As Python would index the whole: `[3]`, `[:, 4:8]`."""
        rows = str(self.start) if self.is_row else f"{self.start}:{self.start + self.rows}"
        return f"[{', '.join([*[':'] * self.dim, rows])}]"

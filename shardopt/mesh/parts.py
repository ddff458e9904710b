"""Parts of arguments and results: rows of a stack as an argument of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


def misfits(noun: str, parts: Mapping[int, Part], shapes: Sequence[Sequence[int]]) -> Iterator[str]:
    """What is wrong with parts of arguments (results), by number, which have these shapes: they are
    not where they should be, or do not make up a whole."""
    of_whole: dict[int, list[int]] = {}
    for number, part in parts.items():
        of_whole.setdefault(part.whole, []).append(number)
    for whole, numbers in of_whole.items():
        at, first = 0, numbers[0]
        for number in numbers:
            part, like = parts[number], parts[first]
            is_alike = (part.dim, part.extent) == (like.dim, like.extent)
            if (number == whole) != (part.start == 0) or not is_alike:
                yield (
                    f"{noun} {number}: expected parts of one dimension of {noun} {whole}, the "
                    f"first of them there, found {part}"
                )
                break
            if part.start != at or not _has_shape(part, shapes[number], shapes[first]):
                yield f"{noun} {number}: expected the part from {at} on, found {part}"
                break
            at += part.rows
        else:
            if at != parts[first].extent:
                yield (
                    f"{noun} {whole}: expected parts of {parts[first].extent} rows in all, found "
                    f"{at}"
                )


def _has_shape(part: Part, shape: Sequence[int], like: Sequence[int]) -> bool:
    """Whether a part has the shape that it says, and that of another one but for its rows."""
    if part.rows < 1 or not 0 <= part.dim < len(shape) + part.is_row:
        return False
    is_whole = part.is_row or shape[part.dim] == part.rows
    return (
        is_whole
        and len(shape) == len(like)
        and all(
            one == other
            for dim, (one, other) in enumerate(zip(shape, like, strict=True))
            if part.is_row or dim != part.dim
        )
    )


def misreplaced(
    arguments: Mapping[int, Part], results: Mapping[int, Part], replaced: Mapping[int, int]
) -> Iterator[str]:
    """Which arguments are replaced by another part than their own: of a whole that is replaced by a
    whole, each part is by that part."""
    for number, result in replaced.items():
        part, other = arguments.get(number), results.get(result)
        expected = None if part is None else replace(part, whole=replaced.get(part.whole, -1))
        if other != expected:
            yield (
                f"argument {number}: expected to be replaced by the same part of a result, found "
                f"{_said(part)} and {_said(other)}"
            )


def _said(part: Part | None) -> str:
    return "none" if part is None else f"{part} of {part.whole}"

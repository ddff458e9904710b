"""Chains of collectives of many pairs of shardings at once.

A chain does not depend on the order of the dimensions, so of a hundred thousand pairs a few
thousand differ. numpy tells which: the axes that split a dimension, in their order, are a number,
and a pair is a row of numbers, which is sorted."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from shardopt.cost.resharding_chain import can_reshard, path_of_shares
from shardopt.cost.resharding_moves import Axes, Uneven
from shardopt.mesh.mesh import Mesh, Sharding

Step = tuple[str, Axes, float]  # kind, axes, bytes as a share of those of the tensor
_MAX_KEY = 1 << 62


class Pattern(NamedTuple):
    """A chain without slices, of pairs of rank R: the numbers of its steps, and the shardings
    before and after each, int64 `[steps, 2, R + 1]`: codes of the dimensions in the order of the
    pattern, and of what is unreduced. No `steps` where there is no chain."""

    steps: tuple[int, ...] | None
    states: np.ndarray


class Pairs(NamedTuple):
    """P pairs of shardings of rank R: which of the `patterns` each has, int64 `[P]`, and which of
    its dimensions stands in each place of the pattern, int64 `[P, R]`."""

    patterns: tuple[Pattern, ...]
    pattern: np.ndarray
    order: np.ndarray


class Side(NamedTuple):
    """Shardings at one end of pairs of them, of a tensor of rank R: `codes` int64 `[n, R + 1]`, one
    for the axes of each dimension and one for those of the sum; and where tiles are padded, bool
    `[n, R]`."""

    shardings: Sequence[Sharding]
    codes: np.ndarray
    is_uneven: np.ndarray


class ReshardingPatterns:
    """The patterns of one mesh that were asked for so far."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._codes: dict[Axes, int] = {(): 0}
        self._tiles: list[int] = [1]  # by code
        self._patterns: dict[bytes, Pattern] = {}
        self.steps: dict[Step, int] = {}  # all of them, numbered

    @property
    def num_codes(self) -> int:
        return len(self._codes)

    def side(self, shardings: Sequence[Sharding], shape: tuple[int, ...]) -> Side:
        """The shardings of a tensor of that shape."""
        code = self._code
        codes = np.array(
            [[*map(code, each.dims), code(each.unreduced)] for each in shardings], dtype=np.int64
        )
        tiles = np.array(self._tiles)[codes[:, :-1]]
        return Side(shardings, codes, np.array(shape, dtype=np.int64) % tiles != 0)

    def pairs(
        self,
        sources: Side,
        targets: Side,
        shape: tuple[int, ...],
        rows: np.ndarray,
        columns: np.ndarray,
    ) -> Pairs:
        """Of source `rows[p]` with target `columns[p]` for each p."""
        before, after = sources.codes[rows], targets.codes[columns]
        is_uneven = sources.is_uneven[rows] | targets.is_uneven[columns]
        uneven = is_uneven * np.array(shape, dtype=np.int64)
        # Numbers that order dimensions by their extents and codes, whatever the table.
        extents = np.unique((0, *shape))
        count = self.num_codes
        dims = (np.searchsorted(extents, uneven) * count + before[:, :-1]) * count + after[:, :-1]
        order = np.argsort(dims, axis=1)
        dims = np.take_along_axis(dims, order, axis=1)
        terms = (before[:, -1], count), (after[:, -1], count)
        numbers = row_keys([*((column, len(extents) * count**2) for column in dims.T), *terms])
        _, first, pattern = np.unique(numbers, return_index=True, return_inverse=True)
        place = order[first]
        placed = (
            np.take_along_axis(each[first], place, axis=1)
            for each in (uneven, before[:, :-1], after[:, :-1])
        )
        keys = np.hstack([*placed, before[first, -1:], after[first, -1:]])
        patterns = (
            self._find(
                key.tobytes(),
                sources.shardings[rows[pair]],
                targets.shardings[columns[pair]],
                uneven[pair],
                order[pair],
            )
            for pair, key in zip(first.tolist(), keys, strict=True)
        )
        return Pairs(tuple(patterns), pattern, order)

    def _code(self, axes: Axes) -> int:
        code = self._codes.get(axes)
        if code is None:
            code = self._codes[axes] = len(self._codes)
            self._tiles.append(prod(map(self._mesh.axis_size, axes)))
        return code

    def _find(
        self,
        key: bytes,
        source: Sharding,
        target: Sharding,
        uneven: np.ndarray,
        order: np.ndarray,
    ) -> Pattern:
        """The pattern of the pair, by what all of its pairs have in common."""
        if key not in self._patterns:
            extents = tuple(uneven.tolist()) if uneven.any() else ()
            self._patterns[key] = self._pattern(source, target, extents, order.tolist())
        return self._patterns[key]

    def _pattern(
        self, source: Sharding, target: Sharding, uneven: Uneven, order: Sequence[int]
    ) -> Pattern:
        if not can_reshard(source, target):
            return Pattern(None, np.zeros((0, 2, source.rank + 1), dtype=np.int64))
        path = path_of_shares(source, target, self._mesh, uneven)
        codes = [
            [*(self._code(state.dims[dim]) for dim in order), self._code(state.unreduced)]
            for state in (source, *(after for _, after in path))
        ]
        steps = [(k, step) for k, (step, _) in enumerate(path) if step is not None]
        states = np.array([codes[k : k + 2] for k, _ in steps], dtype=np.int64)
        return Pattern(
            tuple([self.steps.setdefault(step, len(self.steps)) for _, step in steps]),
            states.reshape(len(steps), 2, source.rank + 1),
        )


def row_keys(columns: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """An integer for each row of a table that equal rows have in common: int64 `[rows]`. Columns
    are given with a bound of their entries, which are not negative."""
    keys, bound = np.zeros(len(columns[0][0]), dtype=np.int64), 1
    for column, limit in columns:
        if bound * limit > _MAX_KEY:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys = keys * limit + column
        bound *= limit
    return keys

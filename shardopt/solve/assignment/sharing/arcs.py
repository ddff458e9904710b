"""The ways by which a value comes to those who read it, as arcs: one is a step of the ways from one
form of the value, which readers whose ways begin alike have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Arcs:
    """The ways from a value to each of its readers; equal groups share one object.

    `seconds` float64 `[A]`. `paths[r]` int64 `[S, T_r, L]` are the arcs of the ways to reader r,
    filled up with A, and `missing[r]` bool `[S, T_r]` says where there is no way. `rows[r]` int64
    `[k]` and `columns[r]` int64 `[k_r]` say which of the S and T_r the strategies of the source and
    of the reader stand for."""

    seconds: np.ndarray
    paths: tuple[np.ndarray, ...]
    missing: tuple[np.ndarray, ...]
    rows: tuple[np.ndarray, ...]
    columns: tuple[np.ndarray, ...]
    _tables: dict[bytes, tuple[np.ndarray, ...]] = field(default_factory=dict)

    @cached_property
    def usable(self) -> np.ndarray:
        """Which reader can use which arc: bool `[R, A]`."""
        usable = np.zeros((len(self.paths), len(self.seconds) + 1), dtype=bool)
        for reader, path in enumerate(self.paths):
            usable[reader, path.ravel()] = True
        return usable[:, :-1]

    @property
    def is_shared(self) -> bool:
        return bool((self.usable.sum(axis=0) > 1).any())

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each reader the first with the same ways: as many numbers as readers."""
        first: dict[tuple[int, ...], int] = {}
        arrays = zip(self.paths, self.missing, self.rows, self.columns, strict=True)
        return tuple(
            first.setdefault(tuple(map(id, each)), reader) for reader, each in enumerate(arrays)
        )

    def of_readers(self, readers: Sequence[int], count: float) -> Arcs:
        """The ways to some of the readers, each arc as dear as `count` of its kind."""
        paths, missing, rows, columns = (
            tuple(each[reader] for reader in readers)
            for each in (self.paths, self.missing, self.rows, self.columns)
        )
        return Arcs(self.seconds * count, paths, missing, rows, columns)

    def times(self, count: int) -> Arcs:
        """The same ways, each arc as dear as `count` of its kind."""
        if count == 1:
            return self
        return replace(self, seconds=self.seconds * count, _tables={})

    @property
    def table_bytes(self) -> int:
        """Bytes of one answer of `tables`."""
        return 8 * sum(
            len(row) * len(column) for row, column in zip(self.rows, self.columns, strict=True)
        )

    def tables(self, shares: np.ndarray) -> tuple[np.ndarray, ...]:
        """What each reader pays under `shares` `[R, A]`: float64 `[k, k_r]` each. Equal shares
        give the very same arrays."""
        key = shares.tobytes()
        if key not in self._tables:
            self._tables[key] = tuple(
                self._table(reader, share) for reader, share in enumerate(shares)
            )
        return self._tables[key]

    def forget(self) -> None:
        """The tables given out are not needed again."""
        self._tables.clear()

    def of_classes(self, reader: int, share: np.ndarray) -> np.ndarray:
        """What a reader pays with a share `[A]` of each arc, for each class: `[S, T_r]`."""
        seconds = np.append(share * self.seconds, 0.0)[self.paths[reader]].sum(axis=2)
        seconds[self.missing[reader]] = np.inf
        return seconds

    def _table(self, reader: int, share: np.ndarray) -> np.ndarray:
        seconds = self.of_classes(reader, share)
        # One axis after the other: a third of the time of both at once.
        return seconds.take(self.columns[reader], axis=1).take(self.rows[reader], axis=0)


@dataclass(frozen=True, eq=False)
class SharedEdges:
    """The edges `edges` of a problem, from `sources` to `readers`: nodes of one value, which has
    several where it is handed on."""

    arcs: Arcs
    sources: tuple[int, ...]
    readers: tuple[int, ...]
    edges: tuple[int, ...]

"""Shared edges as flat arrays: a problem has hundreds of different groups, most of them with few
readers, and what is asked of all of them is asked at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from shardopt.solve.assignment.sharing.arcs import SharedEdges


@dataclass(eq=False)
class Packed:
    """Arrays one after the other, each object once."""

    dtype: Any
    parts: list[np.ndarray] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def place(self, array: np.ndarray) -> int:
        known = self.places.get(id(array))
        if known is None:
            known = self.places[id(array)] = self.size
            self.parts.append(array)  # which keeps its id its own
            self.size += array.size
        return known

    @property
    def array(self) -> np.ndarray:
        return joined(self.parts, self.dtype)


@dataclass(frozen=True, eq=False)
class FlatGroups:
    """N readers of G groups, whose *shares* stand one after the other: one for each arc that the
    group of the reader has.

    int64 `[N]`: reader n gets what node `sources[n]` makes over edge `edges[n]` of the problem, at
    node `readers[n]`, and belongs to group `group[n]`. The classes of the strategies of both are
    entries of `maps` from `rows[n]` and `columns[n]` on, and the ways between classes those of
    `paths` from `path[n]` on, `[rows, width[n], length[n]]`; `missing` from `gap[n]` on says where
    there is none. Its shares begin at `first[n]`, of `arcs[n]` arcs.

    `seconds` float64 are those of the arcs of all groups, those of group g from `arc_first[g]` on.
    For each share `arc` is the number of its arc, and `usable` says whether the reader can use
    it."""

    sources: np.ndarray
    readers: np.ndarray
    edges: np.ndarray
    group: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    width: np.ndarray
    path: np.ndarray
    length: np.ndarray
    gap: np.ndarray
    first: np.ndarray
    arcs: np.ndarray
    arc_first: np.ndarray
    arc: np.ndarray
    maps: np.ndarray
    paths: np.ndarray
    missing: np.ndarray
    usable: np.ndarray
    seconds: np.ndarray

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """For each step of the way to each reader, the reader and the number of the step."""
        reader = np.repeat(np.arange(len(self.length)), self.length)
        return reader, np.arange(len(reader)) - starts(self.length)[:-1][reader]

    def used(self, choice: np.ndarray) -> np.ndarray:
        """Which readers use which arcs in an assignment: bool `[shares]`."""
        row = self.maps[self.rows + choice[self.sources]]
        column = self.maps[self.columns + choice[self.readers]]
        begin = self.path + (row * self.width + column) * self.length
        reader, step = self._steps
        arc = self.paths[begin[reader] + step]
        is_step = arc < self.arcs[reader]
        used = np.zeros(len(self.arc), dtype=np.bool_)
        used[(self.first[reader] + arc)[is_step]] = True
        return used

    def count(self, which: np.ndarray) -> np.ndarray:
        """How many of the readers of each arc are among `which`, bool `[shares]`."""
        return np.bincount(self.arc[which], minlength=len(self.seconds))

    def equal(self, paying: np.ndarray) -> np.ndarray:
        """Equal shares for those who pay, bool `[shares]`."""
        return paying / np.maximum(self.count(paying), 1)[self.arc]

    def saved(self, used: np.ndarray) -> float:
        """The seconds of arcs that others use too, bool `[shares]`, and pay as well."""
        return float((np.maximum(self.count(used) - 1, 0) * self.seconds).sum())


def flat_groups(batches: Sequence[Sequence[SharedEdges]]) -> FlatGroups:
    """All groups in order; those of a batch have the same arcs."""
    maps, paths, missing = Packed(np.int64), Packed(np.int64), Packed(np.bool_)
    ways, readers, arcs = list[tuple[int, ...]](), list[int](), list[int]()
    usable, seconds = list[np.ndarray](), list[np.ndarray]()
    for groups in batches:
        kind, count = groups[0].arcs, len(groups)
        of_reader = zip(kind.rows, kind.columns, kind.paths, kind.missing, strict=True)
        ways += count * [
            (
                maps.place(row),
                maps.place(column),
                path.shape[1],
                paths.place(path),
                path.shape[2],
                missing.place(gap),
            )
            for row, column, path, gap in of_reader
        ]
        readers += count * [len(kind.paths)]
        arcs += count * [len(kind.seconds)]
        usable += count * [kind.usable.ravel()]
        seconds += count * [kind.seconds]
    all_groups = list(chain.from_iterable(batches))
    group = np.repeat(np.arange(len(all_groups)), readers)
    arc_counts = np.array(arcs, dtype=np.int64)
    arc_first = starts(arc_counts)
    arcs_of = arc_counts[group]
    first = starts(arcs_of)
    shift = arc_first[group] - first[:-1]
    rows, columns, width, path, length, gap = np.array(ways, dtype=np.int64).reshape(-1, 6).T.copy()
    return FlatGroups(
        sources=_numbers(each.sources for each in all_groups),
        readers=_numbers(each.readers for each in all_groups),
        edges=_numbers(each.edges for each in all_groups),
        group=group,
        rows=rows,
        columns=columns,
        width=width,
        path=path,
        length=length,
        gap=gap,
        first=first[:-1],
        arcs=arcs_of,
        arc_first=arc_first,
        arc=np.arange(first[-1]) + np.repeat(shift, arcs_of),
        maps=maps.array,
        paths=paths.array,
        missing=missing.array,
        usable=joined(usable, np.bool_),
        seconds=joined(seconds, np.float64),
    )


def _numbers(parts: Iterable[Iterable[int]]) -> np.ndarray:
    return np.array(list(chain.from_iterable(parts)), dtype=np.int64)


def joined(arrays: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    """Of all of them the entries, one after the other."""
    return np.concatenate([np.zeros(0, dtype=dtype), *map(np.ravel, arrays)], dtype=dtype)


def starts(lengths: np.ndarray) -> np.ndarray:
    """Where parts of these lengths begin one after the other, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])

"""A problem with shared edges as flat arrays, for compiled kernels: over each edge, strategies that
look alike are one class, and equal tables and paths are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardopt.solve.assignment.sharing.share_kernels import Classes, Groups, Scratch
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.table_classes import table_classes


@dataclass(eq=False)
class _Packed:
    """Arrays one after the other, each object once."""

    dtype: Any
    parts: list[np.ndarray] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def place(self, array: np.ndarray) -> int:
        if id(array) not in self.places:
            self.places[id(array)] = self.size
            self.parts.append(array)  # which keeps its id its own
            self.size += array.size
        return self.places[id(array)]

    @property
    def array(self) -> np.ndarray:
        return np.concatenate(
            [np.zeros(0, dtype=self.dtype), *(part.ravel() for part in self.parts)],
            dtype=self.dtype,
        )


@dataclass(frozen=True, eq=False)
class _Sides:
    """Where an edge's classes come from: its ends, the places of their maps, and their numbers of
    classes; `table` is the place of its table, or -1 where it has one of its own."""

    u: int
    v: int
    row: int
    column: int
    rows: int
    columns: int
    table: int


@dataclass(frozen=True, eq=False)
class ClassProblem:
    """`tables` has room for the tables of the shared edges. `forbidden` seconds stand for what may
    not be: a little more than the cost of any assignment, so that bounds hold and sums are exact
    enough. Edge e of the problem has the half edges `halves[e]` at its rows and at its columns, -1
    where it leads from a node to itself: int64 `[edges, 2]`."""

    flat: Classes
    groups: Groups
    tables: np.ndarray
    forbidden: float
    halves: np.ndarray

    def scratch(self) -> Scratch:
        classes = int(self.flat.classes.max(initial=0))
        readers = int(np.diff(self.groups.edge_first).max(initial=0))
        return Scratch(
            np.zeros(int(np.diff(self.flat.first).max(initial=0))),
            np.zeros(classes),
            np.zeros(classes),
            np.zeros(classes * classes),
            np.zeros(readers),
        )


def class_problem(sharing: Sharing, forbidden: float) -> ClassProblem:
    """The arrays of a problem; memory aside."""
    maps, packed = _Packed(np.int64), _Packed(np.float64)
    costs, number_of, sides = _read(sharing, maps, packed)
    tables = packed.array
    sizes = np.array([side.rows * side.columns if side.table < 0 else 0 for side in sides])
    own = len(tables) + _starts(sizes)
    places = np.array([side.table for side in sides], dtype=np.int64)
    first = np.where(places < 0, own[:-1], places)
    flat, ends = _flat(costs, sides, maps.array, first, forbidden)
    tables = np.concatenate([tables, np.zeros(int(sizes.sum()))])
    tables[tables == np.inf] = forbidden
    halves = np.full((len(sharing.problem.edges), 2), -1, dtype=np.int64)
    halves[list(number_of)] = ends[list(number_of.values())]
    return ClassProblem(flat, _groups(sharing, number_of, ends[:, 0]), tables, forbidden, halves)


def _read(
    sharing: Sharing, maps: _Packed, packed: _Packed
) -> tuple[list[np.ndarray], dict[int, int], list[_Sides]]:
    """Costs, the new number of each edge, and its sides. Edges from a node to itself are costs."""
    problem = sharing.problem
    shared = {
        edge: (group.arcs, reader)
        for group in sharing.groups
        for reader, edge in enumerate(group.edges)
    }
    cores: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    costs, number_of, sides = list(problem.costs), dict[int, int](), list[_Sides]()
    for number, edge in enumerate(problem.edges):
        if edge.u == edge.v:
            costs[edge.u] = costs[edge.u] + np.diagonal(edge.cost)
            continue
        place = -1
        if number in shared:
            arcs, reader = shared[number]
            row, column = arcs.rows[reader], arcs.columns[reader]
            shape = arcs.missing[reader].shape
        else:
            if id(edge.cost) not in cores:
                cores[id(edge.cost)] = table_classes(edge.cost)
            table, row, column = cores[id(edge.cost)]
            shape, place = table.shape, packed.place(table)
        number_of[number] = len(sides)
        ends = maps.place(row), maps.place(column)
        sides.append(_Sides(edge.u, edge.v, *ends, shape[0], shape[1], place))
    return costs, number_of, sides


def _flat(
    costs: Sequence[np.ndarray],
    sides: Sequence[_Sides],
    maps: np.ndarray,
    table: np.ndarray,
    forbidden: float,
) -> tuple[Classes, np.ndarray]:
    """The arrays, and the half edges at the rows and at the columns of each edge."""
    count = len(sides)
    ends, map_of, classes = (
        np.array([(getattr(side, a), getattr(side, b)) for side in sides], dtype=np.int64)
        .reshape(-1, 2)
        .T.ravel()
        for a, b in (("u", "v"), ("row", "column"), ("rows", "columns"))
    )
    other_end = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
    edge = np.tile(np.arange(count), 2)
    order = np.lexsort((edge, ends[other_end], ends))
    position = np.empty(2 * count, dtype=np.int64)
    position[order] = np.arange(2 * count)
    sizes = np.array([len(cost) for cost in costs], dtype=np.int64)
    all_costs = np.concatenate([np.zeros(0), *costs])
    flat = Classes(
        np.where(all_costs == np.inf, forbidden, all_costs),
        _starts(sizes),
        _starts(np.bincount(ends, minlength=len(costs))),
        ends[other_end][order],
        position[other_end][order],
        edge[order],
        classes[order],
        map_of[order],
        maps,
        _starts(classes[order])[:-1],
        order >= count,
        table,
    )
    return flat, position.reshape(2, count).T


def _groups(sharing: Sharing, number_of: dict[int, int], out: np.ndarray) -> Groups:
    """Readers that are tied to their source have no edge: they pay nothing."""
    paths, missing = _Packed(np.int64), _Packed(np.bool_)
    groups = [group for batch in sharing.batches for group in batch.groups]
    rows, counts, usable, place = list[tuple[int, ...]](), [], [np.zeros(0, dtype=np.bool_)], 0
    for group in groups:
        arcs, before = group.arcs, len(rows)
        can_use = arcs.usable.copy()
        for reader, edge in enumerate(group.edges):
            path, gap = arcs.paths[reader], arcs.missing[reader]
            if edge in number_of:
                at = paths.place(path), path.shape[2], missing.place(gap)
                rows.append((number_of[edge], *at, place))
            else:
                can_use[reader] = False
            place += len(arcs.seconds)
        counts.append(len(rows) - before)
        usable.append(can_use.ravel())
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    edges, path_first, length, gap_first, share_first = map(np.ascontiguousarray, columns)
    return Groups(
        edge_first=_starts(np.array(counts, dtype=np.int64)),
        edges=edges,
        out=out[edges],
        arc_first=_starts(np.array([len(group.arcs.seconds) for group in groups], dtype=np.int64)),
        seconds=np.concatenate([np.zeros(0), *(group.arcs.seconds for group in groups)]),
        share_first=share_first,
        path=path_first,
        length=length,
        paths=paths.array,
        gap=gap_first,
        missing=missing.array,
        usable=np.concatenate(usable),
    )


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])

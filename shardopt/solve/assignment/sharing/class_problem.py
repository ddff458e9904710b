"""A problem with shared edges as flat arrays, for compiled kernels: over each edge, strategies that
look alike are one class, and equal tables and paths are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardopt.solve.assignment.sharing.flat_groups import Packed, starts
from shardopt.solve.assignment.sharing.share_kernels import Classes, Groups, Scratch
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.table_classes import table_classes


class _Kind(NamedTuple):
    """What edges with the same classes have in common: the places of the maps of their rows and
    columns, the numbers of classes, and the place of their table, or -1 where each has one of its
    own."""

    row: int
    column: int
    rows: int
    columns: int
    table: int


@dataclass(frozen=True, eq=False)
class ClassProblem:
    """`tables` has room for the tables of the shared edges that have their own. `forbidden` seconds
    stand for what may not be: a little more than the cost of any assignment, so that bounds hold
    and sums are exact enough. Edge e of the problem has the half edges `halves[e]` at its rows and
    at its columns, -1 where it leads from a node to itself: int64 `[edges, 2]`."""

    flat: Classes
    tables: np.ndarray
    forbidden: float
    halves: np.ndarray

    def scratch(self, readers: int = 0) -> Scratch:
        """For groups of at most so many readers."""
        classes = int(self.flat.classes.max(initial=0))
        return Scratch(
            np.zeros(int(np.diff(self.flat.first).max(initial=0))),
            np.zeros(classes),
            np.zeros(classes),
            np.zeros(classes * classes),
            np.zeros(readers),
        )


def class_problem(
    sharing: Sharing,
    forbidden: float,
    tables: Sequence[Sequence[np.ndarray]] | None = None,
) -> ClassProblem:
    """The arrays of a problem; memory aside. `tables[g][r]` `[S, T_r]` are what reader r of group g
    pays where that stays as it is; otherwise each shared edge gets room for its own."""
    maps, packed = Packed(np.int64), Packed(np.float64)
    kinds, kind_of = _read(sharing, maps, packed, tables)
    ends = sharing.problem.ends
    costs = list(sharing.problem.costs)
    joins = ends[:, 0] != ends[:, 1]
    for number in np.flatnonzero(~joins).tolist():  # edges from a node to itself are costs
        edge = sharing.problem.edges[number]
        costs[edge.u] = costs[edge.u] + np.diagonal(edge.cost)
    shapes = np.array(kinds, dtype=np.int64).reshape(-1, len(_Kind._fields))[kind_of[joins]]
    known = packed.array
    sizes = np.where(shapes[:, 4] < 0, shapes[:, 2] * shapes[:, 3], 0)
    first = np.where(shapes[:, 4] < 0, len(known) + starts(sizes)[:-1], shapes[:, 4])
    flat, positions = _flat(costs, ends[joins], shapes, maps.array, first, forbidden)
    all_tables = np.concatenate([known, np.zeros(int(sizes.sum()))])
    all_tables[all_tables == np.inf] = forbidden
    halves = np.full((len(ends), 2), -1, dtype=np.int64)
    halves[joins] = positions
    return ClassProblem(flat, all_tables, forbidden, halves)


def _read(
    sharing: Sharing,
    maps: Packed,
    packed: Packed,
    tables: Sequence[Sequence[np.ndarray]] | None,
) -> tuple[list[_Kind], np.ndarray]:
    """The kinds of edges, and the kind of each: int64 `[edges]`."""
    edges = sharing.problem.edges
    kinds, kind_of = list[_Kind](), np.full(len(edges), -1, dtype=np.int64)
    shared: dict[tuple[int, int], np.ndarray] = {}
    for number, group in enumerate(sharing.groups):
        arcs, own = group.arcs, None if tables is None else tables[number]
        key = id(arcs), id(own)
        if key not in shared:
            shared[key] = len(kinds) + np.arange(len(arcs.paths))
            for reader, missing in enumerate(arcs.missing):
                ends = maps.place(arcs.rows[reader]), maps.place(arcs.columns[reader])
                place = -1 if own is None else packed.place(own[reader])
                kinds.append(_Kind(*ends, missing.shape[0], missing.shape[1], place))
        kind_of[list(group.edges)] = shared[key]
    private: dict[int, int] = {}
    for number in np.flatnonzero(kind_of < 0).tolist():
        cost = edges[number].cost
        kind = private.get(id(cost))
        if kind is None:
            kind = private[id(cost)] = len(kinds)
            table, row, column = table_classes(cost)
            ends = maps.place(row), maps.place(column)
            kinds.append(_Kind(*ends, table.shape[0], table.shape[1], packed.place(table)))
        kind_of[number] = kind
    return kinds, kind_of


def _flat(
    costs: Sequence[np.ndarray],
    ends: np.ndarray,
    shapes: np.ndarray,
    maps: np.ndarray,
    table: np.ndarray,
    forbidden: float,
) -> tuple[Classes, np.ndarray]:
    """The arrays of edges between `ends` `[count, 2]` whose kinds are the rows of `shapes`, and the
    half edges at the rows and at the columns of each."""
    count = len(ends)
    ends, map_of, classes = (each.T.ravel() for each in (ends, shapes[:, :2], shapes[:, 2:4]))
    other_end = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
    edge = np.tile(np.arange(count), 2)
    order = np.lexsort((edge, ends[other_end], ends))
    position = np.empty(2 * count, dtype=np.int64)
    position[order] = np.arange(2 * count)
    sizes = np.array([len(cost) for cost in costs], dtype=np.int64)
    all_costs = np.concatenate([np.zeros(0), *costs])
    flat = Classes(
        np.where(all_costs == np.inf, forbidden, all_costs),
        starts(sizes),
        starts(np.bincount(ends, minlength=len(costs))),
        ends[other_end][order],
        position[other_end][order],
        edge[order],
        classes[order],
        map_of[order],
        maps,
        starts(classes[order])[:-1],
        order >= count,
        table,
    )
    return flat, position.reshape(2, count).T


def shared_groups(sharing: Sharing, problem: ClassProblem) -> Groups:
    """The groups in the order of batches. Readers that are tied to their source have no edge: they
    pay nothing."""
    flat = sharing.flat
    halves = problem.halves[flat.edges, 0]
    joins = halves >= 0
    out = halves[joins]
    readers = np.bincount(flat.group[joins], minlength=len(flat.arc_first) - 1)
    return Groups(
        edge_first=starts(readers),
        edges=problem.flat.edge[out],
        out=out,
        arc_first=flat.arc_first,
        seconds=flat.seconds,
        share_first=flat.first[joins],
        path=flat.path[joins],
        length=flat.length[joins],
        paths=flat.paths,
        gap=flat.gap[joins],
        missing=flat.missing,
        usable=flat.usable & np.repeat(joins, flat.arcs),
        several=np.flatnonzero(readers > 1),
    )

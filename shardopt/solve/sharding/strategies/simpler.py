"""Simpler questions than which strategies are best of all: with fewer axes, and without unreduced
values.

A mesh of shape a×b×c can do what meshes of shape a×bc and ab×c can, if two neighbouring axes always
stand together in the same place. These have a fraction of the strategies. The masks are ordered so
that each may begin from those before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import live_axes
from shardopt.solve.assignment.search.restriction import Mask
from shardopt.solve.sharding.strategies.layouts import Column

# Of all tensors that a node decides about; equally long, unless there are none.
NodeColumns = tuple[Column, ...]
Keeps = Callable[[Sharding], bool]

_FEWEST_AXES = 3  # with two axes, joining them leaves one: too little is left to be worth the work


def simpler_masks(mesh: Mesh, nodes: Sequence[NodeColumns]) -> tuple[Mask, ...]:
    """Masks of the nodes' strategies: neighbouring axes joined, then all values reduced. Those that
    leave out nothing are left out; while any value may be unreduced, all of them are without such
    values."""
    return tuple(
        mask
        for name, keeps in _rules(mesh, nodes)
        if (mask := _mask(name, keeps, nodes)) is not None
    )


def _rules(mesh: Mesh, nodes: Sequence[NodeColumns]) -> Iterator[tuple[str, Keeps]]:
    axes = live_axes(mesh)
    if len(axes) >= _FEWEST_AXES:
        for first, second in zip(axes[::-1][1:], axes[::-1][:-1], strict=True):  # fast axes first
            yield f"{first}{second}_joined", partial(_is_joined, first, second)
    yield "reduced", lambda sharding: not sharding.unreduced


def _is_joined(first: str, second: str, sharding: Sharding) -> bool:
    """Whether the two axes stand side by side, in this order, or nowhere, and no value is
    unreduced."""
    if sharding.unreduced:
        return False
    for axes in sharding.dims:
        if first in axes or second in axes:
            return first in axes and axes[axes.index(first) + 1 :][:1] == (second,)
    return True


def _mask(name: str, keeps: Keeps, nodes: Sequence[NodeColumns]) -> Mask | None:
    of_column: dict[int, np.ndarray] = {}
    of_node: dict[tuple[int, ...], np.ndarray] = {}

    def allowed(columns: NodeColumns) -> np.ndarray:
        for column in columns:
            if id(column) not in of_column:
                of_column[id(column)] = np.array([keeps(s) for s in column.distinct], dtype=bool)[
                    column.index
                ]
        key = tuple(map(id, columns))
        if key not in of_node:
            of_node[key] = np.logical_and.reduce([of_column[id(column)] for column in columns])
        return of_node[key]

    masks = tuple(map(allowed, nodes))
    return None if all(mask.all() for mask in of_node.values()) else Mask(name, masks)

"""The shardings a tensor can have on a mesh, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from math import prod

from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.splits import may_split


def live_axes(mesh: Mesh) -> tuple[str, ...]:
    """Axes that split anything, in mesh order."""
    return tuple(axis for axis, size in mesh.axes if size > 1)


def all_shardings(mesh: Mesh, shape: tuple[int, ...]) -> tuple[Sharding, ...]:
    """Every sharding of a shape that planners consider (`may_split`), the axes of a dimension in
    mesh order; replicated first."""
    return _shardings(mesh, shape, may_split)


def _shardings(
    mesh: Mesh, shape: tuple[int, ...], splits: Callable[[int, int], bool]
) -> tuple[Sharding, ...]:
    """Those whose dimensions all satisfy `splits(extent, tiles)`."""
    axes, sizes = live_axes(mesh), dict(mesh.axes)
    shardings = []
    for places in product(range(-1, len(shape)), repeat=len(axes)):
        dims = tuple(
            tuple(a for a, place in zip(axes, places, strict=True) if place == d)
            for d in range(len(shape))
        )
        if all(
            splits(extent, prod(sizes[a] for a in dim))
            for extent, dim in zip(shape, dims, strict=True)
        ):
            shardings.append(Sharding(dims))
    return tuple(shardings)


def shardings_that(
    agree: Callable[[Sharding], bool], mesh: Mesh, shape: tuple[int, ...]
) -> tuple[Sharding, ...]:
    """The shardings that agree; those with the axes of a dimension in another order only where no
    other does, and those with more padding than planners consider where none of these does."""
    for splits in (may_split, _in_any_way):
        canonical = _shardings(mesh, shape, splits)
        agreeing = tuple(filter(agree, canonical))
        if agreeing:
            return agreeing
        reordered = (
            Sharding(dims)
            for sharding in canonical
            for dims in product(*(permutations(dim) for dim in sharding.dims))
        )
        agreeing = tuple(filter(agree, dict.fromkeys(reordered)))
        if agreeing:
            return agreeing
    return ()


def _in_any_way(extent: int, tiles: int) -> bool:
    """Whether a dimension has anything to split."""
    return extent > 0 or tiles == 1

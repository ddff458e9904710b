"""The shardings a tensor can have on a mesh, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from math import prod

from shardopt.mesh.mesh import Mesh, Sharding


def live_axes(mesh: Mesh) -> tuple[str, ...]:
    """Axes that split anything, in mesh order."""
    return tuple(axis for axis, size in mesh.axes if size > 1)


def all_shardings(mesh: Mesh, shape: tuple[int, ...]) -> tuple[Sharding, ...]:
    """Every even sharding of a shape, the axes of a dimension in mesh order; replicated first."""
    axes, sizes = live_axes(mesh), dict(mesh.axes)
    shardings = []
    for places in product(range(-1, len(shape)), repeat=len(axes)):
        dims = tuple(
            tuple(a for a, place in zip(axes, places, strict=True) if place == d)
            for d in range(len(shape))
        )
        if all(
            extent % prod(sizes[a] for a in dim) == 0
            for extent, dim in zip(shape, dims, strict=True)
        ):
            shardings.append(Sharding(dims))
    return tuple(shardings)


def shardings_that(
    agree: Callable[[Sharding], bool], mesh: Mesh, shape: tuple[int, ...]
) -> tuple[Sharding, ...]:
    """The even shardings that agree; those with the axes of a dimension in another order only where
    no other does."""
    canonical = all_shardings(mesh, shape)
    agreeing = tuple(filter(agree, canonical))
    if agreeing:
        return agreeing
    reordered = (
        Sharding(dims)
        for sharding in canonical
        for dims in product(*(permutations(dim) for dim in sharding.dims))
    )
    return tuple(filter(agree, dict.fromkeys(reordered)))

"""The chain of collectives that takes a value from one sharding to another inside a mesh."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from functools import cache

from shardopt.cost.collectives import Step
from shardopt.cost.resharding_moves import SLICE, Axes, Uneven, moves_with_bytes
from shardopt.mesh.mesh import Mesh, Sharding

MeshAxes = tuple[tuple[str, int], ...]  # names and sizes


def resharding_steps(
    src: Sharding, dst: Sharding, mesh: Mesh, shape: tuple[int, ...], itemsize: int
) -> tuple[Step, ...]:
    """The chain of collectives with the fewest bytes on the wire (then the fewest steps) from `src`
    to `dst`.

    Moves are those of GSPMD: slicing (free, so left out of the answer), all-gather of the minor
    axis of a dimension, all-to-all of minor axes from one dimension to another, and a permute
    between shardings of equal tiles; and those that take a sum along unreduced axes: all-reduce,
    and reduce-scatter onto a dimension. Of a dimension with padded tiles, axes are gathered or
    moved one by one only where larger tiles consist of whole smaller ones. The search is cached: it
    depends only on the shardings, the mesh axes and the extents that need padding.

    Raises ValueError where no chain exists: nothing becomes unreduced by moving data.
    """
    return tuple(
        step for step, _ in resharding_path(src, dst, mesh, shape, itemsize) if step is not None
    )


def resharding_path(
    src: Sharding, dst: Sharding, mesh: Mesh, shape: tuple[int, ...], itemsize: int
) -> tuple[tuple[Step | None, Sharding], ...]:
    """The chain of `resharding_steps` with the sharding after each step; None for slices, which
    move nothing."""
    if not can_reshard(src, dst):
        raise ValueError(f"expected a sum along axes of {src} to stay unreduced, found {dst}")
    total = math.prod(shape) * itemsize
    return tuple(
        (None if step is None else Step(*step[:2], total * step[2]), after)
        for step, after in path_of_shares(src, dst, mesh, uneven_extents((src, dst), mesh, shape))
    )


def path_of_shares(
    src: Sharding, dst: Sharding, mesh: Mesh, uneven: Uneven
) -> tuple[tuple[tuple[str, Axes, float] | None, Sharding], ...]:
    """`resharding_path` with steps as (kind, axes, `bytes` as a share of those of the tensor).
    `uneven` are its extents that need padding (`uneven_extents`)."""
    path: list[tuple[tuple[str, Axes, float] | None, Sharding]] = []
    for kind, axes, share, after in _chain(src, dst, mesh.axes, uneven):
        if kind == SLICE and path and path[-1][0] is None:
            path.pop()  # one slice takes all that can be sliced
        path.append((None if kind == SLICE else (kind, axes, share), after))
    if path and path[-1][1] != dst:
        path[-1] = (path[-1][0], dst)  # the same tiles, with axes of size one
    return tuple(path)


def can_reshard(src: Sharding, dst: Sharding) -> bool:
    """Whether a chain exists: sums are only ever taken."""
    return set(dst.unreduced) <= set(src.unreduced)


def uneven_extents(shardings: Iterable[Sharding], mesh: Mesh, shape: tuple[int, ...]) -> Uneven:
    """The extents of dimensions that some of the shardings do not divide, in the place of others 0;
    empty when there are none, or no shape."""
    counts = [sharding.tile_counts(mesh) for sharding in shardings] if shape else []
    extents = tuple(
        extent if any(extent % each[dim] for each in counts) else 0
        for dim, extent in enumerate(shape)
    )
    return extents if any(extents) else ()


def resharding_stops(
    src: Sharding, dst: Sharding, mesh: Mesh, shape: tuple[int, ...]
) -> tuple[Sharding, ...]:
    """The shardings between `src` and `dst`: after each collective of `resharding_steps`, and after
    each slice.

    A partitioner that is only told `src` and `dst` may not find the chain; told these too it has
    single steps to take."""
    return tuple(after for _, after in resharding_path(src, dst, mesh, shape, 1)[:-1])


@cache
def _chain(
    src: Sharding, dst: Sharding, axes: MeshAxes, uneven: Uneven
) -> tuple[tuple[str, Axes, float, Sharding], ...]:
    """The steps from `src` to `dst`, each with its `bytes` as a fraction of the whole tensor and
    the sharding after it."""
    chain, ours, busy = _pattern(src, dst, axes, uneven)
    steps = []
    for kind, over, share, after in chain:
        dims = {d: _renamed(dim, ours) for d, dim in zip(busy, after.dims, strict=True)}
        whole = Sharding(
            tuple(dims.get(d, ()) for d in range(src.rank)), _renamed(after.unreduced, ours)
        )
        steps.append((kind, _renamed(over, ours), share, whole))
    return tuple(steps)


def _pattern(
    src: Sharding, dst: Sharding, axes: MeshAxes, uneven: Uneven
) -> tuple[tuple[tuple[str, Axes, float, Sharding], ...], dict[str, str], list[int]]:
    """The chain by axes "0", "1", … and dimensions in an order of their own, the axis of the mesh
    that each of these is, and the dimension that is in each place.

    Dimensions and axes that neither side uses take no part, and neither names nor the order of the
    dimensions matter: the search runs once for each pattern, of which there are few."""
    sizes = dict(axes)
    src, dst = _live(src, sizes), _live(dst, sizes)
    used = {*src.axes, *src.unreduced, *dst.axes, *dst.unreduced}
    names = {
        axis: f"{number}" for number, axis in enumerate(axis for axis in sizes if axis in used)
    }
    pairs = [
        (_renamed(one, names), _renamed(other, names), extent)
        for one, other, extent in zip(src.dims, dst.dims, uneven or (0,) * src.rank, strict=True)
    ]
    busy = [d for d, pair in enumerate(pairs) if pair[0] or pair[1]]
    if len(busy) > 1:
        busy.sort(key=pairs.__getitem__)
    chain = _search(
        tuple([pairs[d] for d in busy]),
        _renamed(src.unreduced, names),
        _renamed(dst.unreduced, names),
        tuple([sizes[axis] for axis in names]),
    )
    return chain, {name: axis for axis, name in names.items()}, busy


def _renamed(axes: Axes, names: dict[str, str]) -> Axes:
    return tuple([names[axis] for axis in axes]) if axes else ()


@cache
def _search(
    dims: tuple[tuple[Axes, Axes, int], ...],
    unreduced: Axes,
    still_unreduced: Axes,
    axis_sizes: tuple[int, ...],
) -> tuple[tuple[str, Axes, float, Sharding], ...]:
    """A* over shardings by the axes "0", "1", …; the answer as in `_chain`. `dims` are the axes of
    each dimension at both ends, and its extent where it is uneven.

    Every state splits each dimension into a number of tiles that divides the one of `src` or of
    `dst`, so whatever shape `src` and `dst` divide, the states between divide too."""
    src = Sharding(tuple(dim[0] for dim in dims), unreduced)
    dst = Sharding(tuple(dim[1] for dim in dims), still_unreduced)
    uneven = tuple(dim[2] for dim in dims)
    queue: list[tuple[int, int, int, int, Sharding, tuple]] = [(0, 0, 0, 0, src, ())]
    best: dict[Sharding, tuple[int, int]] = {src: (0, 0)}
    pushed = 0
    while True:
        _, steps, _, moved, state, path = heapq.heappop(queue)
        if state == dst:
            return path
        # A cheaper way to this state was found after this one was queued.
        if best[state] < (moved, steps):
            continue
        for wire, left, step in moves_with_bytes(state, dst, axis_sizes, uneven):
            after = step[-1]
            cost = (moved + wire, steps + (step[0] != SLICE))
            if after not in best or cost < best[after]:
                best[after] = cost
                # ties resolve in the order of discovery, so the answer does not depend on hashing
                pushed += 1
                heapq.heappush(
                    queue, (cost[0] + left, cost[1], pushed, cost[0], after, (*path, step))
                )


def _live(sharding: Sharding, sizes: dict[str, int]) -> Sharding:
    """Without axes of size one."""
    if 1 not in sizes.values():
        return sharding
    *dims, unreduced = (
        tuple(a for a in axes if sizes[a] > 1) for axes in (*sharding.dims, sharding.unreduced)
    )
    return Sharding(tuple(dims), unreduced)

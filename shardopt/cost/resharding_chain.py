"""The chain of collectives that takes a value from one sharding to another inside a mesh."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from functools import cache

from shardopt.cost.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
    Step,
)
from shardopt.mesh.mesh import Mesh, Sharding

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]
Move = tuple[str, Axes, Sharding]  # kind, axes, the sharding afterwards
_SLICE = "slice"  # taking a part of what the device already has moves nothing


def resharding_steps(
    src: Sharding, dst: Sharding, mesh: Mesh, shape: tuple[int, ...], itemsize: int
) -> tuple[Step, ...]:
    """The chain of collectives with the fewest bytes on the wire (then the fewest steps) from `src`
    to `dst`.

    Moves are those of GSPMD: slicing (free, so left out of the answer), all-gather of the minor
    axis of a dimension, all-to-all of minor axes from one dimension to another, and a permute
    between shardings of equal tiles; and those that take a sum along unreduced axes: all-reduce,
    and reduce-scatter onto a dimension. `src` and `dst` must fit `shape` (`Sharding.check`). The
    search is cached: it depends only on the shardings and the mesh axes.

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
    chain = _chain(src, dst, mesh.axes)
    path: list[tuple[Step | None, Sharding]] = []
    for kind, axes, share, after in chain:
        if kind == _SLICE and path and path[-1][0] is None:
            path.pop()  # one slice takes all that can be sliced
        path.append((None if kind == _SLICE else Step(kind, axes, total * share), after))
    if path and path[-1][1] != dst:
        path[-1] = (path[-1][0], dst)  # the same tiles, with axes of size one
    return tuple(path)


def can_reshard(src: Sharding, dst: Sharding) -> bool:
    """Whether a chain exists: sums are only ever taken."""
    return set(dst.unreduced) <= set(src.unreduced)


def resharding_stops(src: Sharding, dst: Sharding, mesh: Mesh) -> tuple[Sharding, ...]:
    """The shardings between `src` and `dst`: after each collective of `resharding_steps`, and after
    each slice.

    A partitioner that is only told `src` and `dst` may not find the chain; told these too it has
    single steps to take."""
    return tuple(after for _, after in resharding_path(src, dst, mesh, (), 1)[:-1])


@cache
def _chain(
    src: Sharding, dst: Sharding, axes: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, Axes, float, Sharding], ...]:
    """The steps from `src` to `dst`, each with its `bytes` as a fraction of the whole tensor and
    the sharding after it.

    Dimensions and axes that neither side uses take no part, and neither names nor the order of the
    dimensions matter: the search runs once for each pattern, of which there are few."""
    sizes = dict(axes)
    src, dst = _live(src, sizes), _live(dst, sizes)
    used = {*src.axes, *src.unreduced, *dst.axes, *dst.unreduced}
    names = {
        axis: f"{number}" for number, axis in enumerate(axis for axis in sizes if axis in used)
    }
    ours = {name: axis for axis, name in names.items()}
    pairs = [
        tuple(_renamed(dim, names) for dim in pair) for pair in zip(src.dims, dst.dims, strict=True)
    ]
    busy = sorted((d for d, pair in enumerate(pairs) if any(pair)), key=pairs.__getitem__)
    chain = _search(
        Sharding(tuple(pairs[d][0] for d in busy), _renamed(src.unreduced, names)),
        Sharding(tuple(pairs[d][1] for d in busy), _renamed(dst.unreduced, names)),
        tuple(sizes[axis] for axis in names),
    )
    steps = []
    for kind, over, share, after in chain:
        dims = {d: _renamed(dim, ours) for d, dim in zip(busy, after.dims, strict=True)}
        whole = Sharding(
            tuple(dims.get(d, ()) for d in range(src.rank)), _renamed(after.unreduced, ours)
        )
        steps.append((kind, _renamed(over, ours), share, whole))
    return tuple(steps)


def _renamed(axes: Axes, names: dict[str, str]) -> Axes:
    return tuple(names[axis] for axis in axes)


@cache
def _search(
    src: Sharding, dst: Sharding, axis_sizes: tuple[int, ...]
) -> tuple[tuple[str, Axes, float, Sharding], ...]:
    """A* over shardings by the axes "0", "1", …; the answer as in `_chain`.

    Every state splits each dimension into a number of tiles that divides the one of `src` or of
    `dst`, so whatever shape `src` and `dst` fit, the states between fit too."""
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
        for wire, left, step in _moves_with_bytes(state, dst, axis_sizes):
            after = step[-1]
            cost = (moved + wire, steps + (step[0] != _SLICE))
            if after not in best or cost < best[after]:
                best[after] = cost
                # ties resolve in the order of discovery, so the answer does not depend on hashing
                pushed += 1
                heapq.heappush(
                    queue, (cost[0] + left, cost[1], pushed, cost[0], after, (*path, step))
                )


@cache
def _moves_with_bytes(
    state: Sharding, dst: Sharding, axis_sizes: tuple[int, ...]
) -> tuple[tuple[int, int, tuple[str, Axes, float, Sharding]], ...]:
    """Each move with what one device sends, the least that it has to send afterwards, and the step
    as in `_chain`.

    Searches for one target from many sources pass through the same states.
    """
    sizes = {f"{number}": size for number, size in enumerate(axis_sizes)}
    whole = math.prod(axis_sizes) ** 2  # bytes in units that keep every fraction below an integer
    local, target = (whole // _tiles(sharding.axes, sizes) for sharding in (state, dst))
    moves = []
    for kind, over, after in _moves(state, dst, sizes):
        # In integers, so that chains of equal cost compare as equal.
        wire, full = _wire_and_full(kind, _tiles(over, sizes), local)
        # Only gathers make what a device holds larger, by as much as they send.
        left = max(0, target - whole // _tiles(after.axes, sizes))
        moves.append((wire, left, (kind, over, full / whole, after)))
    return tuple(moves)


def _wire_and_full(kind: str, n: int, local: int) -> tuple[int, int]:
    """(what one device sends, `bytes` of the formula) when each device holds `local` before the
    move."""
    if kind == ALL_GATHER:
        return local * (n - 1), local * n
    if kind == ALL_TO_ALL:
        return local * (n - 1) // n, local * n
    if kind == PERMUTE:
        return local, local
    if kind == REDUCE_SCATTER:
        return local * (n - 1) // n, local
    if kind == ALL_REDUCE:
        return 2 * local * (n - 1) // n, local
    return 0, 0


def _live(sharding: Sharding, sizes: dict[str, int]) -> Sharding:
    """Without axes of size one."""
    *dims, unreduced = (
        tuple(a for a in axes if sizes[a] > 1) for axes in (*sharding.dims, sharding.unreduced)
    )
    return Sharding(tuple(dims), unreduced)


def _moves(state: Sharding, dst: Sharding, sizes: dict[str, int]) -> Iterator[Move]:
    """All single steps from `state`. Sums may be taken early or late: what moves a value moves its
    terms as well."""
    for kind, axes, dims in _tile_moves(state, dst.dims, sizes):
        yield kind, axes, Sharding(dims, state.unreduced)
    # Axes along which the target is unreduced as well are left alone: a sum taken cannot be undone.
    ready = [axis for axis in state.unreduced if axis not in dst.unreduced]
    for axes in (
        axes for n in range(1, len(ready) + 1) for axes in itertools.combinations(ready, n)
    ):
        rest = tuple(axis for axis in state.unreduced if axis not in axes)
        yield ALL_REDUCE, axes, Sharding(state.dims, rest)
        for d, dim in enumerate(state.dims):
            if _tiles(dst.dims[d], sizes) % _tiles((*dim, *axes), sizes) == 0:
                yield REDUCE_SCATTER, axes, Sharding(_with(state.dims, {d: (*dim, *axes)}), rest)


def _tile_moves(
    sharding: Sharding, dst: Dims, sizes: dict[str, int]
) -> Iterator[tuple[str, Axes, Dims]]:
    """Moves between tilings, with sums left as they are."""
    state = sharding.dims
    used = {*sharding.axes, *sharding.unreduced}
    for d, dim in enumerate(state):
        for axis in _free_for(dim, dst[d], used, sizes):
            yield _SLICE, (axis,), _with(state, {d: (*dim, axis)})
        if dim:
            yield ALL_GATHER, dim[-1:], _with(state, {d: dim[:-1]})
        for e, other in enumerate(state):
            for cut in range(len(dim)) if e != d else ():
                grown = other + dim[cut:]
                if _tiles(dst[e], sizes) % _tiles(grown, sizes) == 0:
                    yield ALL_TO_ALL, dim[cut:], _with(state, {d: dim[:cut], e: grown})
    yield from _permutes(state, dst, sharding.unreduced, sizes)


def _free_for(dim: Axes, target: Axes, used: set[str], sizes: dict[str, int]) -> Iterator[str]:
    """Axes that may split a dimension further: the one that is wanted there, or, where that one is
    at work elsewhere or the dimension is split by others than wanted already, any that a permute
    can exchange later."""
    following = target[len(dim)] if len(target) > len(dim) and target[: len(dim)] == dim else None
    for axis in sizes if following is None or following in used else (following,):
        if axis not in used and _tiles(target, sizes) % _tiles((*dim, axis), sizes) == 0:
            yield axis


def _permutes(
    state: Dims, dst: Dims, unreduced: Axes, sizes: dict[str, int]
) -> Iterator[tuple[str, Axes, Dims]]:
    """Shardings with the tile counts of `state`: other axes of the same sizes in the same places,
    and those that are closer to `dst`, all dimensions at once and one by one."""
    after = _aligned(state, dst, unreduced, sizes)
    if after != state:
        pairs = zip(itertools.chain(*state), itertools.chain(*after), strict=True)
        moved = {axis for pair in pairs if pair[0] != pair[1] for axis in pair}
        yield PERMUTE, tuple(axis for axis in sizes if axis in moved), after
    aligned = {d: _same_tiles(dim, dst[d], sizes) for d, dim in enumerate(state)}
    changes = {d: dim for d, dim in aligned.items() if dim != state[d]}
    for change in (
        [changes, *({d: dim} for d, dim in changes.items())] if len(changes) > 1 else [changes]
    ):
        after = _with(state, change)
        axes = [*unreduced, *(axis for dim in after for axis in dim)]
        if change and len(set(axes)) == len(axes):
            moved = {axis for d, dim in change.items() for axis in (*dim, *state[d])}
            yield PERMUTE, tuple(axis for axis in sizes if axis in moved), after


def _aligned(state: Dims, dst: Dims, unreduced: Axes, sizes: dict[str, int]) -> Dims:
    """`state` with the axes that `dst` wants wherever those in their place have the same size. What
    they drive out takes the places that they leave, or one of an unused axis."""
    stay = {
        (d, k): target[k]
        for d, (dim, target) in enumerate(zip(state, dst, strict=True))
        for k in range(min(len(dim), len(target)))
        if sizes[dim[k]] == sizes[target[k]] and target[k] not in unreduced
    }
    free = [
        axis
        for axis in (*itertools.chain(*state), *sizes)
        if axis not in stay.values() and axis not in unreduced
    ]
    places = [(d, k) for d, dim in enumerate(state) for k in range(len(dim)) if (d, k) not in stay]
    axis_at = dict(stay)
    # Those that can stay first.
    for d, k in sorted(places, key=lambda place: state[place[0]][place[1]] not in free):
        current = state[d][k]
        axis_at[d, k] = (
            current
            if current in free
            else next(axis for axis in free if sizes[axis] == sizes[current])
        )
        free = [axis for axis in free if axis != axis_at[d, k]]
    return tuple(tuple(axis_at[d, k] for k in range(len(dim))) for d, dim in enumerate(state))


def _tiles(axes: Axes, sizes: dict[str, int]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _same_tiles(
    dim: tuple[str, ...], target: tuple[str, ...], sizes: dict[str, int]
) -> tuple[str, ...]:
    """`target` if it makes as many tiles as `dim`, else `dim` with the leading axes of `target` it
    has in front."""
    if _tiles(dim, sizes) == _tiles(target, sizes):
        return target
    front = next((target[:n] for n in range(len(target), 0, -1) if set(target[:n]) <= set(dim)), ())
    return (*front, *(axis for axis in dim if axis not in front))


def _with(dims: Dims, change: dict[int, tuple[str, ...]]) -> Dims:
    return tuple(change.get(d, dim) for d, dim in enumerate(dims))

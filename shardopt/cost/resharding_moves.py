"""The single moves between shardings that a chain of collectives is made of: those of GSPMD."""

from __future__ import annotations

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
)
from shardopt.mesh.mesh import Sharding
from shardopt.mesh.splits import nests, tile_extent

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]
Move = tuple[str, Axes, Sharding]  # kind, axes, the sharding afterwards
# Of dimensions whose tiles need padding the extent, of all others 0: as if any number divided it.
Uneven = tuple[int, ...]
SLICE = "slice"  # taking a part of what the device already has moves nothing


class Sizes(dict[str, int]):
    """Sizes of the axes "0", "1", …; `tiles` says how many tiles some of them make together."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__((f"{number}", size) for number, size in enumerate(sizes))
        self.tiles = _Tiles(self)


class _Tiles(dict[Axes, int]):
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def __missing__(self, axes: Axes) -> int:
        count = self[axes] = math.prod(self._sizes[axis] for axis in axes)
        return count


_sizes = cache(Sizes)


@cache
def moves_with_bytes(
    state: Sharding, dst: Sharding, axis_sizes: tuple[int, ...], uneven: Uneven
) -> tuple[tuple[int, int, tuple[str, Axes, float, Sharding]], ...]:
    """Each move with what one device sends, the least that it has to send afterwards, and the step:
    kind, axes, its `bytes` as a share of those of the whole tensor, and the sharding after it.

    Searches for one target from many sources pass through the same states.
    """
    sizes = _sizes(axis_sizes)
    unit = math.prod(axis_sizes) ** 2  # of bytes: keeps every fraction below an integer
    whole = unit * math.prod(extent or 1 for extent in uneven)
    held, target = (_local(unit, each, sizes, uneven) for each in (state, dst))
    moves = []
    for kind, over, after in _possible_moves(state, dst, sizes, uneven):
        # In integers, so that chains of equal cost compare as equal.
        local = held
        if kind == ALL_TO_ALL and any(uneven):
            local = _local(unit, state, sizes, _padded(state, after, sizes, uneven))
        wire, full = _wire_and_full(kind, sizes.tiles[over], local)
        # Only gathers make what a device holds larger, by as much as they send.
        left = max(0, target - _local(unit, after, sizes, uneven))
        moves.append((wire, left, (kind, over, full / whole, after)))
    return tuple(moves)


def _possible_moves(state: Sharding, dst: Sharding, sizes: Sizes, uneven: Uneven) -> Iterator[Move]:
    """All single steps that the tiles of uneven dimensions allow: those that a device makes of
    whole tiles, or from the whole dimension or to it, which may take several axes at once."""
    if not any(uneven):
        yield from _moves(state, dst, sizes)
        return
    may_pad = _pads_terms(state, sizes, uneven) or _pads_terms(dst, sizes, uneven)
    for kind, axes, after in _moves(state, dst, sizes):
        if all(
            not extent or before == now or _fits_together(kind, before, now, extent, sizes)
            for before, now, extent in zip(state.dims, after.dims, uneven, strict=True)
        ) and (may_pad or not _pads_terms(after, sizes, uneven)):
            yield kind, axes, after
    used = {*state.axes, *state.unreduced}
    for d, (dim, target, extent) in enumerate(zip(state.dims, dst.dims, uneven, strict=True)):
        if extent and len(dim) > 1:
            yield ALL_GATHER, dim, Sharding(_with(state.dims, {d: ()}), state.unreduced)
        if extent and not dim and len(target) > 1 and used.isdisjoint(target):
            after = Sharding(_with(state.dims, {d: target}), state.unreduced)
            if may_pad or not _pads_terms(after, sizes, uneven):
                yield SLICE, target, after


def _pads_terms(state: Sharding, sizes: Sizes, uneven: Uneven) -> bool:
    """Whether a sum that is still open lies in padded tiles, which ends Shardy's process."""
    return bool(state.unreduced) and any(
        extent % sizes.tiles[dim] for dim, extent in zip(state.dims, uneven, strict=True)
    )


def _fits_together(kind: str, before: Axes, after: Axes, extent: int, sizes: Sizes) -> bool:
    """Whether a dimension of an uneven extent can change so in one step."""
    counts = sorted((sizes.tiles[before], sizes.tiles[after]))
    if counts[0] == counts[1]:
        return True
    if kind == REDUCE_SCATTER:  # a device would get a part of another length than the others
        return extent % counts[1] == 0
    return counts[0] == 1 or nests(extent, *counts)


def _local(unit: int, state: Sharding, sizes: Sizes, uneven: Uneven) -> int:
    """What one device holds, when the whole value has `unit` bytes for each element along its
    uneven dimensions."""
    if not any(uneven):
        return unit // sizes.tiles[state.axes]
    for dim, extent in zip(state.dims, uneven, strict=True):
        tiles = sizes.tiles[dim]
        unit = unit * tile_extent(extent, tiles) if extent else unit // tiles
    return unit


def _padded(before: Sharding, after: Sharding, sizes: Sizes, uneven: Uneven) -> Uneven:
    """The extents of the uneven dimensions when they are filled up so that the tiles before consist
    of those after."""
    counts = (
        (sizes.tiles[one], sizes.tiles[other])
        for one, other in zip(before.dims, after.dims, strict=True)
    )
    return tuple(
        tile_extent(extent, new) * new if new > old else extent
        for extent, (old, new) in zip(uneven, counts, strict=True)
    )


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


def _moves(state: Sharding, dst: Sharding, sizes: Sizes) -> Iterator[Move]:
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
            if sizes.tiles[dst.dims[d]] % sizes.tiles[*dim, *axes] == 0:
                yield REDUCE_SCATTER, axes, Sharding(_with(state.dims, {d: (*dim, *axes)}), rest)


def _tile_moves(sharding: Sharding, dst: Dims, sizes: Sizes) -> Iterator[tuple[str, Axes, Dims]]:
    """Moves between tilings, with sums left as they are."""
    state = sharding.dims
    used = {*sharding.axes, *sharding.unreduced}
    for d, dim in enumerate(state):
        for axis in _free_for(dim, dst[d], used, sizes):
            yield SLICE, (axis,), _with(state, {d: (*dim, axis)})
        if dim:
            yield ALL_GATHER, dim[-1:], _with(state, {d: dim[:-1]})
        for e, other in enumerate(state):
            for cut in range(len(dim)) if e != d else ():
                grown = other + dim[cut:]
                if sizes.tiles[dst[e]] % sizes.tiles[grown] == 0:
                    yield ALL_TO_ALL, dim[cut:], _with(state, {d: dim[:cut], e: grown})
    yield from _permutes(state, dst, sharding.unreduced, sizes)


def _free_for(dim: Axes, target: Axes, used: set[str], sizes: Sizes) -> Iterator[str]:
    """Axes that may split a dimension further: the one that is wanted there, or, where that one is
    at work elsewhere or the dimension is split by others than wanted already, any that a permute
    can exchange later."""
    following = target[len(dim)] if len(target) > len(dim) and target[: len(dim)] == dim else None
    for axis in sizes if following is None or following in used else (following,):
        if axis not in used and sizes.tiles[target] % sizes.tiles[*dim, axis] == 0:
            yield axis


def _permutes(
    state: Dims, dst: Dims, unreduced: Axes, sizes: Sizes
) -> Iterator[tuple[str, Axes, Dims]]:
    """Shardings with the tile counts of `state`: other axes of the same sizes in the same places,
    and those that are closer to `dst`, all dimensions at once and one by one."""
    if all(dim == target[: len(dim)] for dim, target in zip(state, dst, strict=True)):
        return  # all that is there is in its place
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


def _aligned(state: Dims, dst: Dims, unreduced: Axes, sizes: Sizes) -> Dims:
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


def _same_tiles(dim: tuple[str, ...], target: tuple[str, ...], sizes: Sizes) -> tuple[str, ...]:
    """`target` if it makes as many tiles as `dim`, else `dim` with the leading axes of `target` it
    has in front."""
    if sizes.tiles[dim] == sizes.tiles[target]:
        return target
    front = next((target[:n] for n in range(len(target), 0, -1) if set(target[:n]) <= set(dim)), ())
    return (*front, *(axis for axis in dim if axis not in front))


def _with(dims: Dims, change: dict[int, tuple[str, ...]]) -> Dims:
    return tuple(change.get(d, dim) for d, dim in enumerate(dims))

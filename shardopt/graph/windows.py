"""Windows that slide along a dimension, and the borders that devices exchange when the dimension is
split.

A convolution, a pooling, a slice or a padding reads, for each element of its result, a window of
its operand. With both dimensions split into tiles, a device lacks the elements of its windows that
lie in its neighbours' tiles: the halo. XLA's partitioner fetches it by collective-permutes, one for
each neighbour on either side; all devices fetch as much as the one that needs most
(xla/service/spmd/spmd_partitioner_util.cc, ExchangeHalo). Dimensions are dealt with one after the
other, and a later one carries the borders of the earlier ones along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from shardopt.graph.far_borders import far_exchanges
from shardopt.mesh.splits import may_split, tile_extent


@dataclass(frozen=True)
class Window:
    """How factor `factor` of an operation moves along dimension `dim` of operand 0.

    Element o of the result (`target` of them) reads elements o·stride - low + k·dilation for k <
    size of the operand, whose `source` elements lie `spacing` apart (the places between them are
    empty). `mirrored` is the reversal of the dimension. A `contracted` window is the other way
    round: the elements k are split, and every device needs all o."""

    factor: int
    dim: int
    source: int
    target: int
    size: int = 1
    stride: int = 1
    low: int = 0
    spacing: int = 1
    dilation: int = 1
    mirrored: bool = False
    contracted: bool = False


@cache
def meetings(window: Window) -> int:
    """Pairs of an element of the result and one of the window that meet an element of the operand:
    neither padding, nor one of the empty places between its elements."""
    # Position o·stride + k·dilation - low of the spaced operand: it meets an element if it lies
    # between 0 and `end` and is a multiple of the spacing.
    end = (window.source - 1) * window.spacing
    pairs = 0
    for k in range(window.size):
        shift = k * window.dilation - window.low
        first = max(-(shift // window.stride), 0)
        last = min((end - shift) // window.stride, window.target - 1)
        if window.spacing == 1:
            pairs += max(last - first + 1, 0)
        else:
            pairs += sum(
                (o * window.stride + shift) % window.spacing == 0 for o in range(first, last + 1)
            )
    return pairs


def fits(window: Window, tiles: int) -> bool:
    """Whether the dimension can be split so, with borders that are cheaper to fetch than the
    whole."""
    split = window.size if window.contracted else window.target
    if window.spacing > 1 and window.low < 0:  # a check of XLA's fails and ends the process
        return False
    if not (may_split(window.source, tiles) and may_split(split, tiles)):
        return False
    tile = tile_extent(window.source, tiles)
    return window.mirrored or sum(exchanges(window, tiles)) + tile < window.source


def without_place(window: Window) -> Window:
    """The same window, at the begin of the dimension where nothing is ever split: which of its rows
    a slice takes, as equal layers take one each, is then nothing that costs depend on."""
    split = window.size if window.contracted else window.target
    return replace(window, low=0) if 1 in (window.source, split) else window


@cache
def exchanges(window: Window, tiles: int) -> tuple[int, ...]:
    """Elements along the dimension that each permute brings to a device; nothing where no window
    crosses a border."""
    tile = tile_extent(window.source, tiles)
    if window.mirrored:
        # The padding is at the wrong end first: all shift by it. Then each tile goes to the device
        # opposite.
        padding = tile * tiles - window.source
        return (*_in_tiles(padding, tile, padding - tile), tile)
    if is_far(window, tiles):
        return far_exchanges(_spans(window, tiles), tile, window.source)
    left, right = reaches(window, tiles)
    # What lies between the tile and the nearest that any device needs stays where it is.
    return (*_in_tiles(left, tile, -right - tile), *_in_tiles(right, tile, -left - tile))


def _in_tiles(count: int, tile: int, unused: int = 0) -> Iterator[int]:
    """`count` elements beside a tile, neighbour by neighbour, without the nearest `unused`."""
    for before in range(0, count, tile):
        size = min(count - before, tile) - max(unused - before, 0)
        if size > 0:
            yield size


def is_far(window: Window, tiles: int) -> bool:
    """Whether devices need little, and from far away: then it is fetched from where it is, and not
    with all that lies between."""
    if window.spacing > 1 or window.contracted:
        return False
    longest = max(last - first + 1 for first, last in _spans(window, tiles))
    return max(_reach(window, tiles, 0)) > 2 * longest


def halo(window: Window, tiles: int) -> tuple[int, int]:
    """Elements that a device needs from before and from behind its tile: the most of all devices
    but the first, and of all but the last."""
    left, right = reaches(window, tiles)
    return max(left, 0), max(right, 0)


def reaches(window: Window, tiles: int) -> tuple[int, int]:
    """As `halo`, but negative where none needs as much as its own tile."""
    return _reach(window, tiles, 1)


def _reach(window: Window, tiles: int, ends: int) -> tuple[int, int]:
    """How far devices reach to the left and to the right of their tiles at most; of those at the
    ends, so many do not count."""
    tile = tile_extent(window.source, tiles)
    spans = list(enumerate(_spans(window, tiles)))
    left = (device * tile - first for device, (first, _) in spans[ends:])
    right = (last + 1 - (device + 1) * tile for device, (_, last) in spans[: tiles - ends])
    return max(left, default=0), max(right, default=0)


def reach(window: Window, tiles: int) -> int:
    """Elements along the dimension that a device holds when its borders have come."""
    if window.mirrored:
        return tile_extent(window.source, tiles)
    return max(last - first + 1 for first, last in _spans(window, tiles))


def _spans(window: Window, tiles: int) -> tuple[tuple[int, int], ...]:
    return tuple(_span(window, tiles, device) for device in range(tiles))


def _span(window: Window, tiles: int, device: int) -> tuple[int, int]:
    """The first and the last element of the operand that a device reads."""
    if window.contracted:
        share = tile_extent(window.size, tiles)
        first = device * share * window.dilation - window.low
        last = (
            ((device + 1) * share - 1) * window.dilation
            + (window.target - 1) * window.stride
            - window.low
        )
    else:
        share = tile_extent(window.target, tiles)
        first = device * share * window.stride - window.low
        last = (
            ((device + 1) * share - 1) * window.stride
            - window.low
            + (window.size - 1) * window.dilation
        )
    # From positions to elements, which lie `spacing` apart: the first at or behind `first`, the
    # last at or before `last`.
    return -(-first // window.spacing), last // window.spacing

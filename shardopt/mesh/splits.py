"""Into how many tiles a dimension may be split, and how long they are: the one place that knows.

    10 over 4: tiles of 3, 3, 3, and 1 with two elements of padding behind it

Tiles are those of XLA: of one extent, rounded up. The last ones stop where the dimension does, and
may hold nothing."""

from __future__ import annotations

# Planners leave out splits of which more is padding: such a dimension is short, another one or
# fewer axes serve as well, and every split that is listed multiplies the strategies of an
# operation. Half of a short dimension's elements would be padding, and most programs have some.
_MOST_PADDING = 1 / 4


def tile_extent(extent: int, tiles: int) -> int:
    """Elements of a dimension in the buffer of every device, padding included."""
    return -(-extent // tiles)


def may_split(extent: int, tiles: int) -> bool:
    """Whether planners split a dimension so: evenly, or with little padding. What a user asks for
    may be split in any way."""
    if extent % tiles == 0:
        return True
    padded = tile_extent(extent, tiles) * tiles
    return extent > tiles and padded - extent <= _MOST_PADDING * padded


def nests(extent: int, coarse: int, fine: int) -> bool:
    """Whether each of `coarse` tiles consists of whole ones of `fine` tiles, a multiple: only then
    a device has what a part of its tile is made of."""
    return tile_extent(extent, coarse) == tile_extent(extent, fine) * (fine // coarse)

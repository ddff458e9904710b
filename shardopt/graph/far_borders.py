"""Borders that lie far from the tiles of the devices that need them.

    the first third of 24 elements, over 4 devices: tiles of 6 go in, tiles of 2 come out
    device 0 needs 0 and 1, device 1 needs 2 and 3, device 2 needs 4 and 5, device 3 needs 6 and 7:
    0 sends two to 1 and two to 2, 1 sends two to 3

XLA does not bring everything that lies between (`ExchangeHaloCompact` in
xla/service/spmd/spmd_partitioner_util.cc): each device takes its pieces from those that have them,
with as few permutes as their sources and targets allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Piece:
    """The elements [start, limit) of the holder's tile, which `target` needs at `offset`."""

    holder: int
    target: int
    offset: int
    start: int
    limit: int


def far_exchanges(spans: Sequence[tuple[int, int]], tile: int, extent: int) -> tuple[int, ...]:
    """Elements of each permute, when device d needs the elements from the first to the last of
    `spans[d]` and holds those of tile d. Elements outside of `extent` are padding, which nobody
    sends."""
    waiting: list[list[_Piece]] = [[] for _ in spans]
    for target, span in enumerate(spans):
        for piece in _pieces(target, span, tile, extent):
            if piece.holder != target:
                waiting[piece.holder].append(piece)
    for pieces in waiting:
        pieces.sort(key=lambda piece: piece.offset)
    sizes = []
    while any(waiting):
        permuted = _next_permute(waiting, tile)
        sizes.append(max(p.limit for p in permuted) - min(p.start for p in permuted))
        for piece in permuted:
            waiting[piece.holder].pop(0)
    return tuple(sizes)


def _pieces(target: int, span: tuple[int, int], tile: int, extent: int) -> Iterator[_Piece]:
    first, stop = span[0], span[1] + 1
    place = max(first, 0)
    while place < min(stop, extent):
        start = place % tile
        limit = min(tile, start + stop - place)
        yield _Piece(place // tile, target, place - first, start, limit)
        place += limit - start


def _next_permute(waiting: Sequence[Sequence[_Piece]], tile: int) -> list[_Piece]:
    """The first pieces of as many holders as can send together: to different devices, and not the
    begin of one tile with the end of another, as all send the same range."""
    permuted: list[_Piece] = []
    for pieces in waiting:
        if not pieces:
            continue
        piece = pieces[0]
        start = min((other.start for other in permuted), default=tile)
        limit = max((other.limit for other in permuted), default=0)
        apart = (piece.limit < start and limit == tile and piece.start == 0) or (
            limit < piece.start and start == 0 and piece.limit == tile
        )
        taken = any(other.target == piece.target for other in permuted)
        if not permuted or not (taken or apart):
            permuted.append(piece)
    return permuted

"""Slices of a tensor: which of the tiles of a sharding a slice overlaps, and how to cut one into
pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.plan import Slice


@dataclass(frozen=True, eq=False)
class TileGrid:
    """The tiles of a sharded tensor and who holds them: `holders` by the number of the tile in each
    dimension, devices in mesh order. Tiles without elements (`Sharding.tiles` says when) are left
    out."""

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    holders: Mapping[tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> TileGrid:
        """Raises ValueError where rank or axes do not fit, and for a value that is not summed up
        yet: its terms differ from device to device."""
        sharding.check(mesh, shape)
        if sharding.unreduced:
            raise ValueError(
                f"expected a value that is summed up, found sharding {sharding} on mesh {mesh}"
            )
        extents = sharding.local_shape(mesh, shape)
        holders: dict[tuple[int, ...], list[int]] = {}
        numbers = sharding.tile_numbers(mesh).tolist()
        for device, number in zip(mesh.devices, numbers, strict=True):
            if all(
                k * extent < whole for k, extent, whole in zip(number, extents, shape, strict=True)
            ):
                holders.setdefault(tuple(number), []).append(device)
        return TileGrid(
            shape, extents, {number: tuple(devices) for number, devices in holders.items()}
        )

    def tile(self, number: tuple[int, ...]) -> Slice:
        bounds = zip(number, self.extents, self.shape, strict=True)
        return tuple((k * extent, min((k + 1) * extent, whole)) for k, extent, whole in bounds)

    def overlaps(self, slice_: Slice) -> Iterator[tuple[Slice, tuple[int, ...]]]:
        """The parts of a slice that lie in one tile each, with the holders of the tile, in the
        order of the tiles."""
        spans = zip(slice_, self.extents, strict=True)
        for number in product(
            *(range(start // extent, -(-limit // extent)) for (start, limit), extent in spans)
        ):
            tile = self.tile(number)
            common = tuple(
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(slice_, tile, strict=True)
            )
            yield common, self.holders[number]


def volume(slice_: Slice) -> int:
    return prod(limit - start for start, limit in slice_)


def cut(slice_: Slice, count: int) -> tuple[Slice, ...]:
    """At most `count` pieces of a slice, as equal as can be.

    Each dimension in turn is cut by the factor that its extent shares with what is left of the
    count (arXiv 2201.12023, section 6); what no extent shares cuts the longest one unevenly."""
    parts, left = [], count
    for start, limit in slice_:
        parts.append(gcd(limit - start, left))
        left //= parts[-1]
    # No extent shares a factor with what is left.
    if left > 1 and slice_:
        lengths = [
            (limit - start) // part for (start, limit), part in zip(slice_, parts, strict=True)
        ]
        longest = max(range(len(slice_)), key=lengths.__getitem__)
        start, limit = slice_[longest]
        parts[longest] = min(parts[longest] * left, limit - start)
    return tuple(
        product(
            *(_even(start, limit, part) for (start, limit), part in zip(slice_, parts, strict=True))
        )
    )


def _even(start: int, limit: int, parts: int) -> list[tuple[int, int]]:
    """Extents differ by one at most."""
    length = limit - start
    return [(start + k * length // parts, start + (k + 1) * length // parts) for k in range(parts)]

"""The mesh behind GSPMD's shardings, which number devices and name no axes.

A dimension of tiles steps through the devices by strides: of `{devices=[2,4]<=[4,2]T(1,0)}`, the
first in steps of 1, the second in steps of 2. The coarsest mesh that can say several shardings has
an axis between each two neighbours of all strides, and of where they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.passes.importing.user_shardings import UnsupportedError, devices_of_tiles

# A dimension of tiles, from major to minor: so many devices, so far from each other.
Steps = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tiles:
    """`steps` of each dimension of a tensor; `manual` are those along which code is that of one
    device, or None for all axes."""

    devices: int
    steps: tuple[Steps, ...]
    manual: Steps | None = ()


def read_tiles(text: str, rank: int) -> Tiles:
    """Of one `mhlo.sharding` of a tensor of this rank; 0 devices where it does not say how many.
    Raises ValueError."""
    if text in ("{replicated}", "{manual}"):
        return Tiles(0, ((),) * rank, None if text == "{manual}" else ())
    try:
        tiles, kinds = devices_of_tiles(text, rank)
    except UnsupportedError as error:
        raise ValueError(f"expected tiles, found '{error}'") from None
    steps = _steps(tiles)
    if steps is None:
        raise ValueError(f"expected devices in the order of a mesh, found '{text}'")
    manual = [
        step
        for kind, each in zip(kinds, steps[rank:], strict=True)
        for step in each
        if kind == "manual"
    ]
    return Tiles(tiles.size, tuple(steps[:rank]), tuple(manual))


def _steps(tiles: np.ndarray) -> list[Steps] | None:
    """Of each dimension of an array of devices; None where they are not a product of steps."""
    steps = []
    devices = np.zeros_like(tiles)
    for dim, size in enumerate(tiles.shape):
        line = np.moveaxis(tiles, dim, 0).reshape(size, -1)[:, 0]
        found, places = _steps_of(line - line[0])
        if not np.array_equal(places, line - line[0]):
            return None
        steps.append(found)
        devices = devices + places.reshape([-1 if k == dim else 1 for k in range(tiles.ndim)])
    return steps if np.array_equal(devices, tiles) else None


def _steps_of(line: np.ndarray) -> tuple[Steps, np.ndarray]:
    """The steps that begin like `line`, and the places that they make."""
    steps: list[tuple[int, int]] = []
    places = np.zeros(1, dtype=line.dtype)
    while len(places) < len(line):
        stride, count = int(line[len(places)]), 2
        while count * len(places) < len(line) and line[count * len(places)] == count * stride:
            count += 1
        while len(line) % (count * len(places)):
            count -= 1
        places = (stride * np.arange(count)[:, None] + places).ravel()
        if count == 1:
            break
        steps.append((count, stride))
    if len(places) != len(line):
        return (), np.full_like(line, -1)
    return tuple(reversed(steps)), places


@dataclass(frozen=True)
class MeshOfTiles:
    """`axes` are (name, size) of devices that are numbered row by row; axis k has `strides[k]`."""

    axes: tuple[tuple[str, int], ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tiles: Sequence[Tiles], groups: Iterable[np.ndarray] = ()) -> MeshOfTiles:
        """The coarsest mesh that says them all, and groups of devices (int64 `[groups, devices of a
        group]`) where it can. Raises ValueError where there is none."""
        counts = {each.devices for each in tiles if each.devices}
        if len(counts) != 1:
            raise ValueError(
                "expected shardings that say how many devices there are"
                if not counts
                else f"expected one number of devices, found {', '.join(map(str, sorted(counts)))}"
            )
        cuts = {1, *counts}
        for each in tiles:
            for count, stride in _all_steps(each):
                cuts |= {stride, count * stride}
        if not _is_chain(cuts):
            raise ValueError("expected shardings of one mesh, found some of different ones")
        for group in groups:
            inner = (_steps(group) or [(), ()])[1]
            more = {cut for count, stride in inner for cut in (stride, count * stride)}
            cuts |= more if _is_chain(cuts | more) and max({1, *more}) <= max(cuts) else set()
        ordered = sorted(cuts, reverse=True)
        axes = tuple(
            (f"a{k}", large // small) for k, (large, small) in enumerate(pairwise(ordered))
        )
        return cls(axes, tuple(ordered[1:]))

    def manual(self, tiles: Tiles) -> tuple[str, ...]:
        if tiles.manual is None:
            return tuple(name for name, _ in self.axes)
        return self._axes(tiles.manual)

    def sharding(self, tiles: Tiles) -> Sharding:
        return Sharding(tuple(self._axes(steps) for steps in tiles.steps))

    def _axes(self, steps: Iterable[tuple[int, int]]) -> tuple[str, ...]:
        return tuple(
            name
            for count, stride in steps
            for (name, _), own in zip(self.axes, self.strides, strict=True)
            if stride <= own < count * stride
        )


def _is_chain(cuts: set[int]) -> bool:
    ordered = sorted(cuts, reverse=True)
    return ordered[-1] > 0 and not any(large % small for large, small in pairwise(ordered))


def _all_steps(tiles: Tiles) -> Iterable[tuple[int, int]]:
    for steps in (*tiles.steps, tiles.manual or ()):
        yield from steps

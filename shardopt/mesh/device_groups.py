"""Which devices of a mesh take part in one collective, and where the tiles of each begin, by the
positions of the devices in the mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from shardopt.mesh.mesh import Mesh, Sharding


def groups_along(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """The groups that differ along `axes` only: int64 `[groups, members]`, members in the row-major
    order in which the axes are named."""
    numbers = np.arange(mesh.size, dtype=np.int64).reshape(mesh.shape)
    positions = [mesh.axis_names.index(axis) for axis in axes]
    rest = [k for k in range(len(mesh.axes)) if k not in positions]
    members = int(np.prod([mesh.shape[k] for k in positions], dtype=np.int64))
    return numbers.transpose([*rest, *positions]).reshape(-1, members)


def permutation_pairs(mesh: Mesh, before: Sharding, after: Sharding) -> np.ndarray:
    """(source, target) of each device that gets its tile from another one, where both shardings
    have equally many tiles: int64 `[pairs, 2]`.

    Every device sends to one device at most, and terms of a sum stay at their coordinates along the
    unreduced axes. A device that has its tile already keeps it."""
    terms = _coordinates(mesh, before.unreduced)
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    wanted: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for sharding, by_tile in ((before, holders), (after, wanted)):
        numbers = np.concatenate([sharding.tile_numbers(mesh), terms], axis=1)
        for device, tile in enumerate(numbers.tolist()):
            by_tile[tuple(tile)].append(device)
    pairs: list[tuple[int, int]] = []
    for tile, targets in wanted.items():
        sources = holders[tile]
        kept = set(sources) & set(targets)
        pairs += zip(
            [device for device in sources if device not in kept],
            [device for device in targets if device not in kept],
            strict=True,
        )
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def slice_starts(
    mesh: Mesh, shape: tuple[int, ...], before: Sharding, after: Sharding
) -> np.ndarray:
    """Where the tile of each device begins within the larger one that it holds: int64 `[devices,
    rank]`."""
    starts = [
        sharding.tile_numbers(mesh) * np.array(sharding.local_shape(mesh, shape), dtype=np.int64)
        for sharding in (after, before)
    ]
    return starts[0] - starts[1]


def is_first_along(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """Whether a device stands at the beginning of all these axes: bool `[devices]`."""
    return np.logical_not(_coordinates(mesh, axes).any(axis=1))


def _coordinates(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """int64 `[devices, axes]`."""
    coordinates = np.indices(mesh.shape).reshape(len(mesh.axes), -1)
    positions = [mesh.axis_names.index(axis) for axis in axes]
    return coordinates[positions].T.reshape(mesh.size, len(positions)).astype(np.int64)

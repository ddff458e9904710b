"""The mesh that is found behind GSPMD's shardings: random shardings of random meshes lie on the
devices as they did."""

from __future__ import annotations

import random
from itertools import islice
from math import prod

import numpy as np
import pytest

from shardopt.dialect.sharding import to_mhlo
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.passes.importing.device_order import MeshOfTiles, read_tiles
from shardopt.passes.importing.user_shardings import devices_of_tiles

RANK = 3


def random_mesh(rng: random.Random) -> Mesh:
    sizes = [rng.choice((2, 2, 3, 4)) for _ in range(rng.randint(1, 3))]
    axes = tuple((f"m{k}", size) for k, size in enumerate(sizes))
    return Mesh("m", axes, tuple(range(prod(sizes))))


def random_sharding(rng: random.Random, mesh: Mesh) -> Sharding:
    axes = iter(rng.sample(list(mesh.axis_names), rng.randint(1, len(mesh.axes))))
    return Sharding(tuple(tuple(islice(axes, rng.randint(0, 2))) for _ in range(RANK)))


def placement(text: str) -> np.ndarray:
    """int64 `[devices, RANK]`: the tile of each dimension that a device has."""
    devices, _ = devices_of_tiles(text, RANK)
    places = np.empty((devices.size, RANK), dtype=np.int64)
    for tile, device in np.ndenumerate(devices):
        places[device] = tile[:RANK]
    return places


@pytest.mark.parametrize("seed", range(100))
def test_shardings_lie_as_they_did(seed: int) -> None:
    rng = random.Random(seed)
    mesh = random_mesh(rng)
    shardings = [random_sharding(rng, mesh) for _ in range(rng.randint(1, 4))]
    texts = [to_mhlo(sharding, mesh) for sharding in shardings]
    tiles = [read_tiles(text, RANK) for text in texts]
    if not any(each.devices for each in tiles):
        return
    found = MeshOfTiles.of(tiles)
    assert len(found.axes) <= len(mesh.axes)
    ours = Mesh("m", found.axes, mesh.devices)
    for text, each in zip(texts, tiles, strict=True):
        if each.devices:
            again = to_mhlo(found.sharding(each), ours)
            np.testing.assert_array_equal(placement(again), placement(text))


def test_subgroups_say_which_axes_are_manual() -> None:
    text = "{devices=[1,1,2,2]<=[2,2]T(1,0) last_tile_dims={manual, replicated}}"
    tiles = read_tiles(text, 2)
    found = MeshOfTiles.of([tiles])
    assert found.axes == (("a0", 2), ("a1", 2))
    assert found.manual(tiles) == ("a1",)


def test_groups_of_collectives_tell_axes_apart() -> None:
    tiles = [read_tiles("{devices=[4,1]<=[4]}", 2), read_tiles("{manual}", 2)]
    assert MeshOfTiles.of(tiles).axes == (("a0", 4),)
    pairs = np.array([[0, 1], [2, 3]])
    assert MeshOfTiles.of(tiles, [pairs]).axes == (("a0", 2), ("a1", 2))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["{manual}"], "say how many devices"),
        (["{devices=[2]<=[2]}", "{devices=[4]<=[4]}"], "one number of devices, found 2, 4"),
        (
            [
                "{devices=[2,3]<=[6] last_tile_dim_replicate}",
                "{devices=[3,2]<=[6] last_tile_dim_replicate}",
            ],
            "shardings of one mesh",
        ),
        (["{devices=[4]0,1,3,2}"], "devices in the order of a mesh"),
    ],
)
def test_what_no_mesh_can_say_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeshOfTiles.of([read_tiles(text, 1) for text in texts])

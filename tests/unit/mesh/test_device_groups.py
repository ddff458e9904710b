"""Groups of devices against their definition, by coordinates."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from shardopt.mesh.device_groups import (
    groups_along,
    is_first_along,
    permutation_pairs,
    slice_starts,
)
from shardopt.mesh.mesh import Mesh, Sharding

MESH = Mesh("m", (("x", 2), ("y", 3), ("z", 2)), tuple(range(12)))
COORDINATES = np.indices(MESH.shape).reshape(3, -1).T


def coordinate(device: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(COORDINATES[device][MESH.axis_names.index(axis)]) for axis in axes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_of_a_group_differ_along_its_axes_in_row_major_order(count: int) -> None:
    for axes in permutations(MESH.axis_names, count):
        groups = groups_along(MESH, axes)
        assert sorted(groups.ravel().tolist()) == list(range(12))
        others = tuple(axis for axis in MESH.axis_names if axis not in axes)
        for group in groups.tolist():
            assert len({coordinate(device, others) for device in group}) == 1
            places = [coordinate(device, axes) for device in group]
            assert places == sorted(places) and len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Sharding((("x",), ("z",))), Sharding((("z",), ("x",)))),
        (Sharding((("x", "z"), ())), Sharding((("z", "x"), ()))),
        (Sharding((("x",), ())), Sharding((("z",), ()))),
        (Sharding((("x",), ()), ("y",)), Sharding((("z",), ()), ("y",))),
    ],
)
def test_a_permutation_gives_each_device_the_tile_that_it_should_have(
    before: Sharding, after: Sharding
) -> None:
    source = np.arange(12)
    pairs = permutation_pairs(MESH, before, after)
    assert len(set(pairs[:, 0])) == len(set(pairs[:, 1])) == len(pairs) > 0
    source[pairs[:, 1]] = pairs[:, 0]
    had, has = before.tile_numbers(MESH), after.tile_numbers(MESH)
    for device in range(12):
        assert had[source[device]].tolist() == has[device].tolist()
        assert coordinate(source[device], before.unreduced) == coordinate(device, before.unreduced)
    for device in set(range(12)) - set(pairs[:, 1].tolist()):
        assert had[device].tolist() == has[device].tolist()


def test_slices_begin_where_the_tile_does_within_the_larger_one() -> None:
    shape, before, after = (8, 12), Sharding((("x",), ())), Sharding((("x", "z"), ("y",)))
    starts = slice_starts(MESH, shape, before, after)
    outer, inner = before.tiles(MESH, shape), after.tiles(MESH, shape)
    assert starts.tolist() == (inner[:, :, 0] - outer[:, :, 0]).tolist()


def test_the_first_device_along_axes_stands_at_their_beginning() -> None:
    flags = is_first_along(MESH, ("x", "z"))
    assert [k for k in range(12) if flags[k]] == [0, 2, 4]
    assert is_first_along(MESH, ()).all()

"""Which shardings fit a tensor on a mesh, and how they print."""

from __future__ import annotations

import pytest

from shardopt.mesh.mesh import Mesh, Sharding

MESH = Mesh("m", (("x", 2), ("y", 2), ("z", 2)), tuple(range(8)))
SHAPE = (4, 6)


def test_a_partial_value_has_the_tiles_of_the_reduced_one() -> None:
    sharding = Sharding((("x",), ()), ("y", "z"))
    sharding.check(MESH, SHAPE)
    assert str(sharding) == '[{"x"}, {}], unreduced={"y", "z"}'
    assert sharding.local_shape(MESH, SHAPE) == (2, 6)
    assert (sharding.tiles(MESH, SHAPE) == sharding.reduced().tiles(MESH, SHAPE)).all()
    assert not Sharding(((), ()), ("x",)).is_replicated


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (
            Sharding((("x",), ()), ("w",)),
            r"names axis 'w', which is not an axis of mesh m\[x=2, y=2, z=2\]",
        ),
        (Sharding((("x",), ()), ("x",)), "uses an axis twice"),
        (Sharding(((), ()), ("y", "y")), "uses an axis twice"),
        (Sharding(((), ()), ("y", "x")), "names unreduced axes in another order than mesh"),
        (Sharding((("x", "y"), ("z", "w"))), "names axis 'w'"),
        (Sharding(((),), ("x",)), "has rank 1, the tensor has rank 2"),
    ],
)
def test_shardings_that_do_not_fit(sharding: Sharding, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sharding.check(MESH, SHAPE)


def test_uneven_tiles_are_those_of_xla() -> None:
    """Equal extents, rounded up; the last tiles stop at the end of the tensor and may be empty."""
    sharding = Sharding((("x", "y"), ("z",)))
    assert sharding.local_shape(MESH, (5, 3)) == (2, 2)
    rows = sharding.tiles(MESH, (5, 3))[:, 0].tolist()
    columns = sharding.tiles(MESH, (5, 3))[:, 1].tolist()
    assert rows == [[0, 2]] * 2 + [[2, 4]] * 2 + [[4, 5]] * 2 + [[5, 5]] * 2
    assert columns == [[0, 2], [2, 3]] * 4

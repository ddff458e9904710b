"""Parts of arguments, against numpy's indexing."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.mesh.parts import Part, Slice, misfits, misreplaced


def index(slice_: Slice) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in slice_)


@pytest.mark.parametrize("seed", range(40))
def test_slices_of_parts_are_slices_of_the_whole(seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(int(n) for n in generator.integers(1, 6, generator.integers(1, 5)))
    dim = int(generator.integers(len(shape)))
    rows = int(generator.integers(1, shape[dim] + 1))
    part = Part(3, dim, int(generator.integers(shape[dim] - rows + 1)), rows, shape[dim])
    whole = np.arange(np.prod(shape)).reshape(shape)
    mine = whole[part.place]
    assert np.shares_memory(mine, whole)
    assert part.whole_shape(mine.shape) == shape
    lows = [int(generator.integers(n)) for n in mine.shape]
    inner = tuple(
        (low, int(generator.integers(low + 1, n + 1)))
        for low, n in zip(lows, mine.shape, strict=True)
    )
    outer = part.outer(inner)
    assert (whole[index(outer)].ravel() == mine[index(inner)].ravel()).all()
    assert part.inner(outer) == inner
    starts = [int(generator.integers(n)) for n in shape]
    window = tuple(
        (low, int(generator.integers(low + 1, n + 1))) for low, n in zip(starts, shape, strict=True)
    )
    common = part.inner(window)
    there = set(whole[index(window)].ravel()) & set(mine.ravel())
    assert there == (set() if common is None else set(mine[index(common)].ravel()))


def test_names_index_as_python_does() -> None:
    assert str(Part(0, 0, 3, 1, 8)) == "[3]"
    assert str(Part(0, 1, 4, 4, 8)) == "[:, 4:8]"


THREE = {0: Part(0, 0, 0, 1, 3), 2: Part(0, 0, 1, 1, 3), 3: Part(0, 0, 2, 1, 3)}
SHAPES = [(4,), (5,), (4,), (4,)]


def test_parts_that_make_up_a_whole_have_no_faults() -> None:
    assert not list(misfits("argument", THREE, SHAPES))
    rows = {0: Part(0, 1, 0, 2, 4), 1: Part(0, 1, 2, 2, 4)}
    assert not list(misfits("argument", rows, [(3, 2), (3, 2)]))
    assert not list(misreplaced(THREE, THREE, {number: number for number in range(4)}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({3: Part(0, 0, 1, 1, 3)}, "argument 3: expected the part from 2 on, found [1]"),
        ({3: Part(0, 0, 2, 1, 4)}, "argument 3: expected parts of one dimension of argument 0"),
        ({2: Part(0, 0, 0, 1, 3)}, "argument 2: expected parts of one dimension of argument 0"),
        ({3: Part(0, 0, 2, 2, 3)}, "argument 3: expected the part from 2 on, found [2:4]"),
        ({0: Part(0, 2, 0, 1, 3)}, "argument 0: expected the part from 0 on, found [:, :, 0]"),
        ({number: Part(0, 0, k, 1, 5) for k, number in enumerate(THREE)}, "parts of 5 rows in all, found 3"),
        ({1: Part(1, 0, 0, 5, 6)}, "argument 1: expected parts of 6 rows in all, found 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_parts_is_said(changed: dict[int, Part], said: str) -> None:
    [fault] = misfits("argument", {**THREE, **changed}, SHAPES)
    assert said in fault


def test_parts_are_replaced_by_the_same_parts() -> None:
    assert "found [1] of 0 and [2] of 0" in next(
        misreplaced(THREE, THREE, {0: 0, 2: 3, 3: 2, 1: 1})
    )
    [fault] = misreplaced(THREE, {}, {0: 0})
    assert "found [0] of 0 and none" in fault

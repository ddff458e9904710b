"""Parts of arguments, against numpy's indexing."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.graph.parts import Part, Slice


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

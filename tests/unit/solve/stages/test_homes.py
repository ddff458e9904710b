"""Where operations go of which only parts say so."""

from __future__ import annotations

import pytest

from shardopt.solve.stages.homes import Homes, Step, find_homes


@pytest.mark.parametrize(
    ("steps", "bytes_of_values", "homes"),
    [
        # nobody wants anything anywhere
        ([Step((0,), (1,))], (4, 4), Homes((0,), (0, 0))),
        # what is read first: through a step without a mesh, and past a later reader
        (
            [Step((0,), (1,)), Step((1,), (2,), mesh=2), Step((1,), (3,), mesh=1)],
            (4, 4, 4, 4),
            Homes((2, 2, 1), (2, 2, 2, 1)),
        ),
        # more bytes decide, whatever comes first; of equal ones the first mesh
        (
            [Step((0,), (2,), mesh=1), Step((1,), (3,), mesh=0), Step((2, 3), (4,))],
            (4, 4, 9, 4, 4),
            Homes((1, 0, 1), (1, 0, 1, 0, 1)),
        ),
        (
            [Step((0,), (2,), mesh=1), Step((1,), (3,), mesh=0), Step((2, 3), (4,))],
            (4, 4, 4, 4, 4),
            Homes((1, 0, 0), (1, 0, 1, 0, 0)),
        ),
        # a value that is read twice is transferred once
        (
            [Step((), (0,), mesh=1), Step((), (1,), mesh=0), Step((0, 0, 1), (2,))],
            (4, 6, 4),
            Homes((1, 0, 0), (1, 0, 0)),
        ),
        # constants are everywhere, and pull nothing
        (
            [Step((), (1,), free=True), Step((1, 0), (2,)), Step((2,), (), mesh=1)],
            (4, 400, 4),
            Homes((None, 1, 1), (1, None, 1)),
        ),
    ],
)
def test_homes(steps: list[Step], bytes_of_values: tuple[int, ...], homes: Homes) -> None:
    assert find_homes(steps, bytes_of_values) == homes

"""FLOPs and bytes of every operation are those of XLA's cost analysis, or docs/reference/costs.md
has a reason."""

from __future__ import annotations

from functools import cache

import pytest

from shardopt.graph.op_flops import Work, op_work
from shardopt.graph.windows import Window, meetings
from tests.unit.operations.costs_page import DEPARTURES, PAGE, Count, counts, page
from tests.unit.operations.page_version import OF_ONE_VERSION


@cache
def counts_by_name() -> dict[str, Count]:
    return {count.example.name: count for count in counts()}


def test_counts_are_those_of_xla_or_there_is_a_reason() -> None:
    for name, count in counts_by_name().items():
        in_work, in_bytes = DEPARTURES.get(name, ("", ""))
        assert count.same_work == (not in_work), count
        assert count.same_bytes == (not in_bytes), count


def test_every_departure_is_of_an_example() -> None:
    assert sorted(DEPARTURES.keys() - counts_by_name().keys()) == []


@OF_ONE_VERSION
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.unit.operations.costs_page"
    )


def test_a_loop_counts_its_trips() -> None:
    loop = counts_by_name()["while"]
    assert loop.ours.flops - 128 == 7 * (loop.xla.flops - 128)


@pytest.mark.parametrize("source", [1, 5])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("low", [-1, 0, 2])
@pytest.mark.parametrize("spacing", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_meetings_are_those_that_counting_finds(
    source: int, size: int, stride: int, low: int, spacing: int, dilation: int
) -> None:
    window = Window(
        factor=0,
        dim=0,
        source=source,
        target=7,
        size=size,
        stride=stride,
        low=low,
        spacing=spacing,
        dilation=dilation,
    )
    elements = {element * spacing for element in range(source)}
    places = [o * stride - low + k * dilation for o in range(7) for k in range(size)]
    assert meetings(window) == sum(place in elements for place in places)


def test_what_is_not_known_is_elementwise() -> None:
    assert op_work("stablehlo.never_heard_of", [(4,)], [(4,)], {}) == Work(4.0)
    assert op_work("stablehlo.return", [(4,)], [], {}) == Work()


def test_missing_attribute_is_an_error() -> None:
    with pytest.raises(KeyError):
        op_work("stablehlo.dot_general", [(2, 3), (3, 4)], [(2, 4)], {})

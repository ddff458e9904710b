"""What of a body is backward and what is recomputed, on rows alone: by hand, and what must hold for
any body."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.graph.layered_body import OUTSIDE, LayeredBody
from shardopt.graph.op_graph import SHARED
from shardopt.graph.recomputed_units import RecomputedUnits
from shardopt.solve.stages.body.backward import backward_rows
from shardopt.solve.stages.body.recomputation import Recomputation, find_recomputations
from tests.draws import draws

NUM_LAYERS = 3


def body(*rows: tuple[int, tuple[int, ...]], returned: tuple[int, ...] = ()) -> LayeredBody:
    """Rows (layer, values it reads); row k makes value k, and negative values come from outside."""
    return LayeredBody(
        tuple(layer for layer, _ in rows),
        tuple(reads for _, reads in rows),
        tuple((k,) for k in range(len(rows))),
        frozenset(returned),
    )


# x -> 0: product -> 1: tanh -> 2: the other layer -> 3: its gradient; then back through 1 and 0.
CHAIN = body((0, (-1, -2)), (0, (0,)), (1, (1, -3)), (0, (2, 1)), (0, (3, -1)), returned=(4,))


def test_what_depends_on_a_later_stage_is_backward() -> None:
    assert CHAIN.reached == (-1, 0, 0, 1, 1)
    assert backward_rows(CHAIN, 0, 1) == {3, 4}
    assert backward_rows(CHAIN, 1, 2) == set()
    assert backward_rows(CHAIN, 0, 2) == set()
    assert backward_rows(CHAIN, 0, 1, turn=2) == set()


def test_what_only_the_backward_reads_is_postponed_if_its_operands_are_kept() -> None:
    """Value 2 follows from value 1, which the backward keeps; value 0 does not."""
    slope = body((0, (-1,)), (0, (0,)), (0, (1,)), (1, (1,)), (0, (3, 2)), (0, (4, 1)))
    assert backward_rows(slope, 0, 1) == {2, 4, 5}
    alone = body((0, (-1,)), (0, (0,)), (0, (1,)), (1, (1,)), (0, (3, 2)))
    assert backward_rows(alone, 0, 1) == {4}
    returned = body(
        (0, (-1,)), (0, (0,)), (0, (1,)), (1, (1,)), (0, (3, 2)), (0, (4, 1)), returned=(2,)
    )
    assert backward_rows(returned, 0, 1) == {4, 5}


def test_a_unit_is_recomputed_from_what_enters_it() -> None:
    [recomputation] = find_recomputations(CHAIN, RecomputedUnits({0: 0}))
    assert recomputation == Recomputation(
        chain=(0, 1), readers=(3,), made=(0, 1), entering=(-1, -2), gradient=2, latest=2
    )
    assert find_recomputations(CHAIN, RecomputedUnits({1: 1})) == ()
    assert find_recomputations(CHAIN, RecomputedUnits({0: 0, 1: 0})) == ()


def test_random_rows_are_kept() -> None:
    mask = LayeredBody(
        (0, 0, 1, 0), ((-1,), (0,), (1,), (2, 1)), ((0,), (1,), (2,), (3,)), random=frozenset({0})
    )
    [recomputation] = find_recomputations(mask, RecomputedUnits({0: 0}))
    assert (recomputation.chain, recomputation.entering) == ((1,), (0,))


@st.composite
def bodies(draw: st.DrawFn) -> LayeredBody:
    """Any rows in up to three layers, some of them shared: these read only each other and what
    comes from outside, as clustering makes them."""
    rows: list[tuple[int, tuple[int, ...]]] = []
    for k in range(draw(st.integers(2, 12))):
        layer = draw(st.sampled_from([SHARED, 0, 0, 1, 1, 2]))
        known = [j for j in range(k) if layer != SHARED or rows[j][0] == SHARED]
        values = st.sampled_from([*known, -1, -2])
        rows.append((layer, tuple(draw(st.lists(values, min_size=1, max_size=3, unique=True)))))
    returned = draw(st.lists(st.integers(0, len(rows) - 1), max_size=2))
    plain = body(*rows, returned=tuple(returned))
    sizes = {k: draw(st.integers(1, 9)) for k in range(len(rows))}
    work = tuple(draw(st.sampled_from([0.0, 1.0, 1e4])) for _ in rows)
    return replace(plain, sizes=sizes, work=work)


def kept(rows: LayeredBody, backward: set[int]) -> set[int]:
    """What of the body has to be kept for these rows, apart from what every reader copies."""
    read = {value for row in backward for value in rows.reads[row]}
    return {
        value
        for value in read
        if rows.maker(value) not in (OUTSIDE, *backward) and not rows.is_shared(value)
    }


@settings(max_examples=draws(300), deadline=None)
@given(bodies(), st.integers(0, 2), st.integers(1, 3))
def test_to_postpone_keeps_less(rows: LayeredBody, start: int, length: int) -> None:
    end = min(start + length, NUM_LAYERS)
    inside = rows.rows_of(range(start, end))
    depending = {row for row in inside if rows.reached[row] >= end}
    backward = backward_rows(rows, start, end)
    assert depending <= backward <= set(inside)
    assert kept(rows, backward) <= kept(rows, depending)
    # nothing forward reads what is made backward
    made = {value for row in backward for value in rows.makes[row]}
    assert not any(made.intersection(rows.reads[row]) for row in set(inside) - backward)


@settings(max_examples=draws(300), deadline=None)
@given(
    bodies(),
    st.sampled_from([{0: 0}, {0: 0, 1: 1}, {0: 0, 1: 0}, {0: 0, 1: 1, 2: 2}]),
    st.sets(st.sampled_from([0, 1, 2])),
)
def test_copies_can_be_computed_where_they_stand(
    rows: LayeredBody, unit_of_layer: dict[int, int], selective: set[int]
) -> None:
    """A copy reads only copies before it, what is there already, and what the barrier lets pass;
    the barrier waits for a gradient; and no copy is for nothing."""
    selective &= set(unit_of_layer.values())
    recomputations = find_recomputations(rows, RecomputedUnits(unit_of_layer, frozenset(selective)))
    firsts = [recomputation.readers[0] for recomputation in recomputations]
    assert len(set(firsts)) == len(firsts)
    for recomputation in recomputations:
        first = recomputation.readers[0]
        assert recomputation.gradient in rows.reads[first]
        assert rows.latest[recomputation.latest] == rows.reached[first]
        copied: set[int] = set()
        for row in recomputation.chain:
            for value in rows.reads[row]:
                assert (
                    value in copied
                    or value in recomputation.entering
                    or is_there(rows, value, first)
                )
            copied.update(rows.makes[row])
        assert set(recomputation.made) <= copied
        for reader in recomputation.readers:
            assert set(recomputation.made).intersection(rows.reads[reader])
        assert list(recomputation.readers) == sorted(recomputation.readers)


def is_there(rows: LayeredBody, value: int, row: int) -> bool:
    """Whether a row at this place may read a value without keeping it."""
    return rows.maker(value) == OUTSIDE or (rows.is_shared(value) and rows.maker(value) < row)


@pytest.mark.parametrize("waits", [(), ((), (), (1,))])
def test_rows_may_wait_for_what_they_do_not_read(waits: tuple[tuple[int, ...], ...]) -> None:
    rows = LayeredBody((0, 1, 0), ((-1,), (0,), (0,)), ((0,), (1,), (2,)), waits=waits)
    assert rows.reached == (-1, 0, 1 if waits else 0)
    assert backward_rows(rows, 0, 1) == ({2} if waits else set())
    assert backward_rows(rows, 0, 1, reached=(-1, 0, 1)) == {2}

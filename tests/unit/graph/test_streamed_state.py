"""The pieces of an update: what reads state on the host stands together, nothing waits for a later
piece, and a piece reads little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.streamed_state import StateUse, reads_with_copies, update_pieces


def test_parameters_are_updated_one_by_one_behind_what_they_share() -> None:
    """Clipped by the norm of both gradients; the third moment belongs to the second parameter."""
    reads = [["g0"], ["g1"], ["s0", "s1"], ["g0", "n"], ["c0", "m0"], ["w0", "k0"]]
    reads += [["g1", "n"], ["c1", "m1"], ["c1", "v1"], ["k1", "l1"]]
    makes = [["s0"], ["s1"], ["n"], ["c0"], ["k0"], ["u0"], ["c1"], ["k1"], ["l1"], ["u1"]]
    pieces = update_pieces(reads, makes, {"m0": 16, "m1": 8, "v1": 8})
    assert pieces == (0, 0, 0, 1, 1, 1, 2, 2, 2, 2)


def test_small_neighbours_are_one_piece() -> None:
    reads, makes = [["m0"], ["m1"], ["m2"], ["m3"]], [["a"], ["b"], ["c"], ["d"]]
    assert update_pieces(reads, makes, {"m0": 5, "m1": 2, "m2": 3, "m3": 1}) == (1, 2, 2, 3)
    assert update_pieces(reads, makes, {}) == (0, 0, 0, 0)


def test_no_piece_waits_for_a_later_one_through_what_it_copies() -> None:
    """Whoever reads `wide` has a copy of what makes it, of `low`, which only the second makes."""
    operands = {"wide": ["narrow"], "narrow": ["low"]}
    reads = [["m0"], ["m1"], ["a", "wide"]]
    seen = [reads_with_copies(each, lambda value: operands.get(value, [])) for each in reads]
    assert seen == [["m0"], ["m1"], ["a", "wide", "narrow", "low"]]
    makes = [["a"], ["low"], ["b"]]
    assert update_pieces(reads, makes, {"m0": 1, "m1": 1}) == (1, 2, 1)
    assert update_pieces(seen, makes, {"m0": 1, "m1": 1}) == (1, 1, 1)


@given(st.data())
def test_no_piece_waits_for_a_later_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    values = st.integers(0, count + 3)
    # Value k is made by operation k; those from `count` on are given.
    reads = [
        sorted(
            {
                value if value < op or value >= count else count
                for value in data.draw(st.lists(values, max_size=3))
            }
        )
        for op in range(count)
    ]
    makes = [[op] for op in range(count)]
    resting = {
        value: data.draw(st.integers(1, 9))
        for value in range(count, count + 4)
        if data.draw(st.booleans())
    }
    pieces = update_pieces(reads, makes, resting)
    held: dict[int, set[int]] = {}
    for op, piece in enumerate(pieces):
        used = {value for value in reads[op] if value in resting}
        assert not used or piece > 0
        held.setdefault(piece, set()).update(used)
        for value in reads[op]:
            assert value >= count or pieces[value] in (0, piece)
    # Each input on the host is fetched once.
    listed = [value for some in held.values() for value in some]
    assert len(listed) == len(set(listed))


def test_what_may_rest_on_the_host() -> None:
    moment = StateUse(rank=2, owner=1, readers={1}, elsewhere=False, maker=1, returned=1)
    assert moment.can_rest
    for other in (
        StateUse(0, 1, {1}, False, 1, 1),
        StateUse(2, -1, {-1}, False, -1, 1),
        StateUse(2, 1, {1, 2}, False, 1, 1),
        StateUse(2, 1, {1}, True, 1, 1),
        StateUse(2, 1, {1}, False, None, 1),
        StateUse(2, 1, {1}, False, 2, 1),
        StateUse(2, 1, {1}, False, 1, 2),
        StateUse(2, 1, set(), False, 1, 1),
    ):
        assert not other.can_rest

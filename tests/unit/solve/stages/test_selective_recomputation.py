"""What a selective unit keeps is the cheapest choice of all, in small forwards and backwards."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.graph.layered_body import LayeredBody
from shardopt.solve.stages.body.selection import select_kept
from tests.draws import draws

WRITING = 150  # FLOPs in the time that a byte is written


@st.composite
def forwards(draw: st.DrawFn) -> tuple[LayeredBody, int, frozenset[int]]:
    """Rows of one layer, of which the first are forward; how many these are, and values that stay
    in any case. Row k makes value k; negative values come from outside."""
    count = draw(st.integers(1, 7))
    rows = [
        tuple(draw(st.lists(st.integers(-2, k - 1), min_size=1, max_size=3, unique=True)))
        for k in range(count)
    ]
    values = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    readers = [tuple(draw(values)) for _ in range(draw(st.integers(1, 4)))]
    sizes = {k: draw(st.integers(1, 50)) for k in range(count)}
    work = [draw(st.sampled_from([0.0, 10.0, 300.0, 9e4])) for _ in range(count)]
    body = LayeredBody(
        (0,) * (count + len(readers)),
        (*rows, *readers),
        (*((k,) for k in range(count)), *(() for _ in readers)),
        random=frozenset(draw(st.lists(st.integers(0, count - 1), max_size=1))),
        work=(*work, *(0.0 for _ in readers)),
        sizes=sizes,
    )
    return body, count, frozenset(draw(st.lists(st.integers(0, count - 1), max_size=1)))


def rerun(
    body: LayeredBody, count: int, wanted: set[int], there: frozenset[int]
) -> tuple[set[int], set[int]]:
    """The rows that run again for `wanted` if the values `there` are kept; and what they would
    have to read although it cannot be made again."""
    rows, missing, stack = set[int](), set[int](), list(wanted)
    while stack:
        value = stack.pop()
        if value < 0 or value in there or value in rows:
            continue
        if value in body.random:
            missing.add(value)
            continue
        rows.add(value)
        stack += body.reads[value]
    return rows, missing


@settings(max_examples=draws(400), deadline=None)
@given(forwards())
def test_no_other_choice_costs_less(drawn: tuple[LayeredBody, int, frozenset[int]]) -> None:
    body, count, already = drawn
    wanted = {v for reads in body.reads[count:] for v in reads} - already

    def work(rows: set[int]) -> float:
        return sum(
            body.work[row] + WRITING * body.sizes[row] * (row in wanted)
            for row in rows
            if body.work[row]
        )

    kept = select_kept(body, range(count), range(count, len(body.reads)), already)
    everything, entering = rerun(body, count, wanted, already)
    saved = sum(body.sizes[v] for v in wanted) - sum(body.sizes[v] for v in entering)
    assert not kept & already
    if saved <= 0:
        assert kept == wanted
        return
    price = 2 * max(work(everything), 1.0) / saved

    def cost(chosen: frozenset[int]) -> float:
        again, missing = rerun(body, count, wanted, chosen | already)
        if missing:
            return float("inf")
        return work(again) + price * sum(body.sizes[value] for value in chosen)

    subsets = chain.from_iterable(combinations(range(count), k) for k in range(count + 1))
    best = min(cost(frozenset(subset)) for subset in subsets)
    assert cost(kept) <= best * (1 + 1e-9) + 1e-6


def test_scores_are_made_again_and_products_with_weights_are_not() -> None:
    """Attention of a block, without its scale and mask: 64 heads of 96 over 2048 tokens."""
    tokens, width, heads = 2048.0, 6144.0, 64
    small, large = int(tokens * width * 2), int(heads * tokens * tokens * 2)
    product, score = 2 * tokens * width * width, 2 * tokens * tokens * width
    x, q, k, v, scores, weights, context, _out = range(8)
    body = LayeredBody(
        (0,) * 10,
        (
            (-1,),
            (x, -2),
            (x, -3),
            (x, -4),
            (q, k),
            (scores,),
            (weights, v),
            (context, -5),
            (weights, v),
            (x, q, k, context),
        ),
        (*((row,) for row in range(8)), (), ()),
        work=(0.0, *(product,) * 3, score, 12 * large / 2, score, product, 0.0, 0.0),
        sizes={value: large if value in (scores, weights) else small for value in range(8)},
    )
    kept = select_kept(body, range(8), (8, 9), ())
    assert kept == {q, k, v, context}

"""Layer clustering against the definition, by brute force on small cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shardopt.solve.stages.layers.layer_dp import (
    Value,
    auto_layers,
    equal_shares,
    evaluate,
    relaxed_delta,
    solve_layers,
)
from shardopt.support.errors import UserError
from tests.draws import draws


def chain(sizes: list[int]) -> list[Value]:
    """Operation i makes sizes[i] bytes for operation i + 1."""
    return [Value(i, size, (i + 1,)) for i, size in enumerate(sizes[:-1])]


def received(values: list[Value], start: int, end: int) -> int:
    """C of the layer [start, end), from its definition."""
    return sum(
        v.bytes for v in values if v.producer < start and any(start <= c < end for c in v.consumers)
    )


def brute_force(
    flops: list[int], values: list[Value], num_layers: int, delta: float, least: float = 0.0
) -> tuple | None:
    """Least (max C, sum C, sum of squared FLOPs) over all clusterings; None if none keeps the FLOP
    bounds."""
    n = len(flops)
    bound = (1 + delta) * sum(flops) / num_layers + 1e-6
    floor = least * sum(flops) / num_layers - 1e-6
    keys = []
    for inner in itertools.combinations(range(1, n), num_layers - 1):
        layers = list(itertools.pairwise((0, *inner, n)))
        work = [sum(flops[a:b]) for a, b in layers]
        if floor <= min(work) and max(work) <= bound:
            costs = [received(values, a, b) for a, b in layers]
            keys.append((max(costs), sum(costs), sum(w * w for w in work)))
    return min(keys, default=None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Value], int, float]:
    n = draw(st.integers(1, 9))
    flops = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    values = []
    for producer in range(n - 1):
        for _ in range(draw(st.integers(0, 2))):
            consumers = draw(st.lists(st.integers(producer + 1, n - 1), max_size=3))
            values.append(Value(producer, draw(st.integers(0, 9)), tuple(consumers)))
    return flops, values, draw(st.integers(1, n)), draw(st.sampled_from([0.0, 0.1, 0.5, 2.0]))


@settings(max_examples=draws(400), deadline=None)
@given(problems())
def test_agrees_with_brute_force(problem: tuple[list[int], list[Value], int, float]) -> None:
    flops, values, num_layers, delta = problem
    expected = brute_force(flops, values, num_layers, delta)
    if expected is None:
        feasible = [
            n for n in range(1, len(flops) + 1) if brute_force(flops, values, n, delta) is not None
        ]
        with pytest.raises(UserError, match=f"largest feasible number is {max(feasible)}$"):
            solve_layers(flops, values, num_layers, delta)
        return
    solution = solve_layers(flops, values, num_layers, delta)
    squares = sum(w * w for w in solution.layer_weights)
    assert (solution.cost, solution.total_bytes, squares) == expected
    assert solution.layer_bytes == tuple(received(values, a, b) for a, b in solution.layers)
    assert solution.status == "optimal"
    assert len(solution.layers) == num_layers
    assert all(a < b for a, b in solution.layers)


@settings(max_examples=draws(400), deadline=None)
@given(problems(), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_a_least_share_agrees_with_brute_force(
    problem: tuple[list[int], list[Value], int, float], least: float
) -> None:
    """No layer is lighter where that is possible, and otherwise there is no such bound."""
    flops, values, num_layers, delta = problem
    free = brute_force(flops, values, num_layers, delta)
    if free is None:
        reject()
    solution = solve_layers(flops, values, num_layers, delta, least)
    squares = sum(w * w for w in solution.layer_weights)
    assert (solution.cost, solution.total_bytes, squares) == (
        brute_force(flops, values, num_layers, delta, least) or free
    )


@settings(max_examples=draws(200), deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5]))
def test_auto_agrees_with_brute_force(
    problem: tuple[list[int], list[Value], int, float], least: float
) -> None:
    """The most layers whose bottleneck is not above that of two."""
    flops, values, _, delta = problem
    counts = range(2, len(flops) + 1)
    optima = [
        brute_force(flops, values, n, relaxed_delta(np.array(flops), n, delta), least)
        for n in counts
    ]
    feasible = [(count, key[0]) for count, key in enumerate(optima, start=2) if key is not None]
    expected = max((count for count, cost in feasible if cost <= feasible[0][1]), default=1)
    assert auto_layers(flops, values, delta=delta, least=least) == expected


def test_equal_chain_is_cut_evenly() -> None:
    solution = solve_layers([1] * 12, chain([8] * 12), 4)
    assert (solution.boundaries, solution.cost) == ((0, 3, 6, 9, 12), 8)
    assert solution.layer_of_op == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)


@pytest.mark.parametrize(
    ("delta", "boundaries", "cost"), [(0.5, (0, 3, 7, 12), 1), (0.1, (0, 4, 8, 12), 9)]
)
def test_cheap_cuts_are_taken_within_the_flop_bound(
    delta: float, boundaries: tuple[int, ...], cost: int
) -> None:
    solution = solve_layers([1] * 12, chain([9, 9, 1, 9, 9, 9, 1, 9, 9, 9, 9, 9]), 3, delta)
    assert (solution.boundaries, solution.cost) == (boundaries, cost)


def test_a_value_counts_once_per_receiving_layer() -> None:
    values = [Value(0, 10, (2, 3, 4, 5))]
    assert evaluate([1] * 6, values, (0, 2, 4, 6)).layer_bytes == (0, 10, 10)


def test_smaller_sum_breaks_ties_of_the_bottleneck() -> None:
    values = [
        Value(0, 5, (1,)),
        Value(1, 3, (2,)),
        Value(2, 5, (3,)),
        Value(3, 5, (4,)),
        Value(0, 4, (4,)),
    ]
    solution = solve_layers([1] * 5, values, 3, delta=2.0)
    assert (solution.cost, solution.total_bytes) == brute_force([1] * 5, values, 3, 2.0)[:2]  # type: ignore[index]


@pytest.mark.parametrize(
    ("num_layers", "message"),
    [
        (0, "the number of layers must be at least 1, got 0"),
        (
            5,
            "cannot cut 4 operations into 5 layers: a layer needs an operation; the largest "
            "feasible number is 2",
        ),
        (
            3,
            "cannot cut 4 operations into 3 layers: a layer may hold 50.0% of the work (delta "
            "0.5), and operation 1, the heaviest, has 62.5%; the largest feasible number is 2",
        ),
    ],
)
def test_infeasible_numbers_say_what_is_feasible(num_layers: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        solve_layers([1, 5, 1, 1], chain([1] * 4), num_layers)
    assert str(error.value) == message


def test_negative_delta_is_refused() -> None:
    with pytest.raises(UserError, match="delta must be at least 0, got -1"):
        solve_layers([1], [], 1, delta=-1)


def test_malformed_input_is_our_bug() -> None:
    with pytest.raises(ValueError, match="consumers must come after the producer"):
        solve_layers([1, 1], [Value(1, 8, (0,))], 1)
    with pytest.raises(ValueError, match="weights must be"):
        solve_layers([1, -1], [], 1)


def test_auto_finds_the_blocks() -> None:
    # Twelve blocks of four operations: 8 bytes between blocks, 20 inside.
    assert auto_layers([1] * 48, chain([20, 20, 20, 8] * 12)) == 12
    assert auto_layers([1] * 48, chain([20, 20, 20, 8] * 12), max_layers=8) == 8
    assert auto_layers([1], []) == 1


def test_equal_shares() -> None:
    assert equal_shares([1] * 6, 3) == (0, 2, 4, 6)
    assert equal_shares([4, 1, 1, 1, 1, 4], 3) == (0, 1, 5, 6)
    assert equal_shares([9, 0, 0], 3) == (0, 1, 2, 3)
    with pytest.raises(UserError, match="a layer needs an operation"):
        equal_shares([1], 2)


@settings(max_examples=draws(300), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_equal_shares_are_as_near_as_cuts_can_be(weights: list[int], data: st.DataObject) -> None:
    """Each cut is the nearest to its share of those that the cuts before it and the layers behind
    it leave."""
    count = data.draw(st.integers(1, len(weights)))
    boundaries = equal_shares(weights, count)
    running = [sum(weights[:k]) for k in range(len(weights) + 1)]
    assert boundaries[0] == 0 and boundaries[-1] == len(weights) and len(boundaries) == count + 1
    for r in range(1, count):
        possible = range(boundaries[r - 1] + 1, len(weights) - (count - r) + 1)
        share = running[-1] * r / count
        assert boundaries[r] in possible
        assert abs(running[boundaries[r]] - share) == min(abs(running[k] - share) for k in possible)


def test_three_thousand_operations() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    # Most operations are cheap, as in real modules.
    flops = rng.integers(0, 100, n) * (rng.random(n) < 0.2)
    values = [
        Value(i, int(rng.integers(1, 1000)), (i + 1, min(n - 1, i + 20))) for i in range(n - 1)
    ]
    solution = solve_layers(flops, values, 16)
    for weights in (flops, [1] * n):
        assert solution.cost <= evaluate(flops, values, equal_shares(weights, 16)).cost

from __future__ import annotations

from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardopt.solve.stages.layers.backward_cuts import (
    BackwardProblem,
    BackwardValue,
    place_backward,
)
from tests.draws import draws


def crossing_bytes(problem: BackwardProblem, layer: tuple[int, ...]) -> int:
    """Bytes over all boundaries, counted from the definition."""
    total = 0
    for boundary in range(1, problem.num_layers):
        for value in problem.values:
            above = [layer[op] >= boundary for op in value.readers]
            home = value.home if value.producer is None else layer[value.producer]
            down = home >= boundary and not all(above)
            up = (
                value.producer is None
                and home < boundary
                and value.spread < boundary
                and any(above)
            )
            total += value.bytes * (down or up)
    return total


def falls(problem: BackwardProblem, layer: tuple[int, ...]) -> bool:
    """Whether no result is read in a later layer than it is made."""
    return all(
        layer[value.producer] >= layer[op]
        for value in problem.values
        if value.producer is not None
        for op in value.readers
    )


@st.composite
def problems(draw: st.DrawFn) -> BackwardProblem:
    num_ops, num_layers = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    bounds = [
        sorted(draw(st.tuples(*[st.integers(0, num_layers - 1)] * 2))) for _ in range(num_ops)
    ]
    values = []
    for op in range(num_ops):
        readers = tuple(reader for reader in range(op + 1, num_ops) if draw(st.booleans()))
        if readers:
            values.append(BackwardValue(draw(st.integers(0, 9)), readers, op))
    for _ in range(draw(st.integers(0, 3))):
        readers = tuple(sorted(draw(st.sets(st.integers(0, num_ops - 1), min_size=1))))
        home, spread = sorted(draw(st.tuples(*[st.integers(0, num_layers - 1)] * 2)))
        values.append(BackwardValue(draw(st.integers(0, 9)), readers, home=home, spread=spread))
    least, most = zip(*bounds, strict=True)
    return BackwardProblem(num_layers, tuple(least), tuple(most), tuple(values))


@settings(max_examples=draws(300), deadline=None)
@given(problems())
def test_cuts_are_as_cheap_as_any_placement(problem: BackwardProblem) -> None:
    within = product(
        *(range(low, high + 1) for low, high in zip(problem.least, problem.most, strict=True))
    )
    allowed = [layer for layer in within if falls(problem, layer)]
    assume(allowed)
    placed = place_backward(problem)
    assert placed in allowed
    assert crossing_bytes(problem, placed) == min(
        crossing_bytes(problem, layer) for layer in allowed
    )


@settings(max_examples=draws(200), deadline=None)
@given(problems())
def test_contradictory_bounds_give_way_upwards(problem: BackwardProblem) -> None:
    placed = place_backward(problem)
    assert falls(problem, placed)
    assert all(
        low <= layer < problem.num_layers for low, layer in zip(problem.least, placed, strict=True)
    )


def test_normalisation_crosses_as_one_tensor() -> None:
    """Two terms and a residual are summed before they leave the layer whose normalisation they come
    from."""
    values = (
        BackwardValue(8, (2,), 0),  # the gradient inside the layer
        BackwardValue(8, (3,), 1),  # the gradient past it
        BackwardValue(8, (3,), 2),
        BackwardValue(8, (4,), 3),
    )
    problem = BackwardProblem(2, (1, 1, 0, 0, 0), (1, 1, 1, 1, 0), values)
    assert place_backward(problem) == (1, 1, 1, 1, 0)


def test_a_small_summary_crosses_before_it_is_spread() -> None:
    problem = BackwardProblem(
        2, (1, 0, 0), (1, 1, 0), (BackwardValue(1, (1,), 0), BackwardValue(64, (2,), 1))
    )
    assert place_backward(problem) == (1, 0, 0)

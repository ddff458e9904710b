"""Which values may stay unreduced, on graphs of a few operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardopt.graph.op_graph import Op, OpGraph, Tensor
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear, find_linear
from tests.unit.solve.sharding.op_graphs import elementwise, f32, matmul, rule

SQUARE = (8, 8)


def graph(ops: list[Op], outputs: tuple[int, ...], dtypes: dict[int, str] | None = None) -> OpGraph:
    """Squares of floats, unless said otherwise."""
    count = 1 + max(tensor for op in ops for tensor in (*op.operands, *op.results))
    made = {result for op in ops for result in op.results}
    tensors = [Tensor(SQUARE, (dtypes or {}).get(k, "f32"), 4) for k in range(count)]
    return OpGraph(
        tuple(tensors), tuple(ops), tuple(k for k in range(count) if k not in made), outputs
    )


def product(first: int, second: int, result: int, repeat: int = 1) -> Op:
    return matmul(8, 8, 8, (first, second), result, repeat)


def on_squares(name: str, operands: tuple[int, ...], result: int) -> Op:
    return elementwise(name, SQUARE, operands, result)


def zeros(result: int) -> Op:
    return Op("constant", (), (result,), rule("->ij", {"i": 8, "j": 8}), zero=True)


def all_closed(linears: tuple[Linear, ...]) -> bool:
    """Whether no operation leaves terms to its readers, or reads any."""
    return not any(linear.unreduced or linear.modes for linear in linears)


def test_two_products_may_be_added_before_they_are_summed_up() -> None:
    """0 and 1 are inputs, 2 and 3 products, 4 their sum, 5 what leaves the graph."""
    linear = find_linear(
        graph(
            [
                product(0, 1, 2),
                product(1, 0, 3),
                on_squares("add", (2, 3), 4),
                on_squares("tanh", (4,), 5),
            ],
            (5,),
        )
    )
    made = Linear((), unreduced=True, contracts=True)
    # The sum has a reader that is not linear: it is taken there.
    assert linear == (made, made, Linear(((0, 1),), sums=True), REDUCED)


def test_what_only_one_product_feeds_gains_nothing() -> None:
    linear = find_linear(
        graph([product(0, 1, 2), on_squares("negate", (2,), 3), on_squares("tanh", (3,), 4)], (4,))
    )
    assert all_closed(linear)


@pytest.mark.parametrize("reader", ["tanh", "maximum"])
def test_a_reader_that_is_not_linear_closes_a_value(reader: str) -> None:
    other = on_squares(reader, (2,) if reader == "tanh" else (2, 0), 5)
    linear = find_linear(
        graph([product(0, 1, 2), product(1, 0, 3), on_squares("add", (2, 3), 4), other], (4, 5))
    )
    assert all_closed(linear)


def test_outputs_and_what_the_caller_closes_are_never_partial() -> None:
    ops = [
        product(0, 1, 2),
        product(1, 0, 3),
        on_squares("add", (2, 3), 4),
        on_squares("negate", (4,), 5),
    ]
    joined, last = find_linear(graph(ops, (5,)))[2:]
    # Summed up here, or behind the negation.
    assert joined == Linear(((0, 1),), unreduced=True, sums=True)
    assert last == Linear(((0,),), sums=True)
    assert all_closed(find_linear(graph(ops, (2, 5))))
    assert all_closed(find_linear(graph(ops, (5,)), reduced=[3]))


def test_a_value_is_not_linear_in_its_own_square() -> None:
    ops = [
        product(0, 1, 2),
        product(1, 0, 3),
        on_squares("add", (2, 3), 4),
        on_squares("multiply", (4, 4), 5),
    ]
    assert find_linear(graph(ops, (5,)))[2] == Linear(((0, 1),), sums=True)
    assert find_linear(graph(ops, (5,)))[3] == REDUCED


def test_a_sum_with_something_whole_is_not_linear() -> None:
    ops = [
        product(0, 1, 2),
        product(1, 0, 3),
        on_squares("add", (2, 0), 4),
        on_squares("add", (4, 3), 5),
    ]
    assert all_closed(find_linear(graph(ops, (5,))))


def test_zeros_may_stand_in_for_a_term() -> None:
    """`select` between one product and zeros, added to another."""
    pick = Op("select", (6, 2, 7), (4,), rule("ij,ij,ij->ij", {"i": 8, "j": 8}))
    ops = [product(0, 1, 2), product(1, 0, 3), zeros(7), pick, on_squares("add", (4, 3), 5)]
    linear = find_linear(graph(ops, (5,)))
    assert linear[3] == Linear(((1, 2),), unreduced=True)
    assert linear[2] == REDUCED  # everyone makes zeros for himself


def accumulation(start: Op, trips: int = 4) -> OpGraph:
    """1 starts an accumulator, 2 is a product of each iteration, 3 the accumulator after it, 4 read
    behind the loop."""
    gather = on_squares("add", (1, 2), 3)
    body = [
        product(0, 0, 2, repeat=trips),
        Op(gather.name, (1, 2), (3,), gather.rule, repeat=trips),
    ]
    return graph([start, *body, on_squares("negate", (3,), 4)], (4,))


def test_an_accumulator_that_starts_from_zeros_stays_open_over_the_loop() -> None:
    start, made, added, read = find_linear(accumulation(zeros(1)), tied=[(1, 3)])
    assert start == Linear(((),), unreduced=True)  # terms out of nothing
    assert made == Linear((), unreduced=True, contracts=True)
    assert added == Linear(((0, 1),), unreduced=True)  # nothing is summed up in the loop
    assert read == Linear(((0,),), sums=True)


def test_without_microbatches_nothing_is_won() -> None:
    assert all_closed(find_linear(accumulation(zeros(1), trips=1), tied=[(1, 3)]))


def test_an_accumulator_that_starts_from_something_else_is_closed() -> None:
    ones = Op("constant", (), (1,), rule("->ij", {"i": 8, "j": 8}))
    assert all_closed(find_linear(accumulation(ones), tied=[(1, 3)]))


def test_carried_zeros_are_no_zeros() -> None:
    """Behind the first iteration the accumulator holds something: adding it to a whole value is not
    linear."""
    body = [product(0, 0, 2, repeat=4), on_squares("add", (1, 2), 3), on_squares("add", (1, 0), 5)]
    linear = find_linear(
        graph([zeros(1), *body, on_squares("negate", (3,), 4)], (4, 5)), tied=[(1, 3)]
    )
    assert all_closed(linear)


@pytest.mark.parametrize("initial", [True, False])
def test_a_reduction_must_start_from_zero(initial: bool) -> None:
    """Every device would add what it starts from."""
    start = Op("constant", (), (7,), rule("->ij", {"i": 8, "j": 8}), zero=initial)
    tensors = [f32(*SQUARE)] * 7 + [f32()]
    line = rule("ij,->j", {"i": 8, "j": 8}, reduction="i")
    ops = (
        start,
        *(Op("reduce", (k, 7), (k + 2,), line, "add") for k in (0, 1)),
        on_squares("add", (2, 3), 4),
        on_squares("tanh", (4,), 5),
    )
    linears = find_linear(OpGraph(tuple(tensors), ops, (0, 1, 6), (5,)))
    assert [linear.unreduced for linear in linears] == [False, initial, initial, False, False]


@pytest.mark.parametrize(
    ("before", "after", "linear"), [("bf16", "f32", True), ("f32", "bf16", False)]
)
def test_terms_are_not_rounded(before: str, after: str, linear: bool) -> None:
    sizes = {"bf16": 2, "f32": 4}
    tensors = [Tensor(SQUARE, before, sizes[before])] * 3 + [
        Tensor(SQUARE, after, sizes[after])
    ] * 4
    ops = (
        product(0, 1, 2),
        on_squares("convert", (2,), 3),
        product(4, 4, 5),
        on_squares("add", (3, 5), 6),
    )
    linears = find_linear(OpGraph(tuple(tensors), ops, (0, 1, 4), (6,)))
    assert linears[1].unreduced is linear
    assert linears[0].unreduced is linear


def test_what_loops_read_is_closed() -> None:
    inner = on_squares("negate", (4,), 5)
    ops = [product(0, 1, 2), product(1, 0, 3), on_squares("add", (2, 3), 4)]
    inside = Op(inner.name, inner.operands, inner.results, inner.rule, block=1)
    linear = find_linear(graph([*ops, inside, on_squares("negate", (5,), 6)], (6,)))
    assert linear[2] == Linear(((0, 1),), sums=True)
    assert linear[3] == REDUCED


def test_products_make_terms_and_those_in_loops_are_left_alone() -> None:
    """Terms may be added up in steps, whoever reads the sum; a loop's partitioner is not told of
    them."""
    inside = product(1, 0, 3)
    ops = [product(0, 1, 2), replace(inside, block=1), on_squares("tanh", (3,), 4)]
    linears = find_linear(graph(ops, (2, 4)))
    assert [linear.contracts for linear in linears] == [True, False, False]
    assert all_closed(linears)

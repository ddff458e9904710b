"""Kernels over the same elements become one, unless one of them would have to wait for itself."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.cost.compute import HeldRows
from shardopt.graph.op_graph import Op, OpGraph, Tensor
from shardopt.hardware.cluster import Fusing
from shardopt.solve.sharding.kernels.execution_order import execution_order
from shardopt.solve.sharding.kernels.fusion import fuse
from shardopt.solve.sharding.kernels.kernel_bytes import kernel_accesses
from shardopt.solve.sharding.kernels.merged_kernels import find_kernels, merged_kernels
from tests.unit.solve.sharding.op_graphs import elementwise, f32, rule

ROWS, ROW = 8, 64
WHOLE, COLUMN = f32(ROWS, ROW), f32(ROWS)
SIZES = {"a": ROWS, "b": ROW}
VECTOR = Tensor((64,), "f32", 4)


def reduce(operand: int, result: int, over: str = "b") -> Op:
    kept = "a" if over == "b" else "b"
    return Op(
        "reduce", (operand,), (result,), rule(f"ab->{kept}", SIZES, reduction=over), reducer="add"
    )


def spread(operand: int, result: int) -> Op:
    return Op("broadcast_in_dim", (operand,), (result,), rule("a->ab", SIZES))


def softmax(over: str = "b") -> OpGraph:
    """0 scores; 1 maximum, 2 spread, 3 difference, 4 exponential, 5 sum, 6 spread, 7 quotient."""
    ops = (
        reduce(0, 1, over),
        spread(1, 2),
        elementwise("subtract", (ROWS, ROW), (0, 2), 3),
        elementwise("exponential", (ROWS, ROW), (3,), 4),
        reduce(4, 5, over),
        spread(5, 6),
        elementwise("divide", (ROWS, ROW), (4, 6), 7),
    )
    tensors = (WHOLE, COLUMN, WHOLE, WHOLE, WHOLE, COLUMN, WHOLE, WHOLE)
    return OpGraph(tensors, ops, (0,), (7,))


def accesses(graph: OpGraph, fusing: Fusing) -> tuple[tuple[float, ...], ...]:
    """For each operation, in how many kernels it touches each tensor."""
    fusion = find_kernels(graph, frozenset(), fusing)
    return tuple(each.counts for each in kernel_accesses(graph, fusion))


def touched(graph: OpGraph, fusing: Fusing) -> tuple[int, int]:
    """How often kernels read, and how often they write, tensors of all rows."""
    reads = writes = 0
    for op, counts in zip(graph.ops, accesses(graph, fusing), strict=True):
        for number, (tensor, count) in enumerate(
            zip((*op.operands, *op.results), counts, strict=True)
        ):
            if graph.tensors[tensor].shape == (ROWS, ROW):
                reads, writes = (
                    (reads + count, writes)
                    if number < len(op.operands)
                    else (reads, writes + count)
                )
    return reads, writes


def test_a_softmax_reads_and_writes_once() -> None:
    assert touched(softmax(), Fusing(merged=True)) == (1, 1)
    reads, writes = touched(softmax(), Fusing())
    assert reads > 1 and writes > 1


def test_without_rows_a_kernel_ends_with_what_reduces_them() -> None:
    """The maximum reads the scores, the sum makes exponentials of them, and the quotient makes
    these again: as XLA compiles it where there is no Triton."""
    fusing = Fusing(merged=True, rows=False)
    assert touched(softmax(), fusing) == (3, 1)
    kernels = find_kernels(softmax(), frozenset(), fusing).kernel
    assert len({kernels[op] for op in (0, 4, 6)}) == 3


def test_columns_are_not_held_on_the_chip() -> None:
    """A reduction over the outer dimension has seen nothing to the end before it has seen
    everything."""
    assert touched(softmax(over="a"), Fusing(merged=True)) == (3, 1)
    kernels = find_kernels(softmax(over="a"), frozenset(), Fusing(merged=True)).kernel
    assert len({kernels[op] for op in (0, 4, 6)}) == 3


def held(graph: OpGraph, **fusing: bool) -> dict[int, HeldRows]:
    return dict(find_kernels(graph, frozenset(), Fusing(merged=True, **fusing)).held)


def test_a_kernel_holds_the_rows_of_what_it_reduces() -> None:
    """The last reduction of the kernel says so. Where another kernel needs a sum, one more kernel
    reads the scores: XLA's kernels that hold rows write one result."""
    assert held(softmax()) == {4: HeldRows(1, exponentials=True)}
    assert held(replace(softmax(), outputs=(5, 7))) == {4: HeldRows(1, True, 4.0)}
    assert held(softmax(over="a")) == {}
    assert held(softmax(), rows=False) == {}


@pytest.mark.parametrize(("dtype", "tensors"), [("f32", 2), ("f16", 1)])
def test_softmax_backward_holds_rows_of_two_tensors(dtype: str, tensors: int) -> None:
    """0 softmax, 1 gradient; 2 product, 3 its sums, 4 the same under another name, as a reduction of
    one element, 5 spread, 6 difference, 7 the gradient of scores. In f16 XLA keeps it apart."""
    shape, sizes = (ROWS, ROW), {"a": ROWS, "z": 1}
    column = Op("reduce", (3,), (4,), rule("az->a", sizes, reduction="z"), reducer="add")
    ops = (
        elementwise("multiply", shape, (0, 1), 2),
        reduce(2, 3),
        column,
        spread(4, 5),
        elementwise("subtract", shape, (1, 5), 6),
        elementwise("multiply", shape, (0, 6), 7),
    )
    whole = Tensor(shape, dtype, 4)
    tensors_ = (whole, whole, whole, f32(ROWS, 1), COLUMN, whole, whole, whole)
    graph = OpGraph(tensors_, ops, (0, 1), (7,))
    assert touched(graph, Fusing(merged=True)) == (2, 1)
    assert held(graph) == {1: HeldRows(tensors)}
    assert held(graph, recomputes=False) == {1: HeldRows(1)}


def test_rows_that_fit_on_no_chip_are_not_held() -> None:
    sizes = {"a": 2, "b": 20_000}
    sum_ = Op("reduce", (0,), (1,), rule("ab->a", sizes, reduction="b"), reducer="add")
    spread_ = Op("broadcast_in_dim", (1,), (2,), rule("a->ab", sizes))
    ops = (sum_, spread_, elementwise("divide", (2, 20_000), (0, 2), 3))
    tensors = (f32(2, 20_000), f32(2), f32(2, 20_000), f32(2, 20_000))
    assert held(OpGraph(tensors, ops, (0,), (3,))) == {}


def test_what_takes_longest_is_not_computed_again() -> None:
    """As the tangent of GELU, which XLA keeps for the backward pass while it makes the rest again."""
    shape = (ROWS, ROW)
    for name, again in (("tanh", False), ("logistic", True)):
        ops = (
            elementwise(name, shape, (0,), 1),
            reduce(1, 2, "a"),
            elementwise("negate", shape, (1,), 3),
        )
        graph = OpGraph((WHOLE, WHOLE, f32(ROW), WHOLE), ops, (0,), (2, 3))
        assert (1 in find_kernels(graph, frozenset(), Fusing(merged=True)).fused) == again


def test_compilers_of_gpus_compute_expensive_values_again() -> None:
    """XLA's GPU backend weighs bytes; others write what takes long, and read it."""
    columns = softmax(over="a")
    assert 4 in find_kernels(columns, frozenset(), Fusing(merged=True)).fused
    assert 4 not in find_kernels(columns, frozenset(), Fusing()).fused
    kept = Fusing(merged=True, recomputes=False)  # by the loop over the layers, say
    assert 4 not in find_kernels(columns, frozenset(), kept).fused


def test_an_update_writes_moments_and_weights_in_one_kernel() -> None:
    """0 weight, 1 gradient, 2 moment; 3 the next moment, 4 the next weight: both are results."""
    shape = (ROWS, ROW)
    ops = (elementwise("add", shape, (1, 2), 3), elementwise("subtract", shape, (0, 3), 4))
    graph = OpGraph((WHOLE,) * 5, ops, (0, 1, 2), (3, 4))
    assert accesses(graph, Fusing(merged=True)) == ((1, 1, 1), (1, 0, 1))
    assert accesses(graph, Fusing()) == ((1, 1, 1), (1, 1, 1))


def test_what_something_else_has_to_run_between_stays_apart() -> None:
    """0 -> exponential 1 -> sort 2 -> add(1, 2): one kernel would have to wait for the sort, and
    the sort for it."""
    ops = tuple(
        Op(name, operands, (k + 1,), None)
        for k, (name, operands) in enumerate(
            (("exponential", (0,)), ("sort", (1,)), ("add", (1, 2)))
        )
    )
    graph = OpGraph((VECTOR,) * 4, ops, (0,), (3,))
    assert merged_kernels(graph, fuse(graph, frozenset()), (None,) * 4) == (0, 1, 2)


def test_a_kernel_writes_what_others_wait_for_behind_a_barrier() -> None:
    """0 value, 1 gradient; 2 what of the value is dropped, 3 what is left of it; behind a barrier 4
    what is left of the gradient. So one kernel makes and applies the mask of dropout, and another
    reads it; neither makes it again."""
    made, applied, backward = (
        elementwise("sign", (ROWS, ROW), (0,), 2),
        elementwise("multiply", (ROWS, ROW), (0, 2), 3),
        replace(elementwise("multiply", (ROWS, ROW), (1, 2), 4), waits=(2,)),
    )
    graph = OpGraph((WHOLE,) * 5, (made, applied, backward), (0, 1), (3, 4))
    fusion = find_kernels(graph, frozenset(), Fusing(merged=True))
    assert fusion.kernel == (1, 1, 2) and not fusion.fused
    assert accesses(graph, Fusing(merged=True)) == ((1, 1), (0, 0, 1), (1, 1, 1))


NAMES = ("exponential", "add", "sort", "abs", "multiply", "cosine")


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    """Operation k makes tensor k + 1; the last leaves the graph. Some read behind a barrier."""
    row = st.tuples(
        st.sampled_from(NAMES), st.integers(0, 20), st.integers(0, 20), st.integers(0, 4)
    )
    ops = []
    for k, (name, first, second, barrier) in enumerate(
        draw(st.lists(row, min_size=1, max_size=14))
    ):
        two = name in ("add", "multiply")
        operands = (first % (k + 1), second % (k + 1)) if two else (first % (k + 1),)
        waits = operands[:1] if barrier == 0 else ()
        ops.append(Op(name, operands, (k + 1,), None, waits=waits))
    return OpGraph((VECTOR,) * (len(ops) + 1), tuple(ops), (0,), (len(ops),))


@given(graphs())
def test_no_kernel_waits_for_itself(graph: OpGraph) -> None:
    fusion = fuse(graph, frozenset())
    number = merged_kernels(graph, fusion, (None,) * len(graph.tensors))
    waits: dict[int, set[int]] = {}
    for tensor, readers in enumerate(fusion.readers):
        if tensor not in fusion.fused and tensor > 0:
            for reader in readers:
                if number[reader] != number[tensor - 1]:
                    waits.setdefault(number[reader], set()).add(number[tensor - 1])
    TopologicalSorter(waits).prepare()  # raises CycleError
    for op, each in enumerate(graph.ops):
        assert all(number[tensor - 1] != number[op] for tensor in each.waits if tensor)


def test_what_a_kernel_keeps_on_the_chip_is_in_no_memory() -> None:
    """Rows of a softmax on their way: its exponential has two readers, so that fusion alone leaves
    it in memory."""
    assert 4 not in fuse(softmax(), frozenset()).fused
    fusion = find_kernels(softmax(), frozenset(), Fusing(merged=True))
    assert fusion.fused == frozenset(range(1, 7))
    assert fusion.readers[0] == (6,), "the scores are read until the quotient is made"
    assert find_kernels(softmax(over="a"), frozenset(), Fusing(merged=True)).fused < fusion.fused


def test_values_of_a_kernel_that_others_read_are_held() -> None:
    """0 -> exponential 1 -> abs 2, with 1 also read by a sort: in memory for the sort alone."""
    ops = tuple(
        Op(name, (operand,), (k + 1,), None)
        for k, (name, operand) in enumerate((("exponential", 0), ("abs", 1), ("sort", 1)))
    )
    graph = OpGraph((VECTOR,) * 4, ops, (0,), (2, 3))
    fusion = find_kernels(graph, frozenset(), Fusing(merged=True))
    assert fusion.kernel == (1, 1, 2) and 1 not in fusion.fused
    assert fusion.readers[:2] == ((1,), (2,))


@given(graphs())
def test_operations_of_a_kernel_run_one_after_the_other(graph: OpGraph) -> None:
    """Between them only what is fused into them; and everything runs behind what it reads."""
    fusion = find_kernels(graph, frozenset(), Fusing(merged=True))
    execution = execution_order(graph, frozenset(), fusion)
    assert sorted(execution.order) == list(range(len(graph.ops)))
    position = {op: at for at, op in enumerate(execution.order)}
    for op, each in enumerate(graph.ops):
        assert all(position[t - 1] < position[op] for t in each.operands if t)
    for last in set(fusion.kernel):
        members = [position[op] for op, kernel in enumerate(fusion.kernel) if kernel == last]
        between = execution.order[min(members) : max(members) + 1]
        assert all(
            fusion.kernel[op] == last or set(graph.ops[op].results) <= fusion.fused
            for op in between
        )

"""Which values lie in memory, and who pays for reading and writing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.graph.windows import Window
from shardopt.solve.sharding.kernels.execution_order import _Scheduler, execution_order
from shardopt.solve.sharding.kernels.fusion import Fusion, fuse
from shardopt.solve.sharding.kernels.kernel_bytes import (
    Accesses,
    accessed_bytes,
    kernel_accesses,
)

VECTOR = Tensor((64,), "f32", 4)


def graph_of(
    *rows: tuple[str, tuple[int, ...]], inputs: int = 1, outputs: tuple[int, ...] = ()
) -> OpGraph:
    """Operation k makes tensor `inputs + k` of tensors before it; all are vectors."""
    ops = tuple(Op(name, operands, (inputs + k,), None) for k, (name, operands) in enumerate(rows))
    last = inputs + len(rows) - 1
    return OpGraph((VECTOR,) * (last + 1), ops, tuple(range(inputs)), outputs or (last,))


def total(graph: OpGraph) -> float:
    """Bytes of all kernels."""
    rows = zip(graph.ops, kernel_accesses(graph, fuse(graph, frozenset())), strict=True)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    return sum(
        accessed_bytes(
            op.name, len(op.operands), [sizes[t] for t in (*op.operands, *op.results)], accesses
        )
        for op, accesses in rows
    )


def counts(graph: OpGraph) -> tuple[tuple[float, ...], ...]:
    """For each operation, in how many kernels it touches each tensor."""
    return tuple(each.counts for each in kernel_accesses(graph, fuse(graph, frozenset())))


def test_a_chain_reads_and_writes_once() -> None:
    graph = graph_of(("exponential", (0,)), ("negate", (1,)), ("abs", (2,)))
    assert fuse(graph, frozenset()).fused == {1, 2}
    assert counts(graph) == ((1, 0), (0, 0), (0, 1))


def test_a_kernel_reads_a_tensor_once() -> None:
    graph = graph_of(("exponential", (0,)), ("multiply", (1, 0)), ("add", (2, 0)))
    assert total(graph) == 2 * VECTOR.size_bytes


def test_what_reads_one_tensor_often_is_fused_as_if_it_read_it_once() -> None:
    """A polynomial of x runs in both kernels that need it: each reads x, and nothing is written."""
    graph = graph_of(
        ("multiply", (0, 0)),
        ("multiply", (1, 0)),
        ("add", (2, 0)),
        ("abs", (3,)),
        ("negate", (3,)),
        outputs=(4, 5),
    )
    assert fuse(graph, frozenset()).fused == {1, 2, 3}


def test_a_cheap_operation_runs_in_every_kernel_that_reads_it() -> None:
    graph = graph_of(
        ("negate", (0,)), ("sort", (1,)), ("abs", (1,)), ("cosine", (1,)), outputs=(2, 3, 4)
    )
    assert fuse(graph, frozenset()).fused == frozenset(), "a sort reads memory"
    graph = graph_of(("negate", (0,)), ("abs", (1,)), ("cosine", (1,)), outputs=(2, 3))
    assert counts(graph) == ((2, 0), (0, 1), (0, 1))


def test_slices_of_a_value_made_on_the_way_read_their_parts() -> None:
    """As those of layers do, of a stack of which a microbatch takes its rows."""
    layers = 8
    stack, row = Tensor((2, layers, 64), "f32", 4), Tensor((1, 1, 64), "f32", 4)
    of_microbatch = Tensor((1, layers, 64), "f32", 4)
    ops = (
        Op("dynamic_slice", (0,), (1,), None),
        *(Op("slice", (1,), (2 + layer,), None) for layer in range(layers)),
        *(Op("negate", (2 + layer,), (2 + layers + layer,), None) for layer in range(layers)),
    )
    made = tuple(range(2 + layers, 2 + 2 * layers))
    graph = OpGraph((stack, of_microbatch, *(row,) * 2 * layers), ops, (0,), made)
    assert fuse(graph, frozenset()).fused == set(range(1, 2 + layers))
    assert total(graph) == 2 * layers * row.size_bytes


def test_slices_of_what_is_spread_read_all_that_it_is_made_of() -> None:
    row, spread = Tensor((1, 64), "f32", 4), Tensor((8, 64), "f32", 4)
    ops = (
        Op("broadcast_in_dim", (0,), (1,), None),
        *(Op("slice", (1,), (2 + k,), None) for k in range(8)),
        *(Op("negate", (2 + k,), (10 + k,), None) for k in range(8)),
    )
    graph = OpGraph((row, spread, *(row,) * 16), ops, (0,), tuple(range(10, 18)))
    assert total(graph) == 2 * 8 * row.size_bytes


def test_an_expensive_operation_runs_once() -> None:
    graph = graph_of(("exponential", (0,)), ("abs", (1,)), ("cosine", (1,)), outputs=(2, 3))
    assert counts(graph) == ((1, 1), (1, 1), (1, 1))


def test_what_reads_a_loop_runs_behind_it_whichever_of_its_results_is_fused() -> None:
    loop = Op("while", (0,), (1, 2), None)
    ops = (loop, Op("cosine", (2,), (3,), None), Op("sine", (3,), (4,), None))
    graph = OpGraph((VECTOR,) * 5, ops, (0,), (4,))
    fusion = Fusion(frozenset({1}), ((0,), (), (1,), (2,), ()))
    assert execution_order(graph, frozenset(), fusion).order == (0, 1, 2)
    assert _Scheduler(graph, fusion).listed([0, 1, 2]) == [0, 1, 2]


def test_a_gradient_is_added_to_its_sum_before_the_next_is_made() -> None:
    """A backward pass that writes its sums down last, over what came in, and the update behind it:
    programs of their own. Each gradient dies where it is made, as in what XLA makes of it with the
    sums donated: temporaries of one gradient, however many there are."""
    layers = 4
    seed, sums = 0, range(1, 1 + layers)
    made = [1 + layers + 2 * k for k in range(layers)]  # gradients; what is passed on follows each
    ops, passed = [], seed
    for gradient in made:
        ops += [Op("dot_general", (passed,), (gradient,), None)]
        ops += [Op("dot_general", (passed,), (gradient + 1,), None)]
        passed = gradient + 1
    first = made[-1] + 2
    for k, gradient in enumerate(made):
        ops.append(Op("add", (sums[k], gradient), (first + k,), None))
    for k in range(layers):
        ops.append(Op("sort", (first + k,), (first + layers + k,), None, group=1))
    updated = tuple(range(first + layers, first + 2 * layers))
    large, small = Tensor((64,), "f32", 4), Tensor((8,), "f32", 4)
    kept = {seed, *(gradient + 1 for gradient in made)}
    tensors = tuple(small if t in kept else large for t in range(updated[-1] + 1))
    graph = OpGraph(tensors, tuple(ops), (seed, *sums), updated)
    fusion = fuse(graph, frozenset())
    order = execution_order(graph, frozenset(), fusion).order
    for k in range(layers):
        behind = [op for op in order[order.index(2 * k) :] if ops[op].name == "dot_general"]
        assert all(order.index(2 * layers + k) < order.index(op) for op in behind if op > 2 * k + 1)
    scheduler = _Scheduler(graph, fusion)
    inside = [op for op in order if ops[op].group == 0]
    assert scheduler.peak(inside) < 2 * large.size_bytes
    assert scheduler.peak(range(3 * layers)) > layers * large.size_bytes


def test_a_sum_that_many_kernels_read_is_written() -> None:
    """Two vectors for each reader, or two once, one written and one for each."""

    def fan(readers: int) -> OpGraph:
        ops = (("add", (0, 1)), *(("cosine", (2,)) for _ in range(readers)))
        return graph_of(*ops, inputs=2, outputs=tuple(range(3, 3 + readers)))

    assert 2 in fuse(fan(3), frozenset()).fused
    assert 2 not in fuse(fan(4), frozenset()).fused


def test_a_chain_of_sums_costs_the_same_for_each() -> None:
    """A residual stream: every layer reads the sum of all layers before it, but does not take the
    sum anew."""

    def stream(depth: int) -> OpGraph:
        rows: list[tuple[str, tuple[int, ...]]] = []
        running = 0
        for _ in range(depth):
            first = len(rows) + 1
            rows += [
                ("reduce", (running,)),
                ("cosine", (running,)),
                ("sort", (first + 1,)),
                ("add", (running, first + 2)),
            ]
            running = len(rows)
        return graph_of(*rows)

    assert total(stream(40)) - total(stream(39)) == total(stream(20)) - total(stream(19))


@pytest.mark.parametrize(("kernel", "mirrored", "is_fused"), [
    (((5,), (6,), (4,), (3,)), (0, 1), True),
    (((5,), (6,), (4,), (3,)), (0,), False),  # half a reversal
    (((5,), (6,), (4,), (3,)), (0, 1, 2), False),  # of features too
    (((5,), (6,), (), (3,)), (0, 1), False),  # a kernel for each feature
])  # fmt: skip
def test_a_convolution_reads_a_mirrored_kernel_as_it_is(
    kernel: tuple[tuple[int, ...], ...], mirrored: tuple[int, ...], is_fused: bool
) -> None:
    images, weights = Tensor((16, 8, 8, 4), "f32", 4), Tensor((3, 3, 4, 4), "f32", 4)
    turned = tuple(Window(dim, dim, 3, 3, mirrored=True) for dim in mirrored)
    slid = tuple(Window(dim, dim, 8, 8, size=3, low=1) for dim in (1, 2))
    features = 4 if kernel[2] else 3
    rule = FactorRule(
        (16, 8, 8, 4, 4, 1, 1),
        (((0,), (1,), (2,), (3,)), kernel),
        (((0,), (1,), (2,), (features,)),),
    )
    graph = OpGraph(
        (images, weights, weights, images),
        (
            Op("reverse", (1,), (2,), None, windows=turned),
            Op("convolution", (0, 2), (3,), rule, windows=slid),
        ),
        (0, 1),
        (3,),
    )
    assert (2 in fuse(graph, frozenset()).fused) == is_fused


NAMES = st.sampled_from(
    ("add", "multiply", "exponential", "negate", "reshape", "transpose", "reduce", "sort")
)


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    rows = []
    for k in range(draw(st.integers(1, 14))):
        name = draw(NAMES)
        count = 2 if name in ("add", "multiply") else 1
        rows.append((name, tuple(draw(st.integers(0, k + 1)) for _ in range(count))))
    used = {operand for _, operands in rows for operand in operands}
    return graph_of(
        *rows, inputs=2, outputs=tuple(t for t in range(2, 2 + len(rows)) if t not in used)
    )


@given(graphs())
def test_every_kernel_reads_once_what_it_needs_and_fusing_never_costs(graph: OpGraph) -> None:
    fusion = fuse(graph, frozenset())
    accesses = kernel_accesses(graph, fusion)
    reads = [0] * len(graph.tensors)
    for op, row in zip(graph.ops, accesses, strict=True):
        for operand, times in zip(op.operands, row.counts, strict=False):
            reads[operand] += times
    for tensor in range(len(graph.tensors)):
        kernels = needing(graph, fusion.fused, tensor)
        assert reads[tensor] == (0 if tensor in fusion.fused else len(kernels))
        assert set(fusion.readers[tensor]) == kernels
    unfused = sum(
        accessed_bytes(
            op.name,
            len(op.operands),
            [256] * (len(op.operands) + 1),
            Accesses((1,) * (len(op.operands) + 1)),
        )
        for op in graph.ops
    )
    assert total(graph) <= unfused + 256 * sum(op.name == "reshape" for op in graph.ops) * 2


def needing(graph: OpGraph, fused: frozenset[int], tensor: int) -> set[int]:
    """The kernels, by their last operation, that read a tensor, found by walking."""
    kernels: set[int] = set()
    for index, op in enumerate(graph.ops):
        if tensor in op.operands:
            kernels |= needing(graph, fused, op.results[0]) if op.results[0] in fused else {index}
    return kernels

"""Products get matrices: what lies in memory otherwise is written once more, by the kernel that
makes it or by a copy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.hardware.cluster import Fusing
from shardopt.solve.sharding.kernels.fusion import CHEAP
from shardopt.solve.sharding.kernels.kernel_bytes import copied_bytes, kernel_accesses
from shardopt.solve.sharding.kernels.memory_orders import (
    NO_REWRITES,
    Rewrites,
    find_memory_orders,
    find_rewrites,
    is_matrix,
)
from shardopt.solve.sharding.kernels.merged_kernels import find_kernels
from shardopt.solve.sharding.strategies.strategies import op_strategies
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, f32, rule

SIZES = {"b": 2, "g": 4, "m": 3, "q": 8, "k": 16, "d": 32, "s": 5}


def op(name: str, text: str, operands: tuple[int, ...], result: int, reduction: str = "") -> Op:
    return Op(name, operands, (result,), rule(text, SIZES, reduction=reduction), flops=1.0)


def dot(text: str, operands: tuple[int, int], result: int, reduction: str) -> Op:
    return op("dot_general", text, operands, result, reduction)


def graph(ops: tuple[Op, ...], inputs: str, outputs: tuple[int, ...]) -> OpGraph:
    """`inputs` are the letters of tensors 0, 1, …"""
    shapes = dict(enumerate(inputs.split()))
    letters = sorted(SIZES)
    for each in ops:
        assert each.rule is not None
        shapes[each.results[0]] = "".join(letters[f] for (f,) in each.rule.results[0])
    tensors = tuple(f32(*(SIZES[x] for x in shapes[n])) for n in range(len(shapes)))
    return OpGraph(tensors, ops, tuple(range(len(inputs.split()))), outputs)


def rewrites(of: OpGraph) -> Rewrites:
    return find_kernels(of, frozenset(), Fusing(merged=True)).rewrites


def test_what_a_product_reads_and_writes_as_a_matrix_is_left_where_it_is() -> None:
    product = dot("qd,dk->qk", (0, 1), 2, "d")
    assert rewrites(graph((product,), "qd dk", (2,))) == NO_REWRITES
    # A transposed operand is a matrix too.
    swapped = (op("transpose", "dq->qd", (0,), 2), dot("qd,dk->qk", (2, 1), 3, "d"))
    assert rewrites(graph(swapped, "dq dk", (3,))) == NO_REWRITES


def test_heads_between_rows_and_columns_are_moved_by_a_copy_that_products_share() -> None:
    """[b, q, g, d] with a batch of b and g: no stride leads from one matrix to the next."""
    scores = dot("bqgd,bkgd->bgqk", (0, 1), 3, "d")
    both = (scores, dot("bqgd,bsgd->bgqs", (0, 2), 4, "d"))
    assert rewrites(graph(both, "bqgd bkgd bsgd", (3, 4))).copies == {0: (1, 1), 1: (0, 1)}


def moved(of: OpGraph) -> tuple[int, ...]:
    """For each operation how many tensors of one size it and copies for it read and write."""
    every = kernel_accesses(of, find_kernels(of, frozenset(), Fusing(merged=True)))
    return tuple(sum(each.counts) + 2 * sum(each.copies) for each in every)


def test_a_loop_writes_its_result_as_the_product_wants_it() -> None:
    """It reads its operand and writes the matrix, which the product reads."""
    exponential = op("exponential", "bqgd->bqgd", (0,), 2)
    scores = dot("bqgd,bgdk->bgqk", (2, 1), 3, "d")
    of = graph((exponential, scores), "bqgd bgdk", (3,))
    exponentials, products = moved(of)
    assert exponentials + products == 3 + 2, "the other operand and the result"
    also_a_result = rewrites(graph((exponential, scores), "bqgd bgdk", (2, 3)))
    assert also_a_result == Rewrites(more_writes={2: 1})


def grouped_attention() -> OpGraph:
    """Scores [b, g, k, q, m] of m heads for a key; softmax over k of [b, g, m, q, k]; values."""
    ops = (
        dot("bgkd,bgqmd->bgkqm", (0, 1), 3, "d"),
        op("transpose", "bgkqm->bgmqk", (3,), 4),
        op("reduce", "bgmqk->bgmq", (4,), 5, "k"),
        op("broadcast_in_dim", "bgmq->bgmqk", (5,), 6),
        op("subtract", "bgmqk,bgmqk->bgmqk", (4, 6), 7),
        op("exponential", "bgmqk->bgmqk", (7,), 8),
        dot("bgdk,bgmqk->bgdmq", (2, 8), 9, "k"),
    )
    return graph(ops, "bgkd bgqmd bgdk", (9,))


def test_a_transposed_value_lies_as_its_product_wrote_it() -> None:
    """Keys are outermost: the maximum is one of columns, and ends a kernel. The exponential is
    written with m before q, as the second product has its columns."""
    of = grouped_attention()
    orders = find_memory_orders(of, CHEAP, frozenset()).orders
    assert orders[4] == orders[8] == (0, 1, 4, 3, 2) and orders[5] == (0, 1, 3, 2)
    fusion = find_kernels(of, frozenset(), Fusing(merged=True))
    assert fusion.kernel[2] != fusion.kernel[5]
    assert fusion.rewrites == Rewrites(copies={6: (0, 1)}) and 8 in fusion.fused
    accesses = kernel_accesses(of, fusion)
    reads = sum(each.counts[0] for each in (accesses[1], accesses[2], accesses[4]))
    assert reads == 2, "the scores, for the maximum and for the exponential"


def test_of_two_products_that_are_added_the_later_one_is_copied() -> None:
    ops = (
        dot("bgqd,bgkd->bgqk", (0, 1), 4, "d"),
        dot("bks,bqgs->bkqg", (2, 3), 5, "s"),
        op("transpose", "bkqg->bgqk", (5,), 6),
        op("add", "bgqk,bgqk->bgqk", (4, 6), 7),
    )
    of = graph(ops, "bgqd bgkd bks bqgs", (7,))
    assert rewrites(of) == Rewrites(copies={3: (0, 1)})


def test_a_product_writes_rows_and_columns_in_each_others_place() -> None:
    ops = (
        dot("qd,dk->qk", (0, 1), 3, "d"),
        op("transpose", "qk->kq", (3,), 4),
        op("add", "kq,kq->kq", (2, 4), 5),
    )
    assert rewrites(graph(ops, "qd dk kq", (5,))) == NO_REWRITES
    kept = rewrites(graph(ops, "qd dk kq", (3, 5)))
    assert kept == Rewrites(copies={2: (0, 1)}), "unless the program hands it on as it stands"


def test_each_product_has_an_order_of_its_own() -> None:
    """The gradient of scores [b, q, k, m], of which one product contracts k, another q and m: it is
    never in memory as it stands, but computed by the copy for each."""
    ops = (
        op("exponential", "bqkm->bqkm", (0,), 3),
        dot("bqkm,bkd->bqmd", (3, 1), 4, "k"),
        dot("bqkm,bqmd->bkd", (3, 2), 5, "qm"),
    )
    of = graph(ops, "bqkm bkd bqmd", (4, 5))
    fusion = find_kernels(of, frozenset(), Fusing(merged=True))
    assert fusion.rewrites == Rewrites(copies={1: (1, 0), 2: (1, 0)})
    assert fusion.fused == {3} and fusion.readers[0] == (1, 2)
    kept = rewrites(graph(ops, "bqkm bkd bqmd", (3, 4, 5)))
    assert kept == Rewrites(more_writes={3: 2})


def test_a_batched_product_with_numbers_is_a_loop() -> None:
    """XLA makes a multiplication of it, which keeps the order of the larger operand."""
    scaled = dot("gbqk,g->gbqk", (1, 2), 3, "")
    ops = (
        op("transpose", "bgqk->gbqk", (0,), 1),
        scaled,
        op("transpose", "gbqk->bgqk", (3,), 4),
        op("add", "bgqk,bgqk->bgqk", (0, 4), 5),
    )
    of = graph((ops[0], Op("constant", (), (2,), rule("->g", SIZES)), *ops[1:]), "bgqk", (5,))
    assert rewrites(of) == NO_REWRITES


def test_attention_reads_and_writes_in_any_order() -> None:
    of = graph((dot("bqgd,bkgd->bgqk", (0, 1), 2, "d"),), "bqgd bkgd", (2,))
    found = find_memory_orders(of, CHEAP, frozenset({0}))
    assert find_rewrites(of, found, CHEAP, frozenset(), frozenset({0})) == NO_REWRITES


def test_copies_take_seconds_beside_the_product() -> None:
    of = graph((dot("bqgd,bkgd->bgqk", (0, 1), 2, "d"),), "bqgd bkgd", (2,))
    [accesses] = kernel_accesses(of, find_kernels(of, frozenset(), Fusing(merged=True)))
    sizes = [tensor.size_bytes for tensor in of.tensors]
    assert copied_bytes(sizes, accesses) == 2 * (sizes[0] + sizes[1])
    operands, results = of.tensors[:2], of.tensors[2:]
    alone, copied = (
        op_strategies(of.ops[0], operands, results, LINE, CLUSTER, accesses=each)[0]
        for each in (None, accesses)
    )
    bandwidth = CLUSTER.groups[0].device.memory_bandwidth
    assert copied.compute_seconds - alone.compute_seconds == pytest.approx(
        2 * (sizes[0] + sizes[1]) / bandwidth
    )


def test_an_order_with_a_short_innermost_dimension_takes_longer() -> None:
    """Three heads for a key are 12 bytes of each sector of 32: XLA gathers them. A row of 32 numbers
    is four sectors."""
    heads = graph((dot("bgdk,bgmqk->bgdqm", (0, 1), 2, "k"),), "bgdk bgmqk", (2,))
    rows = graph((dot("bqgd,bkgd->bgqk", (0, 1), 2, "d"),), "bqgd bkgd", (2,))
    for of, strewn in ((heads, (0, 1)), (rows, ())):
        [accesses] = kernel_accesses(of, find_kernels(of, frozenset(), Fusing(merged=True)))
        assert accesses.strewn == strewn
        sizes = [tensor.size_bytes for tensor in of.tensors]
        copied = 2 * sum(s * n for s, n in zip(sizes, accesses.copies, strict=False))
        assert copied_bytes(sizes, accesses) == (5 * copied if strewn else copied)


@given(st.permutations(range(6)), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2))
def test_a_matrix_is_what_strides_can_walk_over(
    order: list[int], batch: int, rows: int, columns: int
) -> None:
    """Against numpy: an array that lies in memory in an order merges groups of dimensions without a
    copy."""
    count = batch + rows + columns
    order = [dim for dim in order if dim < count]
    dims = tuple(range(count))
    groups = dims[:batch], dims[batch : batch + rows], dims[batch + rows :]
    array = np.empty([2] * count).transpose(np.argsort(order))
    merged = array.reshape([2 ** len(group) for group in groups])
    walked = np.shares_memory(array, merged)
    innermost = batch and order[-1] in groups[0]
    assert is_matrix(tuple(order), groups) == (walked and not innermost)

"""Repeated blocks, the number of layers that a model is worth, and the baselines that cut it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardopt.solve.stages.layers.blocks import BlockRun, count_blocks, find_blocks
from shardopt.solve.stages.layers.forward_line import ForwardLine
from shardopt.solve.stages.layers.layer_dp import Value, solve_layers
from shardopt.support.errors import UserError
from tests.draws import draws


def runs_of(text: str) -> list[tuple[int, int, int]]:
    """(start, period, repeats) of the blocks among operations written as letters, each with the
    same work."""
    return [(run.start, run.period, run.repeats) for run in find_blocks(text, [1.0] * len(text))]


@pytest.mark.parametrize(
    ("operations", "runs"),
    [
        ("abcd", []),
        ("aaaa", [(0, 1, 4)]),
        ("eqqqoffqqqoffqqqoffh", [(1, 6, 3)]),  # three projections of one block are not the blocks
        ("eabababxyzxyzxyzh", [(1, 2, 3), (7, 3, 3)]),  # an encoder and a decoder
        (
            "sAbcbcdEfefefGhgh",
            [(2, 2, 2), (8, 2, 2)],
        ),  # nothing shorter than half of the longest run's blocks
    ],
)
def test_blocks(operations: str, runs: list[tuple[int, int, int]]) -> None:
    assert runs_of(operations) == runs


@settings(max_examples=draws(200), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(2, 6), st.data())
def test_planted_blocks_are_found(block: list[int], repeats: int, data: st.DataObject) -> None:
    """Whatever stands around them: foreign operations, fewer than the blocks."""
    period = len(block)
    assume(not any(block == block[k:] + block[:k] for k in range(1, period)))  # no shorter period
    before = [f"b{k}" for k in range(data.draw(st.integers(0, 3)))]
    behind = [f"a{k}" for k in range(data.draw(st.integers(0, 3)))]
    operations = [*before, *(block * repeats), *behind]
    assert find_blocks(operations, [1.0] * len(operations)) == (
        BlockRun(len(before), period, repeats),
    )


@given(st.lists(st.integers(0, 2), max_size=14))
def test_runs_are_disjoint_and_repeat(operations: list[int]) -> None:
    runs = find_blocks(operations, [1.0] * len(operations))
    assert all(one.stop <= other.start for one, other in pairwise(runs))
    for run in runs:
        block = operations[run.start : run.start + run.period]
        assert operations[run.start : run.stop] == block * run.repeats
        assert run.repeats >= 2
    if not runs:
        doubled = [
            (start, period)
            for period in range(1, len(operations) // 2 + 1)
            for start in range(len(operations) - 2 * period + 1)
            if operations[start : start + period] == operations[start + period : start + 2 * period]
        ]
        assert not doubled


def model(blocks: int, *, head: float = 0.0) -> ForwardLine:
    """Blocks of four units with 1, 2, 1 and 0 FLOPs, 5 bytes between blocks and 9 inside; a head
    behind them."""
    flops = [1.0, 2.0, 1.0, 0.0] * blocks + [head] * (head > 0)
    values = [Value(k, 5 if k % 4 == 3 else 9, (k + 1,)) for k in range(len(flops) - 1)]
    operators = [unit for unit in range(4 * blocks) if unit % 4 < 3] + [4 * blocks] * (head > 0)
    kinds = [f"{unit % 4}" if unit < 4 * blocks else "head" for unit in operators]
    return ForwardLine(
        np.array(flops),
        values,
        tuple(operators),
        tuple(kinds),
        tuple(flops[unit] for unit in operators),
    )


@pytest.mark.parametrize(
    ("blocks", "layers"),
    [(8, 8), (12, 12), (16, 16), (24, 12), (32, 16), (34, 16), (40, 10), (48, 16)],
)
def test_one_layer_for_each_block_or_for_equally_many(blocks: int, layers: int) -> None:
    line = model(blocks)
    assert count_blocks(line.runs) == blocks
    assert line.best_count(0.5) == layers
    solution = line.cut(layers, 0.5, 0.5, "dp")
    if blocks % layers == 0:
        assert solution.boundaries == tuple(range(0, 4 * blocks + 1, 4 * blocks // layers))


def test_few_blocks_are_cut_where_that_is_cheap() -> None:
    line = ForwardLine(
        np.ones(8), [Value(k, 5, (k + 1,)) for k in range(7)], (0, 4), ("a", "a"), (1.0, 1.0)
    )
    assert count_blocks(line.runs) == 2
    assert line.best_count(0.5) == 8


def test_a_loss_is_no_layer() -> None:
    """Next to nothing enters it, and the paper's order of criteria makes it a layer of its own."""
    line = model(4, head=0.01)
    values = [*line.values[:-1], Value(15, 1, (16,))]
    paper = solve_layers(line.weights, values, 3, delta=0.6)
    assert paper.layer_weights[-1] == 0.01
    assert min(solve_layers(line.weights, values, 3, delta=0.6, least=0.4).layer_weights) >= 4


@pytest.mark.parametrize(("blocks", "layers"), [(12, 4), (12, 5), (9, 2), (6, 6)])
def test_equal_layer_gives_every_layer_as_many_blocks(blocks: int, layers: int) -> None:
    solution = model(blocks, head=30.0).cut(layers, 0.5, 0.0, "equal-layer")
    sizes = [end - start for start, end in solution.layers]
    assert all(start % 4 == 0 for start, _ in solution.layers), "cut inside a block"
    assert sum(sizes) == 4 * blocks + 1
    assert max(sizes[:-1]) - min(sizes[:-1]) <= 4


def test_equal_layer_without_blocks_takes_equal_work() -> None:
    line = ForwardLine(np.array([4.0, 1, 1, 1, 1, 4]), [], (), (), ())
    assert line.cut(3, 0.5, 0.0, "equal-layer").boundaries == (0, 1, 5, 6)


@given(st.integers(1, 12), st.integers(1, 12))
def test_equal_op_gives_every_layer_as_many_operators(blocks: int, layers: int) -> None:
    """Whatever their work, up to one; other operations do not count."""
    line = model(blocks)
    assume(layers <= 3 * blocks)
    solution = line.cut(layers, 0.5, 0.0, "equal-op")
    counts = [sum(start <= unit < end for unit in line.operators) for start, end in solution.layers]
    assert max(counts) - min(counts) <= 1


def test_equal_op_without_operators_counts_all_operations() -> None:
    line = ForwardLine(np.array([4.0, 1, 1, 1, 1, 4]), [], (), (), ())
    assert line.cut(3, 0.5, 0.0, "equal-op").boundaries == (0, 2, 4, 6)


def wide_model(blocks: int, *, head: float, inside: int = 9) -> ForwardLine:
    """As `model`, with its blocks marked."""
    line = model(blocks, head=head)
    values = [Value(v.producer, inside if v.bytes == 9 else 5, v.consumers) for v in line.values]
    return replace(line, values=values, blocks=tuple((4 * k, 4 * k + 4) for k in range(blocks)))


@pytest.mark.parametrize(("blocks", "layers"), [(24, 24), (24, 6), (128, 128), (96, 12)])
def test_no_block_is_cut_where_parts_are_no_more_even(blocks: int, layers: int) -> None:
    """Even where cutting a block is as cheap, as in the middle of a transformer block."""
    solution = wide_model(blocks, head=1.0, inside=5).cut(layers, 0.5, 0.5, "dp")
    assert solution.boundaries == (*range(0, 4 * blocks, 4 * blocks // layers), 4 * blocks + 1)


def test_blocks_are_cut_where_that_is_more_even() -> None:
    """Four blocks for three layers: whole blocks would make one layer twice as heavy."""
    line = wide_model(4, head=0.0, inside=5)
    assert max(line.cut(3, 0.5, 0.5, "dp").layer_weights) == 6
    assert max(replace(line, blocks=()).cut(3, 0.5, 0.5, "dp").layer_weights) == 6


def test_a_layer_for_each_block_beside_a_heavy_head() -> None:
    """The head is a layer of its own, and two blocks share one."""
    solution = wide_model(12, head=20.0).cut(12, 0.5, 0.5, "dp")
    assert sorted(solution.layer_weights) == [4.0] * 10 + [8.0, 20.0]
    with pytest.raises(UserError, match="the largest feasible number is 5"):
        replace(wide_model(12, head=20.0), blocks=()).cut(12, 0.5, 0.5, "dp")

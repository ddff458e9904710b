"""Where blocks begin and end, and the units that layers are cut between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.op_graph import Op, OpGraph, Tensor
from shardopt.solve.stages.layers.block_borders import block_spans
from shardopt.solve.stages.layers.blocks import find_blocks
from shardopt.solve.stages.layers.forward_units import join, line_of

# Operators are capital letters; the digits are the bytes that cross in front of each operation.
BLOCK = "1n 2A 9m 9B 3n 4C 9D"


def spans_of(text: str) -> list[str]:
    """The operations of each block."""
    words = text.split()
    names, crossing = [word[1:] for word in words], [int(word[0]) for word in words]
    operators = [place for place, name in enumerate(names) if name.isupper()]
    runs = find_blocks([names[place] for place in operators], [1.0] * len(operators))
    spans = block_spans(runs, operators, np.array([*crossing, 0]))
    return ["".join(names[first:stop]) for first, stop in spans]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (f"0e {BLOCK} {BLOCK} {BLOCK} 1h 1H", ["nAmBnCD"] * 3),
        # Recognised from its second operator on, as the head has the shape of the first.
        (f"0e 2X 9m 9B 3n 4C 9D {BLOCK} {BLOCK} 1n 2A 9l", ["nAmBnCD"] * 2),
        (f"{BLOCK} {BLOCK}", ["nAmBnCD"] * 2),
        # Two operators of one shape: half a block is none.
        ("1n 2A 9m 3A 1n 2A 9m 3A 1n 2A 9m 3A 1n 2A 9m 3A", ["nAmA"] * 4),
        ("0A 1B 1C", []),
    ],
)
def test_blocks_begin_where_fewest_bytes_cross(text: str, blocks: Sequence[str]) -> None:
    assert spans_of(text) == blocks


@given(st.lists(st.sampled_from([0.0, 1.0, 50.0]), min_size=1, max_size=4000), st.data())
def test_no_unit_crosses_a_border(flops: list[float], data: st.DataObject) -> None:
    borders = data.draw(st.sets(st.integers(0, len(flops)), max_size=20))
    units = join(np.array(flops), borders)
    assert units[0] == 0 and set(np.diff(units)) <= {0, 1}
    assert all(units[b - 1] < units[b] for b in borders if 0 < b < len(flops))
    assert units[-1] < 2000 + len(borders)


@pytest.mark.parametrize("blocks", [32, 128])
def test_units_of_a_long_model_keep_its_blocks(blocks: int) -> None:
    """A residual stream with two products and many light operations a block."""
    graph, per_block = residual_stream(blocks)
    flops = np.array([op.flops for op in graph.ops])
    units, line = line_of(graph, range(len(graph.ops)), flops)
    assert len(line.blocks) == blocks
    for k, (first, stop) in enumerate(line.blocks):
        inside = {int(unit) for unit in units[k * per_block : (k + 1) * per_block]}
        assert inside == set(range(first, stop))


def residual_stream(blocks: int) -> tuple[OpGraph, int]:
    """x = x + g(A x) with 40 light operations around each product; and how many operations a block
    has."""
    ops: list[Op] = []

    def add(name: str, *operands: int) -> int:
        ops.append(Op(name, operands, (len(ops) + 1,), None, flops=1e6 if "dot" in name else 1.0))
        return len(ops)

    x = 0
    for _ in range(blocks):
        value = x
        for name in ("dot_general", "dot_general"):
            for _ in range(20):
                value = add("tanh", value)
            value = add(name, value)
            for _ in range(20):
                value = add("tanh", value)
        x = add("add", x, value)
    tensors = (Tensor((8, 8), "f32", 4),) * (len(ops) + 1)
    return OpGraph(tensors, tuple(ops), (0,), (x,)), len(ops) // blocks

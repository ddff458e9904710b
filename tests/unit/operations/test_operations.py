"""Every operation of real models has strategies or a reason for having one only, and a row in its
page."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.windows import Window, exchanges, fits, halo, reach
from shardopt.mesh.mesh import Mesh
from shardopt.mesh.splits import tile_extent
from shardopt.solve.sharding.strategies.factors import OPAQUE_OPS, WITHOUT_RULE, why_opaque
from shardopt.solve.sharding.strategies.strategies import op_strategies
from tests.unit.operations.op_examples import EXAMPLES, Example
from tests.unit.operations.operations_page import PAGE, graph_of, op_of, page
from tests.unit.operations.page_version import OF_ONE_VERSION
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, MESH

CUBE = Mesh("m", (("x", 2), ("y", 2), ("z", 2)), tuple(range(8)))

# What modules of 15 public model libraries consist of, beside functions and calls, which import
# inlines.
SEEN = frozenset(
    {
        *(
            "abs",
            "add",
            "all_gather",
            "all_reduce",
            "and",
            "atan2",
            "bitcast_convert",
            "broadcast_in_dim",
            "case",
        ),
        *(
            "cbrt",
            "ceil",
            "cholesky",
            "clamp",
            "compare",
            "complex",
            "composite",
            "concatenate",
            "constant",
            "convert",
        ),
        *(
            "convolution",
            "cosine",
            "custom_call",
            "divide",
            "dot_general",
            "dynamic_slice",
            "dynamic_update_slice",
        ),
        *(
            "exponential",
            "exponential_minus_one",
            "fft",
            "floor",
            "gather",
            "imag",
            "iota",
            "is_finite",
            "log",
        ),
        *(
            "log_plus_one",
            "logistic",
            "maximum",
            "minimum",
            "multiply",
            "negate",
            "not",
            "optimization_barrier",
            "or",
        ),
        *(
            "pad",
            "partition_id",
            "popcnt",
            "power",
            "real",
            "reduce",
            "reduce_precision",
            "reduce_window",
            "remainder",
        ),
        *(
            "reshape",
            "reverse",
            "rng_bit_generator",
            "round_nearest_afz",
            "round_nearest_even",
            "rsqrt",
            "scatter",
        ),
        *(
            "select",
            "select_and_scatter",
            "shift_left",
            "shift_right_arithmetic",
            "shift_right_logical",
            "sign",
            "sine",
        ),
        *(
            "slice",
            "sort",
            "sqrt",
            "subtract",
            "tan",
            "tanh",
            "transpose",
            "triangular_solve",
            "while",
            "xor",
        ),
    }
)


def test_every_operation_of_real_models_is_accounted_for() -> None:
    examples = {example.op for example in EXAMPLES}
    assert sorted(SEEN - examples - OPAQUE_OPS.keys() - WITHOUT_RULE.keys()) == []


@OF_ONE_VERSION
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_strategies_exist_and_cost_something_finite(example: Example) -> None:
    if example.op == "optimization_barrier":
        assert not graph_of(example).ops  # transparent
        return
    graph, op = graph_of(example), op_of(example)
    operands, results = ([graph.tensors[t] for t in side] for side in (op.operands, op.results))
    for mesh in (LINE, MESH, CUBE):
        strategies = op_strategies(op, operands, results, mesh, CLUSTER)
        assert all(
            sharding.is_replicated for sharding in (*strategies[0].operands, *strategies[0].results)
        )
        assert all(0 <= strategy.seconds < math.inf for strategy in strategies)
        assert len(set(strategies)) == len(strategies)
        assert (len(strategies) == 1) == bool(why_opaque(op))
        for strategy in strategies:
            for tensor, sharding in zip(
                (*operands, *results), (*strategy.operands, *strategy.results), strict=True
            ):
                sharding.check(mesh, tensor.shape)


WINDOWS = st.builds(
    lambda tile, tiles, cut, **moves: (tiles, Window(0, 0, max(tile * tiles - cut, 1), **moves)),
    tile=st.integers(1, 6),
    cut=st.integers(0, 3),
    tiles=st.sampled_from((2, 4)),
    target=st.integers(1, 24),
    size=st.integers(1, 4),
    stride=st.integers(1, 3),
    low=st.integers(-3, 3),
    spacing=st.integers(1, 2),
    dilation=st.integers(1, 2),
)


@given(WINDOWS)
def test_a_device_has_what_its_windows_read_once_the_borders_have_come(
    case: tuple[int, Window],
) -> None:
    tiles, window = case
    if not fits(window, tiles):
        return
    tile, share = tile_extent(window.source, tiles), tile_extent(window.target, tiles)
    left, right = (max(elements, 0) for elements in halo(window, tiles))
    # Fewer where what lies near is not needed, or comes from far away.
    assert sum(exchanges(window, tiles)) <= left + right
    assert all(0 < elements <= tile for elements in exchanges(window, tiles))
    for device in range(tiles):
        places = (
            o * window.stride - window.low + k * window.dilation
            for o in range(device * share, min((device + 1) * share, window.target))
            for k in range(window.size)
        )
        read = [
            p // window.spacing
            for p in places
            if p % window.spacing == 0 and 0 <= p // window.spacing < window.source
        ]
        assert all(device * tile - left <= place < (device + 1) * tile + right for place in read)
        assert not read or max(read) - min(read) < reach(window, tiles)

"""FLOP counts of StableHLO operations."""

from __future__ import annotations

import pytest

from shardopt.cost.op_flops import op_flops


@pytest.mark.parametrize(
    ("name", "operands", "results", "attrs", "flops"),
    [
        ("stablehlo.dot_general", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"lhs_contracting_dimensions": (2,)}, 240),
        ("dot_general", [(3, 4), (3, 4)], [()], {"lhs_contracting_dimensions": (0, 1)}, 24),
        ("stablehlo.dot", [(3, 4), (4,)], [(3,)], {}, 24),
        # 8x8 image, 3 -> 16 channels, 3x3 window: 2 · 8 · 8 · 16 · (3 · 3 · 3)
        (
            "stablehlo.convolution",
            [(1, 8, 8, 3), (3, 3, 3, 16)],
            [(1, 8, 8, 16)],
            {"kernel_output_feature_dimension": 3},
            2 * 8 * 8 * 16 * 27,
        ),
        # depthwise: feature_group_count = 16, so the kernel's input-feature dimension is 1
        (
            "stablehlo.convolution",
            [(1, 8, 8, 16), (3, 3, 1, 16)],
            [(1, 8, 8, 16)],
            {"kernel_output_feature_dimension": 3},
            2 * 8 * 8 * 16 * 9,
        ),
        ("stablehlo.reduce", [(4, 8), ()], [(4,)], {}, 32),
        ("stablehlo.reduce", [(4, 8), (4, 8), (), ()], [(4,), (4,)], {}, 64),
        ("stablehlo.reduce_window", [(8, 8), ()], [(4, 4)], {"window_dimensions": (2, 2)}, 64),
        ("stablehlo.scatter", [(100, 8), (5, 1), (5, 8)], [(100, 8)], {}, 40),
        ("stablehlo.sort", [(4, 8), (4, 8)], [(4, 8), (4, 8)], {"dimension": 1}, 32 * 3),
        ("stablehlo.add", [(4, 8), (4, 8)], [(4, 8)], {}, 32),
        ("stablehlo.tanh", [(4, 8)], [(4, 8)], {}, 320),
        ("chlo.erf", [(4,)], [(4,)], {}, 40),
        ("stablehlo.transpose", [(4, 8)], [(8, 4)], {}, 0),
        ("stablehlo.while", [(4,)], [(4,)], {}, 0),
        ("stablehlo.never_heard_of", [(4,)], [(4,)], {}, 4),
        ("stablehlo.return", [(4,)], [], {}, 0),
        ("stablehlo.cholesky", [(6, 6)], [(6, 6)], {}, 72),
        ("stablehlo.fft", [(8,)], [(8,)], {"fft_length": (8,)}, 120),
    ],
)
def test_op_flops(name: str, operands: list, results: list, attrs: dict, flops: float) -> None:
    assert op_flops(name, operands, results, attrs) == pytest.approx(flops)


def test_missing_attribute_is_an_error() -> None:
    with pytest.raises(KeyError):
        op_flops("stablehlo.dot_general", [(2, 3), (3, 4)], [(2, 4)], {})

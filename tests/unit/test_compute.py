"""FLOP counts of StableHLO operations and the roofline."""

from __future__ import annotations

import pytest

from shardopt.cost.cluster import Device
from shardopt.cost.compute import EFFICIENCY, dtype_family, op_flops, op_seconds, peak_flops

DEVICE = Device("d", {"f32": 1e12, "bf16": 4e12}, 2**30, 1e11)


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


@pytest.mark.parametrize(
    ("dtype", "family"),
    [("f32", "f32"), ("bf16", "bf16"), ("f8E4M3FN", "f8"), ("ui8", "i8"), ("i32", "f32"), ("complex<f64>", "f64")],
)
def test_dtype_families(dtype: str, family: str) -> None:
    assert dtype_family(dtype) == family


def test_missing_rates_fall_back_to_wider_types() -> None:
    assert peak_flops(DEVICE, "f16") == peak_flops(DEVICE, "f8E5M2") == peak_flops(DEVICE, "bf16") == 4e12
    assert peak_flops(DEVICE, "i32") == peak_flops(DEVICE, "f32") == 1e12
    assert peak_flops(DEVICE, "f64") == 5e11


def test_roofline() -> None:
    assert op_seconds(DEVICE, 6e11, 1e3, "f32", 0.25) == pytest.approx(6e11 / (1e12 * EFFICIENCY) + 0.25)
    assert op_seconds(DEVICE, 1e3, 1e11, "f32", 0.0) == pytest.approx(1.0)
    assert op_seconds(DEVICE, 1e12, 0.0, "bf16", 0.0, efficiency=1.0) == pytest.approx(0.25)

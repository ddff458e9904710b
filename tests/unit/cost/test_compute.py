"""The rates of element types and the roofline."""

from __future__ import annotations

import pytest

from shardopt.cost.compute import EFFICIENCY, dtype_family, op_seconds, peak_flops
from shardopt.hardware.cluster import Device

DEVICE = Device("d", {"f32": 1e12, "bf16": 4e12}, 2**30, 1e11)


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
    assert op_seconds(DEVICE, 6e11, 1e3, "f32") == pytest.approx(6e11 / (1e12 * EFFICIENCY))
    assert op_seconds(DEVICE, 1e3, 1e11, "f32") == pytest.approx(1.0)
    assert op_seconds(DEVICE, 1e12, 0.0, "bf16", efficiency=1.0) == pytest.approx(0.25)

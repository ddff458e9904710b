"""The rates of element types and the roofline."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from shardopt.cost.compute import EFFICIENCY, dtype_family, op_seconds, peak_flops
from shardopt.cost.products import Product
from shardopt.hardware.cluster import Device, KernelRates
from shardopt.hardware.cluster_file import load_cluster

DEVICE = Device("d", {"f32": 1e12, "bf16": 4e12}, 2**30, 1e11)


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        ("f32", "f32"),
        ("bf16", "bf16"),
        ("f8E4M3FN", "f8"),
        ("ui8", "i8"),
        ("i32", "f32"),
        ("complex<f64>", "f64"),
    ],
)
def test_dtype_families(dtype: str, family: str) -> None:
    assert dtype_family(dtype) == family


def test_missing_rates_fall_back_to_wider_types() -> None:
    assert (
        peak_flops(DEVICE, "f16")
        == peak_flops(DEVICE, "f8E5M2")
        == peak_flops(DEVICE, "bf16")
        == 4e12
    )
    assert peak_flops(DEVICE, "i32") == peak_flops(DEVICE, "f32") == 1e12
    assert peak_flops(DEVICE, "f64") == 5e11


def test_roofline() -> None:
    assert op_seconds(DEVICE, 6e11, 1e3, "f32") == pytest.approx(6e11 / (1e12 * EFFICIENCY))
    assert op_seconds(DEVICE, 1e3, 1e11, "f32") == pytest.approx(1.0)


KERNELS = KernelRates(
    {"f32": 0.5, "bf16": 0.8}, convolutions=0.5, memory=0.8, least_seconds=1e-6, merged=True
)
DESCRIBED = replace(DEVICE, kernels=KERNELS)


def test_products_reach_their_share_of_the_peak() -> None:
    assert op_seconds(DESCRIBED, 4e11, 0.0, "bf16", kind="matmul") == pytest.approx(0.125 + 1e-6)
    assert op_seconds(DESCRIBED, 4e11, 0.0, "f16", kind="matmul") == pytest.approx(0.125 + 1e-6), (
        "as bf16"
    )
    assert op_seconds(DESCRIBED, 4e11, 0.0, "f32", kind="convolution") == pytest.approx(1.6 + 1e-6)


def test_near_the_ridge_a_product_pays_for_both() -> None:
    """0.3 s of arithmetic and 0.4 s of memory."""
    assert op_seconds(DESCRIBED, 9.6e11, 3.2e10, "bf16", kind="matmul") == pytest.approx(0.5 + 1e-6)


def test_no_kernel_takes_less_than_the_least() -> None:
    assert op_seconds(DESCRIBED, 1.0, 0.0, "f32", kind="elementwise") == pytest.approx(1e-6)
    assert op_seconds(DESCRIBED, 1.0, 0.0, "f32", kind="elementwise", kernels=0) == 0.0, "fused"
    assert op_seconds(DESCRIBED, 1.0, 8e10, "f32", kind="elementwise") == pytest.approx(1.0 + 1e-6)
    assert op_seconds(
        DESCRIBED, 1.0, 8e10, "f32", kind="elementwise", in_memory=0.25
    ) == pytest.approx(0.25 + 1e-6)


def measured_products() -> list[dict[str, Any]]:
    lines = (
        Path(__file__).parents[3] / "benchmarks" / "one_device" / "h100" / "operations.jsonl"
    ).read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    return [
        row for row in rows if row["name"] in ("dot", "scores", "values") and row["flops"] > 1e8
    ]


def product_of(row: dict[str, Any]) -> Product:
    """Of two operands, the first without or with a batch dimension."""
    (*batch, rows, depth), second = row["shapes"]
    if row["name"] == "values":
        columns = second[-1]
    else:
        columns = second[-2] if batch else second[-1]
    itemsize = 4 if row["dtype"] == "float32" else 2
    lines = (*(shape[-1] for shape in row["shapes"]), columns)
    aligned = all(extent * itemsize % 16 == 0 for extent in lines)
    return Product(*(batch or [1]), rows, columns, depth, itemsize, aligned)


def test_products_of_an_h100_take_what_was_measured() -> None:
    """Of the preset, against single products of many shapes. Where the sizes are known they are
    closer, and thin and unaligned ones are."""
    device = load_cluster("h100-sxm").groups[0].device
    known, flat = [], []
    for row in measured_products():
        dtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[row["dtype"]]
        for product, errors in ((product_of(row), known), (None, flat)):
            seconds = op_seconds(
                device, row["flops"], row["bytes"], dtype, kind="matmul", product=product
            )
            errors.append(abs(log(seconds / row["seconds"])))
    assert len(known) > 190
    assert median(known) < 0.055 and mean(known) < 0.1
    assert mean(known) < 0.9 * mean(flat)

"""The rates of element types and the roofline."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from shardopt.cost.compute import (
    EFFICIENCY,
    HeldRows,
    dtype_family,
    held_seconds,
    op_seconds,
    peak_flops,
)
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
    across = int(second[-1] == columns)
    return Product(*(batch or [1]), rows, columns, depth, itemsize, aligned, across)


def test_products_of_an_h100_take_what_was_measured() -> None:
    """Of the preset, against single products of many shapes, which six calls of a GPU computed that
    nothing had slowed down: with the rates that these reach. Where the sizes are known they are
    closer, and thin and unaligned ones are."""
    device = load_cluster("h100-sxm").groups[0].device
    assert device.kernels is not None
    device = replace(
        device,
        kernels=replace(device.kernels, products={"f32": 0.96, "f16": 0.80, "bf16": 0.83}),
    )
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


def test_products_in_f32_take_longer_across_what_they_contract() -> None:
    """Of 32 bits a Hopper multiplies rows with rows: x W and x' y are slower than x W' by as much as
    the preset says; 16 bits are not."""
    device = load_cluster("h200").groups[0].device

    def seconds(across: int, dtype: str) -> float:
        product = Product(1, 8192, 8192, 8192, 4, across=across)
        return op_seconds(device, product.flops, 0.0, dtype, kind="matmul", product=product)

    assert device.kernels is not None
    for across, share in enumerate(device.kernels.across, start=1):
        assert seconds(across, "f32") == pytest.approx(seconds(0, "f32") / share, rel=1e-2)
        assert seconds(across, "bf16") == seconds(0, "bf16")


def test_operands_in_8_bits_are_turned_where_they_lie_across() -> None:
    """On a Hopper: the gradient of a weight copies both operands first, a read and a write of each
    byte. A B200, whose units take both orders, copies none."""
    size = 8192
    along, across = (
        Product(1, size, size, size, 1, across=count, across_elements=count * size**2)
        for count in (0, 2)
    )
    more = {}
    for preset in ("h200", "b200"):
        device = load_cluster(preset).groups[0].device
        first, second = (
            op_seconds(device, each.flops, 0.0, "f8E4M3FN", kind="matmul", product=each)
            for each in (along, across)
        )
        more[preset] = second - first
    device = load_cluster("h200").groups[0].device
    assert device.kernels is not None
    copied = 4 * size**2 / (device.memory_bandwidth * device.kernels.memory)
    assert more["h200"] == pytest.approx(copied + 2 * device.kernels.least_seconds)
    assert more["b200"] == 0.0


def test_convolutions_of_single_channels_run_beside_the_units_for_products() -> None:
    device = load_cluster("h200").groups[0].device
    flops = 2.0 * 96 * 128 * 56 * 56 * 49
    single, many = (
        op_seconds(
            device,
            flops,
            0.0,
            "bf16",
            kind="convolution",
            product=Product(batch, 128 * 56 * 56, columns, 49, 2),
        )
        for batch, columns in ((96, 1), (1, 96))
    )
    # 286 us, measured on an H200 (benchmarks/one_device/h200), of which 37 are those of its bytes.
    assert 200e-6 < single < 400e-6
    assert many < single / 10


def test_rows_that_a_kernel_holds_take_seconds_beside_its_bytes() -> None:
    device = load_cluster("h200").groups[0].device
    one = held_seconds(device, 1e8, HeldRows(1))
    assert held_seconds(device, 1e8, HeldRows(2)) == pytest.approx(4 * one)
    assert held_seconds(device, 1e8, HeldRows(1, exponentials=True)) == pytest.approx(2 * one)
    again = held_seconds(device, 1e8, HeldRows(1, read_again=4.0))
    assert again > 2 * one + 4e8 / device.memory_bandwidth
    assert device.kernels is not None
    plain = replace(device, kernels=replace(device.kernels, row_blocks=False))
    assert held_seconds(plain, 1e8, HeldRows(2)) == 0.0
    tpu = load_cluster("tpu-v4").groups[0].device
    assert held_seconds(tpu, 1e8, HeldRows(2, True, 4.0)) == 0.0


# TFLOP/s of rows x depth by depth x columns after as many others as it takes to slow a device down,
# with random numbers: SemiAnalysis ("MI300X vs H100 vs H200 Benchmark Part 1", the mean of these
# five) and Azure/AI-benchmarking-guide (Azure_Results, ND H100 v5 and ND A100 v4).
LLAMA = (
    (16384, 8192, 1280),
    (16384, 1024, 8192),
    (16384, 8192, 7168),
    (16384, 3584, 8192),
    (8192, 8192, 8192),
)
SUSTAINED = (
    ("h100-sxm", "bf16", dict.fromkeys(LLAMA, 720.0)),
    ("h200", "bf16", dict.fromkeys(LLAMA, 720.0)),
    (
        "h100-sxm",
        "f8E4M3FN",
        {
            (4096, 4096, 4096): 1216.9,
            (8192, 8192, 8192): 1290.1,
            (16384, 16384, 16384): 1377.3,
            (32768, 32768, 32768): 1382.2,
            (6144, 12288, 12288): 1351.4,
        },
    ),
    (
        "dgx-a100",
        "f16",
        {
            (4096, 4096, 4096): 228.0,
            (8192, 8192, 8192): 253.7,
            (16384, 16384, 16384): 256.5,
            (6144, 12288, 12288): 250.8,
        },
    ),
)


@pytest.mark.parametrize(("preset", "dtype", "published"), SUSTAINED)
def test_products_of_presets_are_as_fast_as_published_without_bias(
    preset: str, dtype: str, published: dict[tuple[int, int, int], float]
) -> None:
    device, itemsize = load_cluster(preset).groups[0].device, 1 if dtype.startswith("f8") else 2
    errors = []
    for (rows, columns, depth), rate in published.items():
        product = Product(1, rows, columns, depth, itemsize)
        moved = itemsize * depth * (rows + columns) + 2 * rows * columns
        seconds = op_seconds(device, product.flops, moved, dtype, kind="matmul", product=product)
        errors.append(log(product.flops / seconds / 1e12 / rate))
    assert abs(mean(errors)) < 0.015
    assert max(map(abs, errors)) < 0.06

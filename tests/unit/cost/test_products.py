"""The arithmetic of products by their sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.cost.products import Processors, Product, arithmetic_seconds

GPU = Processors(rate=100e12, cores=100, unit=0, unaligned=0.5, least_seconds=1e-6, bandwidth=1e12)
TPU = Processors(rate=100e12, cores=0, unit=128, unaligned=1.0, least_seconds=0.0, bandwidth=1e12)
extents = st.integers(2, 20_000)


def slowdown(product: Product, processors: Processors) -> float:
    return arithmetic_seconds(product, processors) * processors.rate / product.flops


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    """100 tiles of 256 x 128 are one wave of 100 cores, 110 are two; there is no depth to cut."""
    full = Product(1, 256 * 10, 128 * 10, 256, 2)
    assert slowdown(full, GPU) == pytest.approx(1.0)
    assert slowdown(replace(full, rows=256 * 10 + 8), GPU) > 1.1


def test_small_tiles_fill_waves_but_load_more() -> None:
    """64 tiles of 64 x 64 do half of what 64 cores could, and these are 64 of 100."""
    assert slowdown(Product(1, 512, 512, 128, 2), GPU) == pytest.approx(2 * 100 / 64)


def test_few_tiles_are_cut_in_depth() -> None:
    deep = Product(1, 256, 256, 65536, 2)
    assert slowdown(deep, GPU) < 100 / 4


def test_what_parts_add_up_to_passes_through_memory() -> None:
    """110 tiles are cut into 16 parts each; these are written, and read by a second kernel."""
    product = Product(1, 256 * 10 + 8, 128 * 10, 65536, 2)
    fast = replace(GPU, bandwidth=1e15)
    assert slowdown(product, fast) < slowdown(product, GPU)
    slow = replace(GPU, bandwidth=1e9)
    assert slowdown(product, slow) > 1.1  # two waves, as if nothing could be cut


def test_rows_out_of_line_are_slower() -> None:
    product = Product(1, 8192, 8192, 8192, 2)
    assert slowdown(replace(product, aligned=False), TPU) == pytest.approx(1.0)
    halved = slowdown(replace(product, aligned=False), GPU) / slowdown(product, GPU)
    assert halved == pytest.approx(2.0)


def test_a_systolic_array_is_filled_up() -> None:
    assert slowdown(Product(4, 512, 256, 512, 2), TPU) == pytest.approx(1.0)
    assert slowdown(Product(4, 512, 64, 512, 2), TPU) == pytest.approx(2.0)
    assert slowdown(Product(4, 4, 64, 192, 2), TPU) == pytest.approx(2 * 2 * 256 / 192)


@given(st.integers(1, 64), extents, extents, extents, st.sampled_from([1, 2, 4]), st.booleans())
def test_no_product_is_faster_than_its_flops(
    batch: int, rows: int, columns: int, depth: int, itemsize: int, aligned: bool
) -> None:
    """What is known of an operation before it is split is a bound only if this holds."""
    product = Product(batch, rows, columns, depth, itemsize, aligned)
    for processors in (GPU, TPU):
        assert slowdown(product, processors) >= 1 - 1e-9

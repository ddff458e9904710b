"""Seconds of the arithmetic of one matrix product: of its tiles, as processors take them.

A GPU cuts the result into tiles, of which each multiprocessor computes one at a time. 144 tiles on
132 multiprocessors take as long as 264 (wave quantization), and a tile that sticks out takes as
long as a whole one (tile quantization). Small tiles fill waves better, but load more for each
FLOP; the library takes the best of both, and may cut the contracted dimension where tiles are few.
This is the account of NVIDIA's "Matrix Multiplication Background User's Guide" (DU-09799-001,
sections 2 and 3). The tiles are some of those for which cuBLAS has names (`cublasLtMatmulTile_t`).

A TPU has systolic arrays, to whose side columns and depth are filled up, and rows to eight (Austin
et al., "How to Scale Your Model", chapter 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

_SQUARE = ((64, 64), (128, 128))
_OBLONG = ((128, 64), (256, 64), (160, 128), (192, 128), (256, 128), (256, 192))
_TILES = (*_SQUARE, *_OBLONG, *((columns, rows) for rows, columns in _OBLONG))
# Multiply-adds with each element that a multiprocessor loads, below which loading takes longer. Of
# 40, 51, 64 and 85 this one is the nearest to products that were measured on an H100
# (benchmarks/one_device/h100/operations.jsonl).
_REUSE = 128 * 128 / (128 + 128)
# A tile's operands come in steps of a line of 128 bytes.
_LINE_BYTES = 128
# Parts into which the contracted dimension is cut, and how deep a part is at least.
_PARTS, _LEAST_DEPTH = (1, 2, 4, 8, 16), 256
# The terms of a sum are float32 whatever its type.
_TERM_BYTES = 4
# Rows of a systolic array's operand come in groups of eight, the sublanes of a TPU's register.
_SUBLANES = 8


@dataclass(frozen=True)
class Product:
    """The share of one device: `batch` products of `rows` x `depth` with `depth` x `columns`.
    `aligned` is whether all rows in memory fill whole words of 16 bytes, `across` how many of the
    operands have another dimension innermost than what is contracted, `across_elements` how many
    elements those have."""

    batch: int
    rows: int
    columns: int
    depth: int
    itemsize: int
    aligned: bool = True
    across: int = 0
    across_elements: int = 0

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.columns * self.depth


@dataclass(frozen=True)
class Processors:
    """What computes products: `cores` that take a tile each, or a systolic array of side `unit`; 0
    for none. They reach `rate` FLOP/s together, the share `unaligned` of it where rows are not
    aligned; a kernel takes at least `least_seconds`, and moves `bandwidth` bytes/s to and from
    memory."""

    rate: float
    cores: int
    unit: int
    unaligned: float
    least_seconds: float
    bandwidth: float


@lru_cache(maxsize=65536)
def arithmetic_seconds(product: Product, processors: Processors) -> float:
    """Of the product alone, as if operands were there: at least its FLOPs over the rate."""
    seconds = product.flops / processors.rate
    if not product.aligned:
        seconds /= processors.unaligned
    if processors.unit:
        seconds *= _filled(product.columns, processors.unit) * _filled(
            product.depth, processors.unit
        )
        seconds *= _filled(product.rows, _SUBLANES)
    if processors.cores:
        seconds = min(
            seconds * factor + _sum_seconds(product, parts, processors)
            for parts, factor in _of_tiles(product, processors.cores)
        )
    return seconds


def _sum_seconds(product: Product, parts: int, processors: Processors) -> float:
    """Of a second kernel, which adds up what the parts of the contracted dimension have written."""
    if parts == 1:
        return 0.0
    terms = product.batch * product.rows * product.columns * parts
    return processors.least_seconds + 2 * _TERM_BYTES * terms / processors.bandwidth


def _filled(extent: int, step: int) -> float:
    return ceil(extent / step) * step / extent


def _of_tiles(product: Product, cores: int) -> Iterator[tuple[int, float]]:
    """For each tile and number of parts: time of all waves over that of the FLOPs on all cores."""
    step = max(1, _LINE_BYTES // product.itemsize)
    for rows, columns in _TILES:
        tiles = product.batch * ceil(product.rows / rows) * ceil(product.columns / columns)
        load = max(1.0, _REUSE * (rows + columns) / (rows * columns))
        for parts in _parts(product.depth):
            depth = ceil(product.depth / parts / step) * step
            waves = ceil(tiles * parts / cores)
            done = 2.0 * rows * columns * depth * waves * cores
            yield parts, load * done / product.flops


def _parts(depth: int) -> Iterable[int]:
    return (parts for parts in _PARTS if parts == 1 or depth >= parts * _LEAST_DEPTH)

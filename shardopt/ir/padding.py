"""Padding behind the last elements of each dimension: left out, and put on."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.splats import splat_constant


def without_padding(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The first `shape` of a tensor: a slice."""
    return stablehlo.SliceOp(value, [0] * len(shape), shape, [1] * len(shape)).result


def with_padding(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The tensor with zeros up to `shape`: a pad, of which the constant is the second operand."""
    inner = ir.RankedTensorType(value.type)
    zero = splat_constant(ir.RankedTensorType.get([], inner.element_type), 0)
    none, high = [0] * inner.rank, [p - n for p, n in zip(shape, inner.shape, strict=True)]
    return stablehlo.PadOp(value, zero, none, high, none).result

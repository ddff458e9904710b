"""Gathers and scatters at `i // k`: each row k times, and k rows added up.

    %t = divide(%iota, 2)                            8
    %r = gather(%x, %t)                              4x3 -> 8x3
 =>
    %i = iota dim = 0                                4x2x1
    %r = reshape(gather(%x, %i))                     4x3 -> 4x2x3 -> 8x3

as a mixture of experts does that takes each token for its first experts. The index is the
coordinate of a row then, as `shardopt-batch-gathers` wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import defining, shape_of
from shardopt.ir.splats import read_splat
from shardopt.passes.importing.indexing import read_indexing, write_indexing
from shardopt.passes.importing.prefix_counts import direction

# More rows than this are no batch of tokens; evaluating what computes their numbers takes time.
_MAX_ROWS = 1 << 24

_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def split_repeats(op: ir.Operation) -> ir.Operation:
    """A gather or scatter at `i // k` as one at the coordinates of two dimensions, in its place;
    any other as it is."""
    indexing = read_indexing(op)
    indices, is_gather = op.operands[1], op.name == "stablehlo.gather"
    if (not is_gather and len(op.operands) != 3) or len(indexing.index_map) != 1:
        return op
    [dim], rows = indexing.index_map, prod(shape_of(indices))
    size, element = shape_of(op.operands[0])[dim], ir.RankedTensorType(indices.type).element_type
    is_plain = dim in indexing.collapsed and not indexing.operand_batch
    if not is_plain or not 1 < size < rows <= _MAX_ROWS or rows % size:
        return op
    numbers = _Numbers().of(indices)
    count = rows // size
    if numbers is None or not np.array_equal(numbers.ravel(), np.arange(rows) // count):
        return op
    # The rows of the result, or of the updates, lie along one dimension.
    wide = shape_of(op.results[0] if is_gather else op.operands[2])
    places = [d for d in range(len(wide)) if d not in indexing.window_dims and wide[d] == rows]
    if len(places) != 1 or len(indexing.window_dims) != len(wide) - 1:
        return op
    [place] = places
    split = [*wide[:place], size, count, *wide[place + 1 :]]
    with ir.InsertionPoint(op):
        shape = ir.RankedTensorType.get([size, count, 1], element)
        copy = op.clone(ip=ir.InsertionPoint(op))
        with ir.InsertionPoint(copy):
            copy.operands[1] = stablehlo.IotaOp(shape, 0).result
            if not is_gather:
                copy.operands[2] = shapes.reshape(op.operands[2], split)
        if is_gather:
            copy.results[0].set_type(shapes.tensor_like(op.results[0], split))
        made = shapes.reshape(copy.results[0], wide) if is_gather else copy.results[0]
    windows = tuple(d + (d > place) for d in indexing.window_dims)
    write_indexing(copy, replace(indexing, window_dims=windows, vector_dim=2))
    op.results[0].replace_all_uses_with(made)
    op.erase()
    return copy


class _Numbers:
    """The elements of integer tensors that are computed from constants and coordinates alone."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, np.ndarray | None] = {}

    def of(self, value: ir.Value) -> np.ndarray | None:
        if value not in self._known:
            self._known[value] = self._evaluate(value)
        return self._known[value]

    def _evaluate(self, value: ir.Value) -> np.ndarray | None:
        op, shape = defining(value), shape_of(value)
        dtype = _dtype(value)
        if op is None or dtype is None or prod(shape) > _MAX_ROWS:
            return None
        if op.name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            sizes = [n if d == dim else 1 for d, n in enumerate(shape)]
            return np.broadcast_to(np.arange(shape[dim], dtype=dtype).reshape(sizes), shape)
        if op.name == "stablehlo.constant":
            splat = read_splat(op)
            return None if splat is None else np.broadcast_to(np.array(splat, dtype), shape)
        rule = _RULES.get(op.name)
        operands = [self.of(operand) for operand in op.operands] if rule is not None else []
        known = [operand for operand in operands if operand is not None]
        if rule is None or len(known) != len(operands):
            return None
        with np.errstate(all="ignore"):
            made = rule(op, *known)
        return None if made is None else np.broadcast_to(made.astype(dtype, copy=False), shape)


def _dtype(value: ir.Value) -> np.dtype | None:
    element = ir.RankedTensorType(value.type).element_type
    if not isinstance(element, ir.IntegerType) or element.width not in (1, 8, 16, 32, 64):
        return None
    if element.width == 1:
        return np.dtype(bool)
    return np.dtype(f"{'u' if element.is_unsigned else ''}int{element.width}")


def _laid(op: ir.Operation, a: np.ndarray) -> np.ndarray | None:
    dims, shape = shapes.dimensions(op, "broadcast_dimensions"), shape_of(op.results[0])
    if list(dims) != sorted(dims):
        return None
    sizes = [1] * len(shape)
    for d, size in zip(dims, a.shape, strict=True):
        sizes[d] = size
    return a.reshape(sizes)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Rounded to zero; nothing where the divisor may be zero or something negative."""
    return a // b if b.size and b.min() > 0 and (not a.size or a.min() >= 0) else None


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return a % b if b.size and b.min() > 0 and (not a.size or a.min() >= 0) else None


def _selected(_: ir.Operation, predicate: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = np.where(predicate, a, b)
    return chosen


_RULES: dict[str, Callable[..., np.ndarray | None]] = {
    "stablehlo.add": lambda op, a, b: a + b,
    "stablehlo.and": lambda op, a, b: a & b,
    "stablehlo.broadcast_in_dim": _laid,
    "stablehlo.clamp": lambda op, low, a, high: np.minimum(np.maximum(a, low), high),
    "stablehlo.compare": lambda op, a, b: _COMPARE[direction(op)](a, b),
    "stablehlo.convert": lambda op, a: a,
    "stablehlo.divide": lambda op, a, b: _quotient(a, b),
    "stablehlo.maximum": lambda op, a, b: np.maximum(a, b),
    "stablehlo.minimum": lambda op, a, b: np.minimum(a, b),
    "stablehlo.not": lambda op, a: ~a,
    "stablehlo.or": lambda op, a, b: a | b,
    "stablehlo.remainder": lambda op, a, b: _remainder(a, b),
    "stablehlo.reshape": lambda op, a: a.reshape(shape_of(op.results[0])),
    "stablehlo.select": _selected,
    "stablehlo.sign": lambda op, a: np.sign(a),
    "stablehlo.subtract": lambda op, a, b: a - b,
}

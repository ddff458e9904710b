"""Prove that an integer tensor holds its own coordinate along one dimension, as `iota` does.

Frontends write `x[arange(n), labels]` as an index tensor whose first component is such a
coordinate, and wrap negative indices (`select(i < 0, i + n, i)`) or clamp them on the way. None of
that changes a coordinate, which lies in [0, n)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir

from shardopt.ir.rewriting import defining, past_barriers, shape_of
from shardopt.ir.shapes import dimensions
from shardopt.passes.importing.known_integers import direction, known_integers

# More elements are no limits and no position table, and evaluating them takes time.
_MAX_TABLE_ELEMENTS = 1 << 20

# What moves or repeats elements, but makes no new ones.
_ELEMENT_PRESERVING = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")


def coordinate_dim(value: ir.Value) -> int | None:
    """The dimension d such that `value[i0, …, in] == i_d` everywhere, or None if that is not
    evident."""
    value = past_barriers(value)
    type_ = ir.RankedTensorType(value.type)
    op = defining(value)
    if op is None or not isinstance(type_.element_type, ir.IntegerType):
        return None
    rule = _RULES.get(op.name)
    dim = rule(op) if rule is not None else None
    if dim is None or type_.shape[dim] - 1 > _largest(ir.IntegerType(type_.element_type)):
        return None  # the coordinate would overflow the element type
    return dim


def bounds(value: ir.Value) -> tuple[int, int] | None:
    """The smallest and largest element of an integer tensor that is computed from constants and
    coordinates alone, or None."""
    while (op := defining(past_barriers(value))) is not None and op.name in _ELEMENT_PRESERVING:
        value = op.operands[0]
    table = known_integers(value, _MAX_TABLE_ELEMENTS)
    return None if table is None or table.size == 0 else (int(table.min()), int(table.max()))


def _largest(element: ir.IntegerType) -> int:
    return (1 << (element.width if element.is_unsigned else element.width - 1)) - 1


def _of_iota(op: ir.Operation) -> int | None:
    return ir.IntegerAttr(op.attributes["iota_dimension"]).value


def _of_constant(op: ir.Operation) -> int | None:
    shape = shape_of(op.results[0])
    table = known_integers(op.results[0], _MAX_TABLE_ELEMENTS)
    if table is None:
        return None
    matches = (d for d, size in enumerate(shape) if np.array_equal(table, _ramp(shape, d, size)))
    return next(matches, None)


def _ramp(shape: tuple[int, ...], dim: int, size: int) -> np.ndarray:
    ramp = np.arange(size).reshape([size if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(ramp, shape)


def _of_operand(op: ir.Operation) -> int | None:
    return coordinate_dim(op.operands[0])


def _of_broadcast(op: ir.Operation) -> int | None:
    inner = coordinate_dim(op.operands[0])
    if inner is None:
        return None
    dim = dimensions(op, "broadcast_dimensions")[inner]
    return dim if shape_of(op.operands[0])[inner] == shape_of(op.results[0])[dim] else None


def _of_reshape(op: ir.Operation) -> int | None:
    """Only dimensions of size 1 may come or go."""
    inner = coordinate_dim(op.operands[0])
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    kept = [d for d, size in enumerate(before) if size != 1]
    moved = [d for d, size in enumerate(after) if size != 1]
    if inner not in kept or [before[d] for d in kept] != [after[d] for d in moved]:
        return None
    return moved[kept.index(inner)]


def _of_transpose(op: ir.Operation) -> int | None:
    inner = coordinate_dim(op.operands[0])
    return None if inner is None else dimensions(op, "permutation").index(inner)


def _of_select(op: ir.Operation) -> int | None:
    """`select(i < 0, …, i)`: a coordinate is never negative. Also when both branches hold the same
    coordinate."""
    predicate, on_true, on_false = op.operands
    dim = coordinate_dim(on_false)
    if dim is None or coordinate_dim(on_true) == dim:
        return dim
    compare = defining(predicate, "stablehlo.compare")
    if compare is None or coordinate_dim(compare.operands[0]) is None:
        return None
    limits = bounds(compare.operands[1])
    return dim if direction(compare) == "LT" and limits is not None and limits[1] <= 0 else None


def _of_clamp(op: ir.Operation) -> int | None:
    low, value, high = op.operands
    dim, lows, highs = coordinate_dim(value), bounds(low), bounds(high)
    if dim is None or lows is None or highs is None:
        return None
    return dim if lows[1] <= 0 and highs[0] >= shape_of(value)[dim] - 1 else None


def _of_arithmetic(op: ir.Operation) -> int | None:
    """Adding or subtracting zero, multiplying by one."""
    neutral = 1 if op.name == "stablehlo.multiply" else 0
    left, right = op.operands
    for value, other in ((left, right), (right, left)):
        # Only what is subtracted may be the zero: `0 - i` is no coordinate.
        if bounds(other) == (neutral, neutral) and (
            op.name != "stablehlo.subtract" or other == right
        ):
            return coordinate_dim(value)
    return None


def _of_limited(op: ir.Operation) -> int | None:
    """A maximum with something not positive, or a minimum with something at least the last
    coordinate."""
    for value, other in (tuple(op.operands), tuple(op.operands)[::-1]):
        dim, limits = coordinate_dim(value), bounds(other)
        if dim is None or limits is None:
            continue
        idle = (
            limits[1] <= 0
            if op.name == "stablehlo.maximum"
            else limits[0] >= shape_of(value)[dim] - 1
        )
        return dim if idle else None
    return None


_RULES: dict[str, Callable[[ir.Operation], int | None]] = {
    "stablehlo.add": _of_arithmetic,
    "stablehlo.broadcast_in_dim": _of_broadcast,
    "stablehlo.clamp": _of_clamp,
    "stablehlo.constant": _of_constant,
    "stablehlo.convert": _of_operand,
    "stablehlo.iota": _of_iota,
    "stablehlo.maximum": _of_limited,
    "stablehlo.minimum": _of_limited,
    "stablehlo.multiply": _of_arithmetic,
    "stablehlo.reshape": _of_reshape,
    "stablehlo.select": _of_select,
    "stablehlo.subtract": _of_arithmetic,
    "stablehlo.transpose": _of_transpose,
}

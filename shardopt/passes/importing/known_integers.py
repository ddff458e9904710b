"""The elements of integer tensors that are computed from constants and coordinates alone: position
tables, limits of clamps, numbers of rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.rewriting import defining, past_barriers, shape_of
from shardopt.ir.scalars import wrap
from shardopt.ir.shapes import dimensions

# Larger constants are data; nobody writes a position table of this size as a literal, and reading
# it costs time.
_MAX_LITERAL = 1 << 20
# Nobody computes a position table in more steps; a counter of a loop that was written out has one
# for each iteration.
_MAX_VALUES = 128


def known_integers(value: ir.Value, most: int) -> np.ndarray | None:
    """The elements of `value`, `[*shape]`, of its own width, which wrap as StableHLO's do; None
    where they depend on anything but constants, are computed in many steps, or where some value on
    the way has more than `most` elements."""
    found: dict[ir.Value, np.ndarray] = {}
    return _evaluated(value, found) if _is_computed(value, most, set()) else None


def direction(compare: ir.Operation) -> str:
    attribute = compare.attributes["comparison_direction"]
    return str(stablehlo.ComparisonDirectionAttr(attribute).value)


def _is_computed(value: ir.Value, most: int, seen: set[ir.Value]) -> bool:
    """Whether all that a value is computed from has a rule and is not too much, so that nothing is
    computed in vain."""
    value = past_barriers(value)
    if value in seen:
        return True
    seen.add(value)
    op = defining(value)
    if op is None or op.name not in _RULES or _dtype(value) is None or len(seen) > _MAX_VALUES:
        return False
    if prod(shape_of(value)) > most:
        return False
    return all(_is_computed(operand, most, seen) for operand in op.operands)


def _evaluated(value: ir.Value, found: dict[ir.Value, np.ndarray]) -> np.ndarray | None:
    value = past_barriers(value)
    if value in found:
        return found[value]
    op = defining(value)
    assert op is not None
    operands = []
    for operand in op.operands:
        known = _evaluated(operand, found)
        if known is None:
            return None
        operands.append(known)
    with np.errstate(all="ignore"):
        made = _RULES[op.name](op, *operands)
    if made is None:
        return None
    found[value] = np.broadcast_to(made.astype(_dtype(value), copy=False), shape_of(value))
    return found[value]


def _dtype(value: ir.Value) -> np.dtype | None:
    """None of what numpy has no integers of (i4)."""
    element = ir.RankedTensorType(value.type).element_type
    if not isinstance(element, ir.IntegerType) or element.width not in (1, 8, 16, 32, 64):
        return None
    if element.width == 1:
        return np.dtype(bool)
    return np.dtype(f"{'u' if element.is_unsigned else ''}int{element.width}")


def _literal(op: ir.Operation) -> np.ndarray | None:
    attribute = op.attributes["value"]
    element = ir.RankedTensorType(op.results[0].type).element_type
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    if attribute.is_splat:
        number = wrap(int(ir.DenseIntElementsAttr(attribute)[0]), ir.IntegerType(element))
        return np.array(number, _dtype(op.results[0]))
    if prod(shape_of(op.results[0])) > _MAX_LITERAL or ir.IntegerType(element).width == 1:
        return None
    return np.array(attribute)


def _iota(op: ir.Operation) -> np.ndarray | None:
    shape, dim = shape_of(op.results[0]), ir.IntegerAttr(op.attributes["iota_dimension"]).value
    dtype = _dtype(op.results[0])
    if dtype == np.dtype(bool) or (dtype and shape[dim] - 1 > np.iinfo(dtype).max):
        return None  # what does not fit is up to the compiler
    return np.arange(shape[dim]).reshape([n if d == dim else 1 for d, n in enumerate(shape)])


def _laid(op: ir.Operation, a: np.ndarray) -> np.ndarray:
    # numpy aligns by position, so put each dimension where it goes and ones elsewhere.
    dims = dimensions(op, "broadcast_dimensions")
    order = np.argsort(dims)
    sizes = [1] * len(shape_of(op.results[0]))
    for i in order:
        sizes[dims[i]] = a.shape[i]
    return a.transpose(order).reshape(sizes)


def _sliced(op: ir.Operation, a: np.ndarray) -> np.ndarray:
    names = ("start_indices", "limit_indices", "strides")
    windows = zip(*(dimensions(op, name) for name in names), strict=True)
    return a[tuple(slice(*window) for window in windows)]


def _concatenated(op: ir.Operation, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=ir.IntegerAttr(op.attributes["dimension"]).value)


def _quotient(_: ir.Operation, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Rounded to zero; nothing where the divisor may be zero or something negative."""
    return a // b if b.size and b.min() > 0 and (not a.size or a.min() >= 0) else None


def _remainder(_: ir.Operation, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return a % b if b.size and b.min() > 0 and (not a.size or a.min() >= 0) else None


def _selected(_: ir.Operation, predicate: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = np.where(predicate, a, b)
    return chosen


_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}

_RULES: dict[str, Callable[..., np.ndarray | None]] = {
    "stablehlo.add": lambda op, a, b: a + b,
    "stablehlo.and": lambda op, a, b: a & b,
    "stablehlo.broadcast_in_dim": _laid,
    "stablehlo.clamp": lambda op, low, a, high: np.minimum(np.maximum(a, low), high),
    "stablehlo.compare": lambda op, a, b: _COMPARE[direction(op)](a, b),
    "stablehlo.concatenate": _concatenated,
    "stablehlo.constant": _literal,
    "stablehlo.convert": lambda op, a: a,
    "stablehlo.divide": _quotient,
    "stablehlo.iota": _iota,
    "stablehlo.maximum": lambda op, a, b: np.maximum(a, b),
    "stablehlo.minimum": lambda op, a, b: np.minimum(a, b),
    "stablehlo.multiply": lambda op, a, b: a * b,
    "stablehlo.not": lambda op, a: ~a,
    "stablehlo.or": lambda op, a, b: a | b,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": lambda op, a: a.reshape(shape_of(op.results[0])),
    "stablehlo.reverse": lambda op, a: np.flip(a, dimensions(op, "dimensions")),
    "stablehlo.select": _selected,
    "stablehlo.sign": lambda op, a: np.sign(a),
    "stablehlo.slice": _sliced,
    "stablehlo.subtract": lambda op, a, b: a - b,
    "stablehlo.transpose": lambda op, a: a.transpose(dimensions(op, "permutation")),
}

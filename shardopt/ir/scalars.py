"""Evaluate integer scalars at compile time: loop counters, the indices computed from them, and
predicates.

Values are Python integers in the range of their type (i1 is 0 or 1), and wrap as StableHLO's
arithmetic does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.rewriting import defining

# Longest chain of scalar operations that is followed; counters are a handful of operations away
# from constants.
_MAX_DEPTH = 64


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}

_FOLDS: dict[str, Callable[..., int]] = {
    "stablehlo.abs": abs,
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.and": lambda a, b: a & b,
    "stablehlo.clamp": lambda low, x, high: min(max(x, low), high),
    "stablehlo.convert": lambda a: a,
    "stablehlo.divide": _divide,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.negate": lambda a: -a,
    "stablehlo.not": lambda a: ~a,
    "stablehlo.or": lambda a, b: a | b,
    "stablehlo.remainder": lambda a, b: a - b * _divide(a, b),
    "stablehlo.reshape": lambda a: a,
    "stablehlo.select": lambda p, a, b: a if p else b,
    "stablehlo.sign": lambda a: (a > 0) - (a < 0),
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.xor": lambda a, b: a ^ b,
}


def is_scalar(type_: ir.Type) -> bool:
    """Whether the type is a tensor of rank 0 of integers or booleans."""
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.rank == 0
        and isinstance(type_.element_type, ir.IntegerType)
    )


def wrap(number: int, type_: ir.IntegerType) -> int:
    """`number` modulo 2^width, in the range of the type; signless types count as signed, i1 as 0 or
    1."""
    number &= (1 << type_.width) - 1
    if type_.is_unsigned or type_.width == 1 or number < 1 << (type_.width - 1):
        return number
    return number - (1 << type_.width)


def evaluate(value: ir.Value, bound: Mapping[ir.Value, int | None] | None = None) -> int | None:
    """The number that the integer scalar `value` always holds, or None; `bound` says what other
    values hold."""
    return _evaluate(value, dict(bound or {}), 0)


def _evaluate(value: ir.Value, seen: dict[ir.Value, int | None], depth: int) -> int | None:
    if value not in seen:
        seen[value] = _compute(value, seen, depth)
    return seen[value]


def _compute(value: ir.Value, seen: dict[ir.Value, int | None], depth: int) -> int | None:
    op = defining(value)
    if op is None or depth > _MAX_DEPTH or not is_scalar(value.type):
        return None
    if op.name == "stablehlo.constant":
        return _constant(op, value)
    if not is_foldable(op):
        return None
    operands: list[int] = []
    for operand in op.operands:
        number = _evaluate(operand, seen, depth + 1)
        if number is None:
            return None
        operands.append(number)
    return fold(op, operands)


def fold(op: ir.Operation, operands: Sequence[int]) -> int | None:
    """The result of a scalar operation on numbers, or None where StableHLO leaves it open (division
    by zero)."""
    if op.name == "stablehlo.compare":
        return int(
            _COMPARE[
                stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
            ](*operands)
        )
    if op.name in ("stablehlo.divide", "stablehlo.remainder") and operands[1] == 0:
        return None
    element = ir.IntegerType(ir.RankedTensorType(op.results[0].type).element_type)
    if element.width == 1 and op.name in ("stablehlo.convert", "stablehlo.add"):
        return int(any(operands))  # to a boolean, conversion is "not zero" and addition is "or"
    return wrap(_FOLDS[op.name](*operands), element)


def is_foldable(op: ir.Operation) -> bool:
    """Whether `op` computes an integer scalar from others and could be evaluated."""
    return (op.name in _FOLDS or op.name == "stablehlo.compare") and is_scalar(op.results[0].type)


def scalar_constant(number: int, type_: ir.Type) -> ir.Value:
    """A new constant of a rank-0 integer type at the current insertion point."""
    element = ir.IntegerType(ir.RankedTensorType(type_).element_type)
    # IntegerAttr takes the bits of an unsigned number as a signed one
    signed = (
        number
        if number < 1 << (element.width - 1) or element.width == 1
        else number - (1 << element.width)
    )
    attribute = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(element, signed))
    return stablehlo.ConstantOp(attribute).result


def _constant(op: ir.Operation, value: ir.Value) -> int:
    element = ir.IntegerType(ir.RankedTensorType(value.type).element_type)
    return wrap(int(ir.DenseIntElementsAttr(op.attributes["value"])[0]), element)

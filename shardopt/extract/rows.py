"""Rows of values: which of them an operation takes or makes, and what makes rows of rows.

Rows are those along one dimension, as a scan over layers has its weights in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from jaxlib.mlir import ir

from shardopt.dialect.annotation import SHARDING, is_marker, read_annotation
from shardopt.extract.op_graph import read_rule
from shardopt.ir.loops import BRANCHES
from shardopt.ir.rewriting import defining, has_user_attribute, shape_of
from shardopt.ir.scalars import evaluate
from shardopt.ir.shapes import dimensions

CONCATENATE, SLICE, PAD = "stablehlo.concatenate", "stablehlo.slice", "stablehlo.pad"
UPDATE = "stablehlo.dynamic_update_slice"
# Of which a part is not what the same operation makes of parts, whatever their rules say.
NEVER_BY_ROWS = frozenset(
    {
        "stablehlo.convolution",
        "stablehlo.custom_call",
        "stablehlo.rng",
        "stablehlo.rng_bit_generator",
        "stablehlo.scatter",
        "stablehlo.while",
    }
)


class Rows(NamedTuple):
    """Those of a value from `start` on, before `stop`."""

    dim: int
    start: int
    stop: int

    def of(self, outer: Rows) -> Rows | None:
        """These rows of `outer` rows as rows of what those are of, None for another dimension."""
        if outer.dim != self.dim:
            return None
        return Rows(self.dim, outer.start + self.start, outer.start + self.stop)


# A value, and which rows of it; None stands for all.
Source = tuple[ir.Value, Rows | None]


def source_of(value: ir.Value) -> Source:
    """The argument of `@main` that a captured value is a cast or reshape of, or of rows of, else
    the value itself."""
    rows = None
    while (producer := defining(value)) is not None:
        if (taken := sliced_rows(producer)) is not None:
            if rows is not None and (taken := rows.of(taken)) is None:
                break
            value, rows = producer.operands[0], taken
            continue
        same = [v for v in producer.operands if _elements(v) == _elements(value)]
        if len(same) != 1 or (rows is not None and shape_of(same[0]) != shape_of(value)):
            break
        value = same[0]
    return value, rows


def sliced_rows(op: ir.Operation) -> Rows | None:
    """Which rows of its operand a slice takes, if it takes rows of one dimension."""
    if op.name != SLICE or set(dimensions(op, "strides")) - {1}:
        return None
    starts, stops = (dimensions(op, name) for name in ("start_indices", "limit_indices"))
    return _of_one_dimension(starts, stops, shape_of(op.operands[0]))


class Padding(NamedTuple):
    """Row r of what is padded along `dim` is row `low` + r * `stride` of the result."""

    dim: int
    low: int
    stride: int

    def row(self, of_result: int, count: int) -> int | None:
        """Which of `count` rows of what is padded a row of the result is, None for an added one."""
        row, rest = divmod(of_result - self.low, self.stride)
        return row if 0 <= row < count and not rest else None


def padding_of(op: ir.Operation) -> Padding | None:
    """How rows stand in the result of a padding that adds rows along one dimension only, and leaves
    out none."""
    if op.name != PAD:
        return None
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    amounts = enumerate(zip(*(dimensions(op, name) for name in names), strict=True))
    [*padded] = ((dim, each) for dim, each in amounts if any(each))
    if len(padded) != 1 or min(padded[0][1]) < 0:
        return None
    dim, (low, _, interior) = padded[0]
    return Padding(dim, low, interior + 1)


def padded_rows(op: ir.Operation) -> Rows | None:
    """Which rows of its result a padding leaves to its operand, if these stand one behind the
    other, and it adds rows along one dimension only."""
    padding = padding_of(op)
    if padding is None or padding.stride != 1:
        return None
    stop = padding.low + shape_of(op.operands[0])[padding.dim]
    return Rows(padding.dim, padding.low, stop)


def _of_one_dimension(
    starts: Sequence[int], stops: Sequence[int], shape: Sequence[int]
) -> Rows | None:
    """That part of a value of this shape as rows of one dimension, None where it is no such."""
    spans = enumerate(zip(starts, stops, shape, strict=True))
    some = [Rows(dim, low, high) for dim, (low, high, size) in spans if (low, high) != (0, size)]
    is_inside = len(some) == 1 and 0 <= some[0].start < some[0].stop <= shape[some[0].dim]
    return some[0] if is_inside else None


def pieces(op: ir.Operation) -> Iterator[tuple[ir.Value, Rows]]:
    """The operands of a concatenation, with the rows of its result that each makes."""
    dim, begin = ir.IntegerAttr(op.attributes["dimension"]).value, 0
    for operand in op.operands:
        end = begin + shape_of(operand)[dim]
        yield operand, Rows(dim, begin, end)
        begin = end


def update_row(op: ir.Operation, dim: int) -> int | None:
    """The row along `dim` at which a dynamic_update_slice writes, if that is known."""
    start = evaluate(op.operands[2 + dim])
    if start is None:
        return None
    extent, size = shape_of(op.operands[0])[dim], shape_of(op.operands[1])[dim]
    return min(max(start, 0), extent - size)


def operand_dims(op: ir.Operation, result: int, dim: int) -> tuple[int | None, ...] | None:
    """Along which dimension each operand of an operation is needed, None where all of it is, for
    rows of a result along `dim` to be what the operation makes of rows; None where they are not."""
    if is_marker(op):
        said = op.attributes.get(SHARDING, None)
        return None if splits_along(said, dim) else (dim,)
    if op.name in (*NEVER_BY_ROWS, *BRANCHES) or has_user_attribute(op):
        return None
    rule = read_rule(op)
    if rule is None or len(rule.results[result][dim]) != 1:
        return None
    [factor] = rule.results[result][dim]
    if factor in rule.need_replication | rule.permutation | rule.reduction:
        return None
    tensors = (*rule.operands, *rule.results)
    if any(factor in dim_ and len(dim_) > 1 for tensor in tensors for dim_ in tensor):
        return None
    found = tuple(dim_of(factor, mapping) for mapping in rule.operands)
    wide = [
        shape_of(operand)[d] for operand, d in zip(op.operands, found, strict=True) if d is not None
    ]
    if not wide and op.name == "stablehlo.broadcast_in_dim":
        return found  # all rows are alike
    return found if set(wide) == {shape_of(op.results[result])[dim]} else None


def splits_along(said: ir.Attribute | None, dim: int) -> bool:
    """Whether an annotation splits a dimension, or is of another rank."""
    if said is None:
        return False
    annotation = read_annotation(said)
    return dim >= annotation.rank or bool(annotation.dims[dim])


def is_elementwise(op: ir.Operation) -> bool:
    """Whether each element of the one result is made of the elements in its place, and of
    scalars."""
    rule = read_rule(op)
    if rule is None or len(op.regions) or len(op.results) != 1 or len(op.operands) == 0:
        return False
    moving = rule.need_replication | rule.permutation | rule.reduction
    own = rule.results[0]
    is_plain = all(len(factors) == 1 for factors in own)
    return is_plain and not moving and all(each in (own, ()) for each in rule.operands)


def result_dims(op: ir.Operation, result: int, dim: int) -> tuple[int, ...] | None:
    """Along which dimension each result of an operation is had when one of them is had by rows
    along `dim`; None if one is not."""
    if len(op.results) == 1:
        return (dim,)
    rule = read_rule(op)
    if rule is None:
        return None
    [factor] = rule.results[result][dim]
    found = tuple(dim_of(factor, mapping) for mapping in rule.results)
    return None if None in found else tuple(each for each in found if each is not None)


def dim_of(factor: int, mapping: Sequence[Sequence[int]]) -> int | None:
    return next((d for d, factors in enumerate(mapping) if factor in factors), None)


def _elements(value: ir.Value) -> int:
    return prod(shape_of(value)) if isinstance(value.type, ir.RankedTensorType) else -1

"""Rows that stand in several equal segments of one dimension, as steps of pairs have them.

    %b = concatenate %chosen, %rejected, dim = 0     8x4, 8x4 -> 16x4: rows of 2 segments of 8
    %l = slice %b [0:8, 0:4]                         one of them
    %g = pad %l, low = [8, 0]                        one of them, the others are filled
    %u = concatenate %few, %many, dim = 0            8x4, 24x4 -> 32x4: 1 and 3 segments

To Shardy all of these move data along the dimension. Row by row they do not: block i of the rows is
in each segment what it is in the others. So the dimension is a factor of segments, which may not be
cut, and one of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from jaxlib.mlir import ir

from shardopt.graph.op_graph import FactorRule, Op
from shardopt.ir.rewriting import shape_of


@dataclass(frozen=True)
class _Segments:
    """How many segments of so many `rows` the operands and the result have."""

    rows: int
    operands: tuple[int, ...]
    result: int


def with_segments(op: Op, handle: ir.Operation) -> Op:
    """`op` with a rule that tells segments from their rows, if `handle` makes or takes any."""
    if op.rule is None or handle.name not in _SEGMENTS:
        return op
    rule = op.rule
    for dim, segments in _SEGMENTS[handle.name](handle).items():
        rule = _told_apart(rule, dim, segments)
    return replace(op, rule=rule)


def _told_apart(rule: FactorRule, dim: int, segments: _Segments) -> FactorRule:
    row = len(rule.sizes)
    sizes = [*rule.sizes, segments.rows]
    moved = set(rule.need_replication)

    def mapping(dims: tuple[tuple[int, ...], ...], count: int) -> tuple[tuple[int, ...], ...]:
        factors: tuple[int, ...] = (row,)
        if count > 1:
            factors = (len(sizes), row)
            moved.add(len(sizes))
            sizes.append(count)
        return (*dims[:dim], factors, *dims[dim + 1 :])

    counts = segments.operands
    operands = [mapping(dims, count) for dims, count in zip(rule.operands, counts, strict=False)]
    results = [mapping(dims, segments.result) for dims in rule.results]
    # The number that a padding consists of has no dimensions.
    operands += rule.operands[len(counts) :]
    return replace(
        rule,
        sizes=tuple(sizes),
        operands=tuple(operands),
        results=tuple(results),
        need_replication=frozenset(moved),
    )


def _segments(ends: Sequence[int], operands: Sequence[int], result: int) -> _Segments | None:
    """Of as many rows as divide all `ends` and extents; None if that is a single one."""
    rows = gcd(*ends, *operands, result)
    if rows < 2:
        return None
    return _Segments(rows, tuple(extent // rows for extent in operands), result // rows)


def _put_together(op: ir.Operation) -> Mapping[int, _Segments]:
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    extents = [shape_of(operand)[dim] for operand in op.operands]
    found = _segments((), extents, sum(extents)) if len(extents) > 1 else None
    return {} if found is None else {dim: found}


def _taken(op: ir.Operation) -> Mapping[int, _Segments]:
    segments = {}
    starts, limits, strides = (
        _numbers(op, name) for name in ("start_indices", "limit_indices", "strides")
    )
    for dim, extent in enumerate(shape_of(op.operands[0])):
        taken = limits[dim] - starts[dim]
        if strides[dim] == 1 and 0 < taken < extent:
            found = _segments((starts[dim],), (extent,), taken)
            segments.update({} if found is None else {dim: found})
    return segments


def _filled(op: ir.Operation) -> Mapping[int, _Segments]:
    segments = {}
    lows, highs, interiors = (
        _numbers(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    for dim, extent in enumerate(shape_of(op.operands[0])):
        low, high = lows[dim], highs[dim]
        if extent and interiors[dim] == 0 <= min(low, high) and low + high > 0:
            found = _segments((low,), (extent,), low + extent + high)
            segments.update({} if found is None else {dim: found})
    return segments


def _numbers(op: ir.Operation, name: str) -> Sequence[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


_SEGMENTS = {
    "stablehlo.concatenate": _put_together,
    "stablehlo.slice": _taken,
    "stablehlo.pad": _filled,
}

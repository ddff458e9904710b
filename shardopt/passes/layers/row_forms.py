"""Rows of stacks in their plainest form: a slice of the stack itself, and a concatenation of rows.

    %g = reshape %w : 6x8 -> 3x2x8                scans that take two layers in each turn, or whose
    %p = slice %g [1:2, 0:2, 0:8]                 turns have scans of their own
    %q = reshape %p : 1x2x8 -> 2x8         =>     %r = slice %w [2:3, 0:8]
    %r = slice %q [0:1, 0:8]

Elements that stand one behind the other do so in any shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.extract.rows import CONCATENATE, SLICE, sliced_rows
from shardopt.ir.rewriting import defining, has_user_attribute, replace_op, shape_of
from shardopt.ir.shapes import dimensions, reshape, slice_, transpose

_RESHAPE, _TRANSPOSE = "stablehlo.reshape", "stablehlo.transpose"

# Elements of a value, from the first on, before the second.
_Span = tuple[int, int]


def plain_rows(ops: Sequence[ir.Operation]) -> int:
    """Bring slices and concatenations among `ops`, which are in program order and may be erased,
    into that form; how many."""
    count = 0
    for op in ops:
        if op.name not in (SLICE, _RESHAPE) or has_user_attribute(op):
            continue
        with ir.InsertionPoint(op), op.location:
            value = _sliced(op) if op.name == SLICE else _joined(op)
        if value is not None:
            replace_op(op, [value])
            count += 1
    return count


def _sliced(op: ir.Operation) -> ir.Value | None:
    """What a slice takes, of the value that it takes it of in the end; None where it takes it as
    plainly already."""
    turned = _of_transpose(op)
    if turned is not None:
        return turned
    span = _span_of_slice(op)
    if span is None:
        return None
    value, moved = op.operands[0], False
    while (maker := defining(value)) is not None and not has_user_attribute(maker):
        if maker.name == SLICE:
            inner = _span_in_slice(maker, span)
            if inner is None:
                break
            span = inner
        elif maker.name != _RESHAPE:
            break
        value, moved = maker.operands[0], True
    window = _window(shape_of(value), span)
    if not moved or window is None:
        return None
    return reshape(slice_(value, *window), shape_of(op.results[0]))


def _of_transpose(op: ir.Operation) -> ir.Value | None:
    """Rows of a transpose as a transpose of rows, None for other slices."""
    maker, rows = defining(op.operands[0], _TRANSPOSE), sliced_rows(op)
    if maker is None or rows is None or has_user_attribute(maker):
        return None
    permutation = dimensions(maker, "permutation")
    starts, limits = [0] * len(permutation), list(shape_of(maker.operands[0]))
    starts[permutation[rows.dim]], limits[permutation[rows.dim]] = rows.start, rows.stop
    return transpose(slice_(maker.operands[0], starts, limits), permutation)


def _joined(op: ir.Operation) -> ir.Value | None:
    """A reshape of values that stand one behind the other as reshapes of each; None for others."""
    shape = shape_of(op.results[0])
    maker = defining(op.operands[0])
    while maker is not None and maker.name == _RESHAPE:
        maker = defining(maker.operands[0])
    if maker is None or maker.name != CONCATENATE or has_user_attribute(maker):
        return None
    row = prod(shape[1:])
    sizes = [prod(shape_of(operand)) for operand in maker.operands]
    if ir.IntegerAttr(maker.attributes["dimension"]).value or not row:
        return None
    if any(size % row for size in sizes):
        return None
    pieces = [
        reshape(operand, (size // row, *shape[1:]))
        for operand, size in zip(maker.operands, sizes, strict=True)
    ]
    return stablehlo.ConcatenateOp(pieces, 0).result


def _span_of_slice(op: ir.Operation) -> _Span | None:
    """Which elements of its operand a slice takes, if they stand one behind the other."""
    if set(dimensions(op, "strides")) - {1}:
        return None
    names = ("start_indices", "limit_indices")
    starts, limits = (dimensions(op, name) for name in names)
    shape = shape_of(op.operands[0])
    # Behind single indices one range, and behind that all.
    ranges = [dim for dim, (a, b) in enumerate(zip(starts, limits, strict=True)) if b - a != 1]
    first = ranges[0] if ranges else len(shape)
    if any((starts[dim], limits[dim]) != (0, shape[dim]) for dim in range(first + 1, len(shape))):
        return None
    begin = sum(start * prod(shape[dim + 1 :]) for dim, start in enumerate(starts))
    return begin, begin + prod(b - a for a, b in zip(starts, limits, strict=True))


def _span_in_slice(op: ir.Operation, span: _Span) -> _Span | None:
    """Elements of what a slice has taken, as elements of its operand."""
    whole = _span_of_slice(op)
    if whole is not None:
        return whole[0] + span[0], whole[0] + span[1]
    stride, *others = dimensions(op, "strides")
    start, *starts = dimensions(op, "start_indices")
    shape = shape_of(op.operands[0])
    is_rows = set(others) <= {1} and shape_of(op.results[0])[1:] == shape[1:] and not any(starts)
    row = prod(shape[1:])
    if not is_rows or not row or span[0] // row != (span[1] - 1) // row:
        return None  # of several rows, which stand apart
    begin = (start + span[0] // row * stride) * row + span[0] % row
    return begin, begin + span[1] - span[0]


def _window(shape: Sequence[int], span: _Span) -> tuple[list[int], list[int]] | None:
    """Elements that stand one behind the other as a window of a shape."""
    begin, end = span
    starts, limits = [0] * len(shape), list(shape)
    for dim in range(len(shape)):
        row = prod(shape[dim + 1 :])
        if not row or end <= begin:
            return None
        starts[dim], limits[dim] = begin // row, -(-end // row)
        if begin % row == 0 and end % row == 0:
            return starts, limits
        if limits[dim] - starts[dim] != 1:
            return None
        begin, end = begin - starts[dim] * row, end - starts[dim] * row
    return None

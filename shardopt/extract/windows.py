"""Read out of the IR how windows slide along dimensions: of convolutions, poolings, slices,
paddings and reversals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.graph.op_graph import FactorRule
from shardopt.graph.windows import Window
from shardopt.ir.rewriting import shape_of


def read_windows(op: ir.Operation, rule: FactorRule | None) -> tuple[Window, ...]:
    """The windows of the factors that `rule` says to move data, as far as their borders are
    known."""
    if rule is None or op.name not in _READERS:
        return ()
    return tuple(_READERS[op.name](op, rule))


def _factor(rule: FactorRule, dim: int, kinds: frozenset[int]) -> int | None:
    """The major factor of a dimension of operand 0, if it is of the kind."""
    factors = rule.operands[0][dim]
    return factors[0] if factors and factors[0] in kinds else None


def convolution_windows(op: ir.Operation) -> tuple[Window, ...]:
    """How the kernel moves along each of its spatial dimensions; there are no factors (-1)."""
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    source = shape_of(op.operands[0])
    kernel = shape_of(op.operands[1])
    target = shape_of(op.results[0])
    spatial = list(dims.input_spatial_dimensions)
    stride, spacing, dilation = (
        _numbers(op, name, [1] * len(spatial))
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    padding = _pairs(op, len(spatial))
    windows = []
    for k, dim in enumerate(spatial):
        extents = (
            source[dim],
            target[dims.output_spatial_dimensions[k]],
            kernel[dims.kernel_spatial_dimensions[k]],
        )
        windows.append(Window(-1, dim, *extents, stride[k], padding[k][0], spacing[k], dilation[k]))
    return tuple(windows)


def _of_convolution(op: ir.Operation, rule: FactorRule) -> Iterator[Window]:
    if ir.IntegerAttr(op.attributes["batch_group_count"]).value != 1:
        return
    for window in convolution_windows(op):
        factor = _factor(rule, window.dim, rule.permutation)
        if factor is not None:
            yield replace(window, factor=factor)
        factor = _factor(rule, window.dim, rule.reduction)
        if factor is not None:
            yield replace(window, factor=factor, contracted=True)


def _of_pooling(op: ir.Operation, rule: FactorRule) -> Iterator[Window]:
    if len(op.results) != 1:
        return
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    ones = [1] * len(source)
    size, stride, spacing, dilation = (
        _numbers(op, name, ones)
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    )
    padding = _pairs(op, len(source))
    for dim in range(len(source)):
        factor = _factor(rule, dim, rule.permutation)
        if factor is not None:
            moves = (size[dim], stride[dim], padding[dim][0], spacing[dim], dilation[dim])
            yield Window(factor, dim, source[dim], target[dim], *moves)


def _of_slice(op: ir.Operation, rule: FactorRule) -> Iterator[Window]:
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    start, stride = _numbers(op, "start_indices", ()), _numbers(op, "strides", ())
    for dim in range(len(source)):
        factor = _factor(rule, dim, rule.permutation)
        if factor is not None:
            yield Window(factor, dim, source[dim], target[dim], stride=stride[dim], low=-start[dim])


def _of_pad(op: ir.Operation, rule: FactorRule) -> Iterator[Window]:
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    low, interior = _numbers(op, "edge_padding_low", ()), _numbers(op, "interior_padding", ())
    for dim in range(len(source)):
        factor = _factor(rule, dim, rule.permutation)
        if factor is not None:
            yield Window(
                factor, dim, source[dim], target[dim], low=low[dim], spacing=interior[dim] + 1
            )


def _of_reverse(op: ir.Operation, rule: FactorRule) -> Iterator[Window]:
    shape = shape_of(op.operands[0])
    for dim, extent in enumerate(shape):
        factor = _factor(rule, dim, rule.permutation)
        if factor is not None:
            yield Window(factor, dim, extent, extent, mirrored=True)


def _numbers(op: ir.Operation, name: str, default: Sequence[int]) -> list[int]:
    return (
        list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else list(default)
    )


def _pairs(op: ir.Operation, count: int) -> list[tuple[int, int]]:
    """Low and high padding of each dimension."""
    if "padding" not in op.attributes:
        return [(0, 0)] * count
    elements = ir.DenseIntElementsAttr(op.attributes["padding"])
    numbers = [elements[k] for k in range(len(elements))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


_READERS = {
    "stablehlo.convolution": _of_convolution,
    "stablehlo.pad": _of_pad,
    "stablehlo.reduce_window": _of_pooling,
    "stablehlo.reverse": _of_reverse,
    "stablehlo.slice": _of_slice,
}

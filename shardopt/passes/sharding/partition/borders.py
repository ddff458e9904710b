"""The elements of a device's windows that lie in its neighbours' tiles, fetched by permutes.

With a dimension split, device d computes the elements [d·n, (d + 1)·n) of the result, whose windows
cover a span of the operand. The span is equally long on all devices: what is missing at its ends
comes from the neighbours, and what lies outside of the operand is padding. So the operation itself
runs without padding along that dimension:

    tile          [4 5 6 7]                 of device 1 of 3
    with borders  [3 | 4 5 6 7 | 8]         one permute from the left and one from the right
    on device 0   [p | 0 1 2 3 | 4]         p: the padding of the operation, in place of zeros"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from shardopt.graph.windows import Window, reaches
from shardopt.ir.rewriting import shape_of
from shardopt.ir.splats import splat_constant
from shardopt.mesh.device_groups import groups_along
from shardopt.passes.sharding.partition.builder import DeviceBuilder, dense, make
from shardopt.passes.sharding.partition.splits import CannotSplit


@dataclass(frozen=True, eq=False)
class Span:
    """What the windows of each device cover: `extent` elements of the operand from `first`, int64
    `[tiles]`, on. Before and behind them are `low` and `high` places that no element of a dilated
    operand takes."""

    first: np.ndarray
    extent: int
    low: int
    high: int


def span_of(window: Window, tiles: int) -> Span:
    """Raises CannotSplit where the elements of a dilated operand lie at other places on each
    device."""
    share, step, others, other_step = (
        (window.size // tiles, window.dilation, window.target, window.stride)
        if window.contracted
        else (window.target // tiles, window.stride, window.size, window.dilation)
    )
    if share * step % window.spacing:
        raise CannotSplit("the places of a dilated operand differ between the tiles")
    first = np.arange(tiles, dtype=np.int64) * share * step - window.low
    places = (share - 1) * step + (others - 1) * other_step + 1
    elements = -(-first // window.spacing)
    low = int((elements * window.spacing - first)[0])
    extent = (places - 1 - low) // window.spacing + 1
    high = places - low - ((extent - 1) * window.spacing + 1)
    return Span(elements, extent, low, high)


def with_borders(
    builder: DeviceBuilder,
    tile: ir.Value,
    window: Window,
    axes: Sequence[str],
    padding: ir.Value | None,
) -> tuple[ir.Value, Span]:
    """The span of a device's windows; `padding` is the scalar outside of the operand, zero by
    default."""
    groups = groups_along(builder.mesh, axes)
    tiles, extent = groups.shape[1], shape_of(tile)[window.dim]
    left, right = reaches(window, tiles)
    # Where all devices read beyond their tiles alone, so many elements lie between.
    left_unused, right_unused = max(-right - extent, 0), max(-left - extent, 0)
    parts = [*_fetched(builder, tile, window.dim, groups, (left_unused, left), -1)][::-1]
    parts += [] if left_unused or right_unused else [tile]
    parts += _fetched(builder, tile, window.dim, groups, (right_unused, right), 1)
    begin = extent + right_unused if right_unused else -max(left, 0)
    length = sum(shape_of(part)[window.dim] for part in parts)
    span = span_of(window, tiles)
    # How far the span begins behind the first element that is there.
    skipped = span.first - (np.arange(tiles) * extent + begin)
    before = max(int(-skipped.min()), 0)
    behind = max(int(skipped.max()) + span.extent - length, 0)
    if padding is None:
        element = ir.RankedTensorType(tile.type).element_type
        padding = splat_constant(ir.RankedTensorType.get([], element), 0)
    whole = _padded(_joined(parts, window.dim), window.dim, before, behind, padding)
    of_device = np.empty(builder.mesh.size, dtype=np.int64)
    of_device[groups] = np.arange(tiles)
    starts = np.zeros((builder.mesh.size, len(shape_of(tile))), dtype=np.int64)
    starts[:, window.dim] = (skipped + before)[of_device]
    shape = [*shape_of(tile)]
    shape[window.dim] = span.extent
    fits = shape_of(whole) == tuple(shape) and not starts.any()
    value = whole if fits else builder.part(whole, starts, shape)
    is_outside = (span.first < 0) | (span.first + span.extent > window.source)
    if is_outside.any():
        value = _masked(builder, value, window, span.first[of_device], padding)
    return value, span


def mirrored(builder: DeviceBuilder, tile: ir.Value, axes: Sequence[str]) -> ir.Value:
    """The tile of the device at the other end."""
    groups = groups_along(builder.mesh, axes)
    return _sent(tile, np.stack([groups, groups[:, ::-1]], axis=-1).reshape(-1, 2))


def _fetched(
    builder: DeviceBuilder,
    tile: ir.Value,
    dim: int,
    groups: np.ndarray,
    between: tuple[int, int],
    side: int,
) -> Iterator[ir.Value]:
    """The elements `between` two distances from the tile on one side, the nearest neighbour's
    first."""
    extent, distance = shape_of(tile)[dim], 0
    unused, count = between
    while count > 0:
        far, near = min(count, extent), max(unused, 0)
        taken, distance = far - near, distance + 1
        count, unused = count - extent, unused - extent
        if taken <= 0:
            continue
        start = extent - far if side < 0 else near
        part = tile if taken == extent else _cut(tile, dim, start, taken)
        ends = (
            (groups[:, :-distance], groups[:, distance:])
            if side < 0
            else (groups[:, distance:], groups[:, :-distance])
        )
        yield _sent(part, np.stack(ends, axis=-1).reshape(-1, 2))


def _sent(value: ir.Value, pairs: np.ndarray) -> ir.Value:
    return make(
        "collective_permute", [value.type], [value], source_target_pairs=dense(pairs)
    ).result


def _cut(value: ir.Value, dim: int, start: int, extent: int) -> ir.Value:
    shape = shape_of(value)
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = start, start + extent
    return make(
        "slice",
        [_resized(value, dim, extent)],
        [value],
        start_indices=ir.DenseI64ArrayAttr.get(starts),
        limit_indices=ir.DenseI64ArrayAttr.get(limits),
        strides=ir.DenseI64ArrayAttr.get([1] * len(shape)),
    ).result


def _joined(parts: Sequence[ir.Value], dim: int) -> ir.Value:
    if len(parts) == 1:
        return parts[0]
    extent = sum(shape_of(part)[dim] for part in parts)
    dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    return make(
        "concatenate", [_resized(parts[0], dim, extent)], list(parts), dimension=dimension
    ).result


def _padded(value: ir.Value, dim: int, low: int, high: int, padding: ir.Value) -> ir.Value:
    if not low and not high:
        return value
    low_and_high = (
        ir.DenseI64ArrayAttr.get([amount if d == dim else 0 for d in range(len(shape_of(value)))])
        for amount in (low, high)
    )
    edge_padding_low, edge_padding_high = low_and_high
    return make(
        "pad",
        [_resized(value, dim, shape_of(value)[dim] + low + high)],
        [value, padding],
        edge_padding_low=edge_padding_low,
        edge_padding_high=edge_padding_high,
        interior_padding=ir.DenseI64ArrayAttr.get([0] * len(shape_of(value))),
    ).result


def _masked(
    builder: DeviceBuilder,
    value: ir.Value,
    window: Window,
    first: np.ndarray,
    padding: ir.Value,
) -> ir.Value:
    """Padding wherever the span, which begins at `first` on each device, leaves the operand."""
    shape, index = shape_of(value), ir.IntegerType.get_signless(64)
    wide = ir.RankedTensorType.get(list(shape), index)
    flags = ir.RankedTensorType.get(list(shape), ir.IntegerType.get_signless(1))
    dimension = ir.IntegerAttr.get(index, window.dim)
    number = make("iota", [wide], iota_dimension=dimension).result
    offset = spread(builder.scalar(first, index), shape)
    position = make("add", [wide], [number, offset]).result
    bounds = (("GE", 0), ("LT", window.source))
    inside = [
        compared(position, splat_constant(wide, bound), direction) for direction, bound in bounds
    ]
    both = make("and", [flags], inside).result
    return make("select", [value.type], [both, value, spread(padding, shape)]).result


def compared(first: ir.Value, second: ir.Value, direction: str) -> ir.Value:
    flags = ir.RankedTensorType.get(list(shape_of(first)), ir.IntegerType.get_signless(1))
    attribute = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
    return make("compare", [flags], [first, second], comparison_direction=attribute).result


def spread(value: ir.Value, shape: Sequence[int], dims: Sequence[int] = ()) -> ir.Value:
    """Broadcast: dimension k of the value becomes dimension `dims[k]`."""
    element = ir.RankedTensorType(value.type).element_type
    return make(
        "broadcast_in_dim",
        [ir.RankedTensorType.get(list(shape), element)],
        [value],
        broadcast_dimensions=ir.DenseI64ArrayAttr.get(list(dims)),
    ).result


def _resized(value: ir.Value, dim: int, extent: int) -> ir.Type:
    type_ = ir.RankedTensorType(value.type)
    shape = [*type_.shape]
    shape[dim] = extent
    return ir.RankedTensorType.get(shape, type_.element_type)

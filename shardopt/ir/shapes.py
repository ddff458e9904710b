"""Build shape operations in their simplest form: each function looks at the producer of its operand
first.

`reshape(broadcast(x))` that comes back to the shape of x is x; a transpose of a transpose is one
transpose; a slice that falls inside one operand of a concatenate, or clear of what a pad adds, is
a slice of that. All of them build at the current insertion point and location, and return a value
that exists already where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.rewriting import defining, has_user_attribute, shape_of
from shardopt.ir.scalars import evaluate


def tensor_like(value: ir.Value, shape: Sequence[int]) -> ir.RankedTensorType:
    """The tensor type of this shape with the element type of `value`."""
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(value.type).element_type)


def zeros(type_: ir.Type) -> ir.Value:
    """A constant of zeros of any tensor type."""
    element = ir.RankedTensorType(type_).element_type
    zero = (
        "0"
        if isinstance(element, ir.IntegerType)
        else "(0.0,0.0)"
        if isinstance(element, ir.ComplexType)
        else "0.0"
    )
    return stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{zero}> : {type_}")).result


def reshape(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """`value` in another shape of equally many elements."""
    shape = tuple(shape)
    if shape_of(value) == shape:
        return value
    producer = _producer(value)
    if producer is not None and producer.name == "stablehlo.reshape":
        return reshape(producer.operands[0], shape)
    if producer is not None and producer.name == "stablehlo.broadcast_in_dim":
        folded = _reshape_of_broadcast(producer, shape)
        if folded is not None:
            return folded
    return stablehlo.ReshapeOp(tensor_like(value, shape), value).result


def broadcast(value: ir.Value, shape: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """`value` with its dimension i laid along dimension `dims[i]` of `shape`, without stretching
    one of size 1.

    A stretched dimension is dropped by a reshape first, so that no value of size 1 stands between
    the small and the large tensor: it could not carry the sharding of either."""
    shape, dims = tuple(shape), tuple(dims)
    producer = _producer(value)
    if producer is not None and producer.name == "stablehlo.broadcast_in_dim":
        inner = dimensions(producer, "broadcast_dimensions")
        return broadcast(producer.operands[0], shape, [dims[d] for d in inner])
    source = shape_of(value)
    kept = [i for i, size in enumerate(source) if size == shape[dims[i]]]
    if len(kept) < len(source):
        return broadcast(reshape(value, [source[i] for i in kept]), shape, [dims[i] for i in kept])
    if source == shape and dims == tuple(range(len(shape))):
        return value
    return stablehlo.BroadcastInDimOp(tensor_like(value, shape), value, list(dims)).result


def transpose(value: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Dimension i of the result is dimension `permutation[i]` of `value`."""
    producer = _producer(value)
    if producer is not None and producer.name == "stablehlo.transpose":
        inner = dimensions(producer, "permutation")
        return transpose(producer.operands[0], [inner[i] for i in permutation])
    if tuple(permutation) == tuple(range(len(permutation))):
        return value
    return stablehlo.TransposeOp(value, list(permutation)).result


def slice_(value: ir.Value, starts: Sequence[int], limits: Sequence[int]) -> ir.Value:
    """`value[starts:limits]` with stride 1; looks through concatenates, slices, pads and updates at
    known places."""
    starts, limits = tuple(starts), tuple(limits)
    shape = shape_of(value)
    if starts == (0,) * len(shape) and limits == shape:
        return value
    producer = _producer(value)
    if producer is not None and producer.name in _SLICE_SOURCES:
        source = _SLICE_SOURCES[producer.name](producer, starts, limits)
        if source is not None:
            return slice_(*source)
    return stablehlo.SliceOp(value, list(starts), list(limits), [1] * len(shape)).result


def simplified(op: ir.Operation) -> ir.Value | None:
    """The simpler form of a reshape, broadcast_in_dim, transpose or slice, or None if it is simple
    already."""
    source, shape = op.operands[0], shape_of(op.results[0])
    if op.name == "stablehlo.reshape":
        value = reshape(source, shape)
    elif op.name == "stablehlo.broadcast_in_dim":
        value = broadcast(source, shape, dimensions(op, "broadcast_dimensions"))
    elif op.name == "stablehlo.transpose":
        value = transpose(source, dimensions(op, "permutation"))
    elif op.name == "stablehlo.slice" and all(stride == 1 for stride in dimensions(op, "strides")):
        value = slice_(source, dimensions(op, "start_indices"), dimensions(op, "limit_indices"))
    else:
        return None
    built = defining(value, op.name)
    if built is None or built == op or built.operands[0] != source or any(True for _ in value.uses):
        return value
    built.erase()  # the same op again
    return None


def product_of_sources(op: ir.Operation) -> ir.Value | None:
    """The matrix product `op` of what its transposed operands are made of, or None where it has no
    such operand. Compilers read weights as they lie, too. A product with batch dimensions stays:
    where these do not come first, kernels copy."""
    names = "stablehlo.dot_general", "dot_dimension_numbers"
    dims = stablehlo.DotDimensionNumbers(op.attributes[names[1]])
    if tuple(dims.lhs_batching_dimensions):
        return None
    operands = list(op.operands)
    contracting = [
        tuple(dims.lhs_contracting_dimensions),
        tuple(dims.rhs_contracting_dimensions),
    ]
    for side, operand in enumerate(operands):
        producer = _producer(operand)
        if producer is None or producer.name != "stablehlo.transpose":
            continue
        permutation = dimensions(producer, "permutation")
        free = [d for i, d in enumerate(permutation) if i not in contracting[side]]
        # The result has the free dimensions in the order of the operand's.
        if free == sorted(free):
            operands[side] = producer.operands[0]
            contracting[side] = tuple(permutation[d] for d in contracting[side])
    if operands == list(op.operands):
        return None
    attributes = {name: op.attributes[name] for name in op.attributes}
    of_left, of_right = map(list, contracting)
    attributes[names[1]] = stablehlo.DotDimensionNumbers.get([], [], of_left, of_right)
    types = [result.type for result in op.results]
    return ir.Operation.create(names[0], types, operands, attributes).results[0]


def dimensions(op: ir.Operation, attribute: str) -> tuple[int, ...]:
    """An array attribute such as `permutation` as integers."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[attribute]))


def update_start(op: ir.Operation) -> tuple[int, ...] | None:
    """Where a dynamic_update_slice writes, clamped as StableHLO does, if that is known."""
    return known_start(list(op.operands)[2:], shape_of(op.operands[0]), shape_of(op.operands[1]))


def known_start(
    indices: Sequence[ir.Value], shape: Sequence[int], sizes: Sequence[int]
) -> tuple[int, ...] | None:
    """The start of a window of `sizes` in `shape`, clamped to fit, if all its indices are known."""
    starts = [evaluate(index) for index in indices]
    if any(start is None for start in starts):
        return None
    return tuple(
        min(max(s or 0, 0), n - size) for s, n, size in zip(starts, shape, sizes, strict=True)
    )


def _producer(value: ir.Value) -> ir.Operation | None:
    op = defining(value)
    # a folded op that carries a user's sharding would take it along into nothing
    return None if op is None or has_user_attribute(op) else op


def _reshape_of_broadcast(op: ir.Operation, shape: tuple[int, ...]) -> ir.Value | None:
    """A reshape that only adds or removes dimensions of size 1, or undoes the broadcast, as a
    broadcast or less."""
    source, result = op.operands[0], shape_of(op.results[0])
    dims = dimensions(op, "broadcast_dimensions")
    if prod(result) == prod(shape_of(source)) and list(dims) == sorted(dims):
        return reshape(source, shape)
    before = [d for d, size in enumerate(result) if size != 1]
    after = [d for d, size in enumerate(shape) if size != 1]
    if [result[d] for d in before] != [shape[d] for d in after]:
        return None
    moved = dict(zip(before, after, strict=True))
    sizes = shape_of(source)
    kept = [i for i, size in enumerate(sizes) if size != 1]
    return broadcast(
        reshape(source, [sizes[i] for i in kept]), shape, [moved[dims[i]] for i in kept]
    )


_Window = tuple[ir.Value, tuple[int, ...], tuple[int, ...]]


def _in_concatenate(
    op: ir.Operation, starts: tuple[int, ...], limits: tuple[int, ...]
) -> _Window | None:
    d = ir.IntegerAttr(op.attributes["dimension"]).value
    offset = 0
    for operand in op.operands:
        size = shape_of(operand)[d]
        if offset <= starts[d] and limits[d] <= offset + size:
            shifted = [(*x[:d], x[d] - offset, *x[d + 1 :]) for x in (starts, limits)]
            return operand, shifted[0], shifted[1]
        offset += size
    return None


def _in_slice(op: ir.Operation, starts: tuple[int, ...], limits: tuple[int, ...]) -> _Window | None:
    if any(stride != 1 for stride in dimensions(op, "strides")):
        return None
    inner = dimensions(op, "start_indices")
    moved = [tuple(a + b for a, b in zip(x, inner, strict=True)) for x in (starts, limits)]
    return op.operands[0], moved[0], moved[1]


def _in_pad(op: ir.Operation, starts: tuple[int, ...], limits: tuple[int, ...]) -> _Window | None:
    """The window lies clear of what was added."""
    low, shape = dimensions(op, "edge_padding_low"), shape_of(op.operands[0])
    moved = [tuple(a - b for a, b in zip(x, low, strict=True)) for x in (starts, limits)]
    within = min(moved[0], default=0) >= 0 and all(map(int.__le__, moved[1], shape))
    if any(dimensions(op, "interior_padding")) or not within:
        return None
    return op.operands[0], moved[0], moved[1]


def _in_update(
    op: ir.Operation, starts: tuple[int, ...], limits: tuple[int, ...]
) -> _Window | None:
    """The window lies inside what was written, or clear of it."""
    written = update_start(op)
    if written is None:
        return None
    ends = [w + size for w, size in zip(written, shape_of(op.operands[1]), strict=True)]
    if any(
        limit <= w or end <= start
        for start, limit, w, end in zip(starts, limits, written, ends, strict=True)
    ):
        return op.operands[0], starts, limits
    if all(
        w <= start and limit <= end
        for start, limit, w, end in zip(starts, limits, written, ends, strict=True)
    ):
        moved = [tuple(a - w for a, w in zip(x, written, strict=True)) for x in (starts, limits)]
        return op.operands[1], moved[0], moved[1]
    return None


_SLICE_SOURCES = {
    "stablehlo.concatenate": _in_concatenate,
    "stablehlo.slice": _in_slice,
    "stablehlo.dynamic_update_slice": _in_update,
    "stablehlo.pad": _in_pad,
}

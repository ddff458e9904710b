"""Take apart the index tensors of gather and scatter: one component for each operand dimension that is indexed."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import defining, shape_of


def component(indices: ir.Value, vector_dim: int, k: int) -> ir.Value:
    """Component k as a tensor of the shape of `indices` with `vector_dim` of size 1; built only where it must be.

    A `vector_dim` one past the last dimension means that the elements of `indices` are the only component. A clamp of
    the whole vector is taken apart, so that a component shows where it came from.
    """
    shape = shape_of(indices)
    if vector_dim == len(shape):
        return shapes.reshape(indices, (*shape, 1))
    op = defining(indices)
    if op is not None and op.name == "stablehlo.clamp":
        parts = [component(x, vector_dim, k) if shape_of(x) else x for x in op.operands]
        return stablehlo.ClampOp(*parts).result
    if op is not None and op.name == "stablehlo.convert":
        part = component(op.operands[0], vector_dim, k)
        return stablehlo.ConvertOp(shapes.tensor_like(indices, shape_of(part)), part).result
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        return _component_of_broadcast(op, vector_dim, k)
    starts = [k if d == vector_dim else 0 for d in range(len(shape))]
    limits = [k + 1 if d == vector_dim else size for d, size in enumerate(shape)]
    return shapes.slice_(indices, starts, limits)


def join(components: Sequence[ir.Value], vector_dim: int) -> ir.Value:
    """The index tensor of these components, of which there is at least one."""
    return components[0] if len(components) == 1 else stablehlo.ConcatenateOp(components, vector_dim).result


def _component_of_broadcast(op: ir.Operation, vector_dim: int, k: int) -> ir.Value:
    """A slice of a broadcast broadcasts less: the limits of a clamp are one vector `[n, m]` laid along `vector_dim`."""
    source, dims = op.operands[0], shapes.dimensions(op, "broadcast_dimensions")
    shape = [1 if d == vector_dim else size for d, size in enumerate(shape_of(op.results[0]))]
    if vector_dim in dims:
        at = dims.index(vector_dim)
        sizes = shape_of(source)
        begin = min(k, sizes[at] - 1)  # a dimension of size 1 is stretched
        starts = [begin if d == at else 0 for d in range(len(sizes))]
        limits = [begin + 1 if d == at else size for d, size in enumerate(sizes)]
        source = shapes.slice_(source, starts, limits)
    return shapes.broadcast(source, shape, dims)

"""Gather and scatter seen alike: their dimension numbers, and their index tensors taken apart into
components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import defining, shape_of


@dataclass(frozen=True)
class Indexing:
    """The dimension numbers of a gather, or of a scatter under the names of the corresponding
    gather fields."""

    window_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    operand_batch: tuple[int, ...]
    index_batch: tuple[int, ...]
    index_map: tuple[int, ...]
    vector_dim: int

    def batched(self, pairs: dict[int, int]) -> Indexing:
        """With operand dimension p, collapsed until now, batched by index dimension q for each
        `pairs[p] == q`."""
        # StableHLO wants the batching dimensions of the operand in ascending order.
        together = sorted([*zip(self.operand_batch, self.index_batch, strict=True), *pairs.items()])
        return replace(
            self,
            collapsed=tuple(d for d in self.collapsed if d not in pairs),
            operand_batch=tuple(p for p, _ in together),
            index_batch=tuple(q for _, q in together),
            index_map=tuple(d for d in self.index_map if d not in pairs),
        )

    def places(self, rank: int) -> dict[int, int]:
        """Operand batching dimension -> dimension of the gather's result (the scatter's updates) of
        this rank.

        Its dimensions that are no window dimensions are those of the indices in order, without the
        vector dimension."""
        batch_dims = [d for d in range(rank) if d not in self.window_dims]
        index_dims = [d for d in range(len(batch_dims) + 1) if d != self.vector_dim]
        pairs = zip(self.operand_batch, self.index_batch, strict=True)
        return {p: batch_dims[index_dims.index(q)] for p, q in pairs}


def read_indexing(op: ir.Operation) -> Indexing:
    """The dimension numbers of a gather or scatter."""
    if op.name == "stablehlo.gather":
        g = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        return Indexing(
            window_dims=tuple(g.offset_dims),
            collapsed=tuple(g.collapsed_slice_dims),
            operand_batch=tuple(g.operand_batching_dims),
            index_batch=tuple(g.start_indices_batching_dims),
            index_map=tuple(g.start_index_map),
            vector_dim=g.index_vector_dim,
        )
    s = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    return Indexing(
        window_dims=tuple(s.update_window_dims),
        collapsed=tuple(s.inserted_window_dims),
        operand_batch=tuple(s.input_batching_dims),
        index_batch=tuple(s.scatter_indices_batching_dims),
        index_map=tuple(s.scattered_dims_to_operand_dims),
        vector_dim=s.index_vector_dim,
    )


def write_indexing(op: ir.Operation, indexing: Indexing) -> None:
    """Give a gather or scatter other dimension numbers; both attributes take them in the same
    order."""
    is_gather = op.name == "stablehlo.gather"
    numbers = stablehlo.GatherDimensionNumbers if is_gather else stablehlo.ScatterDimensionNumbers
    op.attributes["dimension_numbers" if is_gather else "scatter_dimension_numbers"] = numbers.get(
        indexing.window_dims,
        indexing.collapsed,
        indexing.operand_batch,
        indexing.index_batch,
        indexing.index_map,
        indexing.vector_dim,
    )
    # what was known about the order of whole index vectors says nothing about the vectors within a
    # batch
    op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


def component(indices: ir.Value, vector_dim: int, k: int) -> ir.Value:
    """Component k as a tensor of the shape of `indices` with `vector_dim` of size 1; built only
    where it must be.

    A `vector_dim` one past the last dimension means that the elements of `indices` are the only
    component. A clamp of the whole vector is taken apart, so that a component shows where it came
    from."""
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
    return (
        components[0]
        if len(components) == 1
        else stablehlo.ConcatenateOp(components, vector_dim).result
    )


def _component_of_broadcast(op: ir.Operation, vector_dim: int, k: int) -> ir.Value:
    """A slice of a broadcast broadcasts less: the limits of a clamp are one vector `[n, m]` laid
    along `vector_dim`."""
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

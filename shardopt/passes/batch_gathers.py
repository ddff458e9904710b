"""Turn gathers and scatters that index a dimension by its own coordinate into batched ones.

Needs: constants folded (canonicalize). Holds afterwards: where an index component along operand dimension p is provably
the coordinate of index dimension q, and both have equal size, p and q are a pair of batching dimensions. So the batch
of `x[arange(b), labels]` is a batch: it can be sharded, and cut into microbatches, without communication.

    %i = stablehlo.concatenate %iota, %labels, dim = 1 : (4x1, 4x1) -> 4x2
    %r = "stablehlo.gather"(%x, %i) {collapsed_slice_dims = [0, 1], start_index_map = [0, 1]} : (4x8, 4x2) -> 4
 =>
    %r = "stablehlo.gather"(%x, %labels) {collapsed_slice_dims = [1], operand_batching_dims = [0],
           start_indices_batching_dims = [0], start_index_map = [1]} : (4x8, 4x1) -> 4

1. Split the index tensor into components and prove which ones are coordinates (`ir/coordinates.py`).
2. A coordinate of a dimension as large as the operand's is in bounds, so it needs no clamp and drops no update.
3. Move those dimensions from the collapsed (inserted) to the batching dimensions; join the remaining components.
4. If none remains, a gather is a slice and a broadcast; a scatter indexes a new operand dimension of size 1 by zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.coordinates import coordinate_dim
from shardopt.ir.index_vectors import component, join
from shardopt.ir.rewriting import erase_dead, operations, replace_op, shape_of
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class _Indexing:
    """The dimension numbers of a gather, or of a scatter under the names of the corresponding gather fields."""

    window_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    operand_batch: tuple[int, ...]
    index_batch: tuple[int, ...]
    index_map: tuple[int, ...]
    vector_dim: int

    def batched(self, pairs: dict[int, int]) -> _Indexing:
        """With operand dimension p, collapsed until now, batched by index dimension q for each `pairs[p] == q`."""
        together = sorted([*zip(self.operand_batch, self.index_batch, strict=True), *pairs.items()])
        return replace(
            self,
            collapsed=tuple(d for d in self.collapsed if d not in pairs),
            operand_batch=tuple(p for p, _ in together),
            index_batch=tuple(q for _, q in together),
            index_map=tuple(d for d in self.index_map if d not in pairs),
        )

    def numbers(self) -> tuple[tuple[int, ...] | int, ...]:
        return (
            self.window_dims,
            self.collapsed,
            self.operand_batch,
            self.index_batch,
            self.index_map,
            self.vector_dim,
        )


def _read(op: ir.Operation) -> _Indexing:
    if op.name == "stablehlo.gather":
        g = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        fields = (g.offset_dims, g.collapsed_slice_dims, g.operand_batching_dims, g.start_indices_batching_dims)
        return _Indexing(*map(tuple, fields), tuple(g.start_index_map), g.index_vector_dim)
    s = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    fields = (s.update_window_dims, s.inserted_window_dims, s.input_batching_dims, s.scatter_indices_batching_dims)
    return _Indexing(*map(tuple, fields), tuple(s.scattered_dims_to_operand_dims), s.index_vector_dim)


def _write(op: ir.Operation, indexing: _Indexing) -> None:
    if op.name == "stablehlo.gather":
        op.attributes["dimension_numbers"] = stablehlo.GatherDimensionNumbers.get(*indexing.numbers())
    else:
        op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(*indexing.numbers())
    # what was known about the order of whole index vectors says nothing about the vectors within a batch
    op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


def _batch_pairs(indexing: _Indexing, operand: ir.Value, components: list[ir.Value]) -> dict[int, int]:
    """Operand dimension -> index dimension, for the components that are coordinates of a dimension of equal size."""
    pairs: dict[int, int] = {}
    taken = set(indexing.index_batch)
    for p, value in zip(indexing.index_map, components, strict=True):
        q = coordinate_dim(value)
        if q is None or q in (indexing.vector_dim, *taken) or p not in indexing.collapsed:
            continue
        if shape_of(value)[q] == shape_of(operand)[p]:
            pairs[p] = q
            taken.add(q)
    return pairs


def _rebatch(op: ir.Operation) -> bool:
    indexing = _read(op)
    position = 1 if op.name == "stablehlo.gather" else len(op.operands) // 2
    indices = op.operands[position]
    components = [component(indices, indexing.vector_dim, k) for k in range(len(indexing.index_map))]
    pairs = _batch_pairs(indexing, op.operands[0], components)
    if not pairs:
        erase_dead(components)
        return False
    rest = [value for p, value in zip(indexing.index_map, components, strict=True) if p not in pairs]
    indexing = indexing.batched(pairs)
    if rest:
        op.operands[position] = join(rest, indexing.vector_dim)
        _write(op, indexing)
        erase_dead([*components, indices])
        return True
    build = _gather_without_index if op.name == "stablehlo.gather" else _scatter_by_zero
    values = build(op, indexing, components[0].type)
    erase_dead(components)
    replace_op(op, values)
    return True


def _gather_without_index(op: ir.Operation, indexing: _Indexing, _: ir.Type) -> list[ir.Value]:
    """Every result element sits at a place known by its coordinates: slice, drop the collapsed, lay out."""
    sizes = shapes.dimensions(op, "slice_sizes")
    full = shape_of(op.operands[0])
    limits = [full[d] if d in indexing.operand_batch else size for d, size in enumerate(sizes)]
    window = shapes.slice_(op.operands[0], [0] * len(full), limits)
    kept = [d for d in range(len(full)) if d not in indexing.collapsed]
    batch_dims = [d for d in range(len(shape_of(op.results[0]))) if d not in indexing.window_dims]
    # batch dimensions of the result are the index dimensions in order, without the vector dimension
    index_dims = [d for d in range(len(batch_dims) + 1) if d != indexing.vector_dim]
    pairs = zip(indexing.operand_batch, indexing.index_batch, strict=True)
    place = {p: batch_dims[index_dims.index(q)] for p, q in pairs}
    offsets = iter(indexing.window_dims)
    dims = [place[d] if d in place else next(offsets) for d in kept]
    return [shapes.broadcast(shapes.reshape(window, [limits[d] for d in kept]), shape_of(op.results[0]), dims)]


def _scatter_by_zero(op: ir.Operation, indexing: _Indexing, index_type: ir.Type) -> list[ir.Value]:
    """A scatter must index something: give its inputs a last dimension of size 1 and index that by zero."""
    count = len(op.operands) // 2
    shape = shape_of(op.operands[0])
    inputs = [shapes.reshape(value, (*shape, 1)) for value in list(op.operands)[:count]]
    element = ir.RankedTensorType(index_type).element_type
    zero = ir.DenseElementsAttr.get_splat(index_type, ir.IntegerAttr.get(element, 0))
    numbers = replace(indexing, collapsed=(*indexing.collapsed, len(shape)), index_map=(len(shape),))
    copy = op.clone()
    for i, value in enumerate([*inputs, stablehlo.ConstantOp(zero).result]):
        copy.operands[i] = value
    for value, result in zip(inputs, copy.results, strict=True):
        result.set_type(value.type)
    _write(copy, numbers)
    return [shapes.reshape(result, shape) for result in copy.results]


@dataclass(frozen=True)
class BatchGathers(Pass):
    name = "shardopt-batch-gathers"
    summary = "make batching dimensions of gathers and scatters that index a dimension by its own coordinate"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        found = operations(module.operation, ("stablehlo.gather", "stablehlo.scatter"))
        rewritten = 0
        for op in found:
            with ir.InsertionPoint(op), op.location:
                rewritten += _rebatch(op)
        pm.statistic("indexed", len(found))
        pm.statistic("rewritten", rewritten)

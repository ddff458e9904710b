"""Turn gathers and scatters that index a dimension by its own coordinate into batched ones.

Needs: constants folded (canonicalize). Holds afterwards: where an index component along operand
dimension p is provably the coordinate of index dimension q, and both have equal size, p and q are a
pair of batching dimensions. So the batch of `x[arange(b), labels]` is a batch: it can be sharded,
and cut into microbatches, without communication.

    %i = stablehlo.concatenate %iota, %labels, dim = 1 : (4x1, 4x1) -> 4x2
    %r = "stablehlo.gather"(%x, %i) {collapsed_slice_dims = [0, 1],
           start_index_map = [0, 1]} : (4x8, 4x2) -> 4
 =>
    %r = "stablehlo.gather"(%x, %labels) {collapsed_slice_dims = [1], operand_batching_dims = [0],
           start_indices_batching_dims = [0], start_index_map = [1]} : (4x8, 4x1) -> 4

1. An index `i // k` is the coordinate of one of two dimensions, into which rows are split
   (`shardopt.passes.importing.repeated_rows`).
2. Split the index tensor into components and prove which ones are coordinates
   (`shardopt.passes.importing.coordinates`).
3. A coordinate of a dimension as large as the operand's is in bounds, so it needs no clamp and
   drops no update.
4. Move those dimensions from the collapsed (inserted) to the batching dimensions; join the
   remaining components.
5. If none remains, a gather is a slice and a broadcast, and an adding scatter is a sum (the
   gradient of a position table); any other scatter indexes a new operand dimension of size 1 by
   zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import erase_dead, op_name, operations, replace_op, shape_of
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.importing.coordinates import coordinate_dim
from shardopt.passes.importing.indexing import (
    Indexing,
    component,
    join,
    read_indexing,
    write_indexing,
)
from shardopt.passes.importing.repeated_rows import split_repeats


def _batch_pairs(
    indexing: Indexing, operand: ir.Value, components: list[ir.Value]
) -> dict[int, int]:
    """Operand dimension -> index dimension, for the components that are coordinates of a dimension
    of equal size."""
    pairs: dict[int, int] = {}
    taken = set(indexing.index_batch)
    for p, value in zip(indexing.index_map, components, strict=True):
        q = coordinate_dim(value)
        # An index dimension can batch one operand dimension, and that one must have no window.
        if q is None or q in (indexing.vector_dim, *taken) or p not in indexing.collapsed:
            continue
        # A shorter index reads a prefix only, and StableHLO pairs dimensions of equal size.
        if shape_of(value)[q] == shape_of(operand)[p]:
            pairs[p] = q
            taken.add(q)
    return pairs


def _rebatch(op: ir.Operation) -> bool:
    indexing = read_indexing(op)
    position = 1 if op.name == "stablehlo.gather" else len(op.operands) // 2
    indices = op.operands[position]
    components = [
        component(indices, indexing.vector_dim, k) for k in range(len(indexing.index_map))
    ]
    pairs = _batch_pairs(indexing, op.operands[0], components)
    if not pairs:
        # Components are built to be looked at: a gather that stays must not leave any behind.
        erase_dead(components)
        return False
    rest = [
        value for p, value in zip(indexing.index_map, components, strict=True) if p not in pairs
    ]
    indexing = indexing.batched(pairs)
    if rest:
        op.operands[position] = join(rest, indexing.vector_dim)
        write_indexing(op, indexing)
        erase_dead([*components, indices])
        return True
    build = _gather_without_index if op.name == "stablehlo.gather" else _scatter_without_index
    values = build(op, indexing, components[0].type)
    erase_dead(components)
    replace_op(op, values)
    return True


def _gather_without_index(op: ir.Operation, indexing: Indexing, _: ir.Type) -> list[ir.Value]:
    """Every result element sits at a place known by its coordinates: slice, drop the collapsed, lay
    out."""
    sizes = shapes.dimensions(op, "slice_sizes")
    full = shape_of(op.operands[0])
    limits = [full[d] if d in indexing.operand_batch else size for d, size in enumerate(sizes)]
    window = shapes.slice_(op.operands[0], [0] * len(full), limits)
    kept = [d for d in range(len(full)) if d not in indexing.collapsed]
    place = indexing.places(len(shape_of(op.results[0])))
    offsets = iter(indexing.window_dims)
    dims = [place[d] if d in place else next(offsets) for d in kept]
    return [
        shapes.broadcast(
            shapes.reshape(window, [limits[d] for d in kept]), shape_of(op.results[0]), dims
        )
    ]


def _scatter_without_index(
    op: ir.Operation, indexing: Indexing, index_type: ir.Type
) -> list[ir.Value]:
    added = _sum_of_updates(op, indexing)
    if added is not None:
        return [stablehlo.AddOp(op.operands[0], added).result]
    return _scatter_by_zero(op, indexing, index_type)


def _sum_of_updates(op: ir.Operation, indexing: Indexing) -> ir.Value | None:
    """What an adding scatter adds to its one input: the updates summed over the index dimensions
    that pair with none.

    None if the scatter combines otherwise, or if its windows leave a part of the input alone.
    """
    *_, terminator = body = list(op.regions[0].blocks[0].operations)
    if [op_name(inner) for inner in body] != ["stablehlo.add", "stablehlo.return"] or len(
        op.operands
    ) != 3:
        return None
    if (
        set(body[0].operands) != set(op.regions[0].blocks[0].arguments)
        or terminator.operands[0] != body[0].results[0]
    ):
        return None
    target, updates = op.operands[0], op.operands[2]
    place = indexing.places(len(shape_of(updates)))
    windowed = [d for d in range(len(shape_of(target))) if d not in indexing.collapsed]
    offsets = iter(indexing.window_dims)
    sources = [place[d] if d in place else next(offsets) for d in windowed]
    if prod(shape_of(updates)[u] for u in sources) != prod(shape_of(target)):
        return None
    left = [u for u in range(len(shape_of(updates))) if u not in sources]
    order = [u - sum(v < u for v in left) for u in sources]
    return shapes.reshape(shapes.transpose(_sum(updates, left), order), shape_of(target))


def _sum(value: ir.Value, dims: list[int]) -> ir.Value:
    if not dims:
        return value
    scalar = shapes.tensor_like(value, ())
    zero = shapes.zeros(scalar)
    kept = [size for d, size in enumerate(shape_of(value)) if d not in dims]
    reduce = stablehlo.ReduceOp([shapes.tensor_like(value, kept)], [value], [zero], dims)
    block = reduce.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    return reduce.results[0]


def _scatter_by_zero(op: ir.Operation, indexing: Indexing, index_type: ir.Type) -> list[ir.Value]:
    """A scatter must index something: give its inputs a last dimension of size 1 and index that by
    zero."""
    count = len(op.operands) // 2
    shape = shape_of(op.operands[0])
    inputs = [shapes.reshape(value, (*shape, 1)) for value in list(op.operands)[:count]]
    indices = shapes.zeros(index_type)
    copy = op.clone()
    for i, value in enumerate([*inputs, indices]):
        copy.operands[i] = value
    for value, result in zip(inputs, copy.results, strict=True):
        result.set_type(value.type)
    write_indexing(
        copy,
        replace(indexing, collapsed=(*indexing.collapsed, len(shape)), index_map=(len(shape),)),
    )
    return [shapes.reshape(result, shape) for result in copy.results]


@dataclass(frozen=True)
class BatchGathers(Pass):
    name = "shardopt-batch-gathers"
    summary = (
        "make batching dimensions of gathers and scatters that index a dimension by its "
        "own coordinate"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        indexed = operations(module.operation, ("stablehlo.gather", "stablehlo.scatter"))
        rewritten = 0
        for op in indexed:
            with op.location:
                split = split_repeats(op)
                with ir.InsertionPoint(split):
                    rewritten += _rebatch(split)
        pm.statistic("indexed", len(indexed))
        pm.statistic("rewritten", rewritten)
        if not rewritten:
            pm.preserve()

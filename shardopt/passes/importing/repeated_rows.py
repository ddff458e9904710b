"""Gathers and scatters at `i // k`: each row k times, and k rows added up.

    %t = divide(%iota, 2)                            8
    %r = gather(%x, %t)                              4x3 -> 8x3
 =>
    %i = iota dim = 0                                4x2x1
    %r = reshape(gather(%x, %i))                     4x3 -> 4x2x3 -> 8x3

as a mixture of experts does that takes each token for its first experts. The index is the
coordinate of a row then, as `shardopt-batch-gathers` wants it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import shape_of
from shardopt.passes.importing.indexing import read_indexing, write_indexing
from shardopt.passes.importing.known_integers import known_integers

# More rows than this are no batch of tokens; evaluating what computes their numbers takes time.
_MAX_ROWS = 1 << 24


def split_repeats(op: ir.Operation) -> ir.Operation:
    """A gather or scatter at `i // k` as one at the coordinates of two dimensions, in its place;
    any other as it is."""
    indexing = read_indexing(op)
    indices, is_gather = op.operands[1], op.name == "stablehlo.gather"
    if (not is_gather and len(op.operands) != 3) or len(indexing.index_map) != 1:
        return op
    [dim], rows = indexing.index_map, prod(shape_of(indices))
    size, element = shape_of(op.operands[0])[dim], ir.RankedTensorType(indices.type).element_type
    is_plain = dim in indexing.collapsed and not indexing.operand_batch
    if not is_plain or not 1 < size < rows <= _MAX_ROWS or rows % size:
        return op
    numbers = known_integers(indices, _MAX_ROWS)
    count = rows // size
    if numbers is None or not np.array_equal(numbers.ravel(), np.arange(rows) // count):
        return op
    # The rows of the result, or of the updates, lie along one dimension.
    wide = shape_of(op.results[0] if is_gather else op.operands[2])
    places = [d for d in range(len(wide)) if d not in indexing.window_dims and wide[d] == rows]
    if len(places) != 1 or len(indexing.window_dims) != len(wide) - 1:
        return op
    [place] = places
    split = [*wide[:place], size, count, *wide[place + 1 :]]
    with ir.InsertionPoint(op):
        shape = ir.RankedTensorType.get([size, count, 1], element)
        copy = op.clone(ip=ir.InsertionPoint(op))
        with ir.InsertionPoint(copy):
            copy.operands[1] = stablehlo.IotaOp(shape, 0).result
            if not is_gather:
                copy.operands[2] = shapes.reshape(op.operands[2], split)
        if is_gather:
            copy.results[0].set_type(shapes.tensor_like(op.results[0], split))
        made = shapes.reshape(copy.results[0], wide) if is_gather else copy.results[0]
    windows = tuple(d + (d > place) for d in indexing.window_dims)
    write_indexing(copy, replace(indexing, window_dims=windows, vector_dim=2))
    op.results[0].replace_all_uses_with(made)
    op.erase()
    return copy

"""The sizes of the matrix product that a device computes for its share of a `dot_general` or of a
convolution.

    dot_general [8, 512, 64] x [8, 512, 64] -> [8, 512, 512]   8 products, 512 x 64 by 64 x 512
    convolution [32, 56, 56, 64] x [3, 3, 64, 128]             100,352 x 576 by 576 x 128

A convolution is the product of its patches with its kernel, whether or not a library writes them
down. Which dimensions of the result are rows, columns, and a batch, their factors say; how much is
contracted follows from the work."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from shardopt.cost.products import Product
from shardopt.graph.op_graph import FactorRule, Op, Tensor

# What vector loads of products take at once.
_WORD_BYTES = 16
_DOT = "dot_general"


def product_of(
    op: Op, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], flops: float
) -> Product | None:
    """Of the share with these `shapes` of the operands and of the result, and so many FLOPs; None
    for what is no product.

    Products with vectors and outer products are none: XLA multiplies and sums them up in a loop
    (`AlgebraicSimplifier`, dot strength reduction). Convolutions of single channels are products of
    one column each."""
    if op.name not in (_DOT, "convolution") or op.rule is None or len(shapes) != 3:
        return None
    sizes = {"batch": 1, "rows": 1, "columns": 1}
    for role, extent in zip(_roles(op.rule), shapes[-1], strict=True):
        sizes[role] *= extent
    depth = round(flops / (2 * prod(sizes.values())))
    is_of_single_channels = op.name != _DOT and sizes["batch"] > 1 and sizes["columns"] == 1
    if min(sizes["rows"], sizes["columns"], depth) <= 1 and not is_of_single_channels:
        return None
    itemsize = round(tensors[0].itemsize) or 1
    aligned = op.name != _DOT or all(
        not shape or shape[-1] * tensor.itemsize % _WORD_BYTES == 0
        for tensor, shape in zip(tensors, shapes, strict=True)
    )
    across = _across(op, shapes) if op.name == _DOT else ()
    return Product(
        batch=sizes["batch"],
        rows=sizes["rows"],
        columns=sizes["columns"],
        depth=depth,
        itemsize=itemsize,
        aligned=aligned,
        across=len(across),
        across_elements=sum(prod(shapes[operand]) for operand in across),
    )


def _across(op: Op, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Which operands have a dimension innermost, as the program has them, that is not
    contracted."""
    assert op.rule is not None, "the caller looks"
    kept = {factor for dim in op.rule.results[0] for factor in dim}
    last = (
        next((factors for n, factors in reversed(list(zip(shape, dims, strict=True))) if n > 1), ())
        for shape, dims in zip(shapes[:2], op.rule.operands[:2], strict=True)
    )
    return tuple(n for n, factors in enumerate(last) if kept.intersection(factors))


def _roles(rule: FactorRule) -> tuple[str, ...]:
    """Of each dimension of the result."""
    left, right = ({factor for dim in dims for factor in dim} for dims in rule.operands[:2])
    roles = []
    for dim in rule.results[0]:
        if left.issuperset(dim) and right.issuperset(dim) and dim:
            roles.append("batch")
        else:
            roles.append("columns" if dim and right.issuperset(dim) else "rows")
    return tuple(roles)

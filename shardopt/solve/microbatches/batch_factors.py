"""Follow the batch through a sharding rule: from a dimension to the factor that carries it, and
back to dimensions."""

from __future__ import annotations

from math import gcd

from shardopt.graph.microbatching import Cut, Split
from shardopt.graph.op_graph import Op


def locate(factors: tuple[int, ...], sizes: tuple[int, ...], split: Split) -> Cut | None:
    """The factor of a dimension in which the batch starts; of a batch spread over several factors
    its major part.

    `factors` are the factors of dimension `split.dim`, major to minor. A dimension of 24 elements
    with factors of sizes 2, 3 and 4, split behind `outer` = 2 elements, carries the batch on the
    factor of size 3. Split behind 3 elements it starts inside of a factor: None, as blocks would
    not be blocks of a single factor."""
    before = 1
    for factor in factors:
        size = sizes[factor]
        if split.outer % before:
            return None
        outer = split.outer // before
        # A batch of one row may lie on a factor of size 1.
        if outer < size or (outer == size == 1 and split.extent == 1):
            return (
                Cut(factor, outer, gcd(split.extent, size // outer)) if size % outer == 0 else None
            )
        before *= size
    return None


def split_of(
    mapping: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], cut: Cut
) -> Split | None:
    """Where an operand or result with this mapping carries the batch of an op that is cut at
    `cut`."""
    for dim, factors in enumerate(mapping):
        before = 1
        for factor in factors:
            if factor == cut.factor:
                return Split(dim, before * cut.outer, cut.extent)
            before *= sizes[factor]
    return None


def operand_split(op: Op, operand: int, cut: Cut | None) -> Split | None:
    """Where operand number `operand` must be split; values captured by regions have no mapping and
    are not."""
    if cut is None or op.rule is None or operand >= len(op.rule.operands):
        return None
    return split_of(op.rule.operands[operand], op.rule.sizes, cut)


def result_split(op: Op, result: int, cut: Cut | None) -> Split | None:
    """Where result number `result` is split when the op is cut."""
    if cut is None or op.rule is None:
        return None
    return split_of(op.rule.results[result], op.rule.sizes, cut)


def moves_along(op: Op, cut: Cut) -> bool:
    """Whether a block of the factor cannot be computed, by the same op, from the same block of the
    operands."""
    rule = op.rule
    assert rule is not None
    if cut.factor in rule.need_replication or cut.factor in rule.permutation:
        return True
    # Only the groups of a convolution run through all its tensors, and their number is an
    # attribute.
    tensors = (*rule.operands, *rule.results)
    return op.name == "convolution" and all(
        cut.factor in (f for dim in t for f in dim) for t in tensors
    )

"""Which factors of an operation may be split: what XLA's partitioner really carries out, operation
by operation.

Shardy's rules say which dimensions belong together. Whether the partitioner then computes on tiles,
or gathers the operands and computes everything everywhere, they do not say;
tests/e2e/test_op_strategies.py compiles every strategy that is left here and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from shardopt.graph.op_graph import FactorRule, Op
from shardopt.graph.windows import Window, fits
from shardopt.mesh.mesh import Mesh
from shardopt.mesh.splits import may_split

Axes = tuple[str, ...]
Split = Mapping[int, Axes]  # the axes of each factor that is split, major to minor

# Combinations that a collective can apply across devices.
COLLECTIVE_REDUCERS = frozenset({"add", "maximum", "minimum", "multiply", "and", "or"})

_GATHERED = "the partitioner gathers its operands"
_USERS = "it is a collective that the program itself asks for"
_REGIONS = "its regions are not planned here"

# Never partitioned, whatever their rule says, and why.
OPAQUE_OPS: Mapping[str, str] = {
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "collective_broadcast"), _USERS),
    **dict.fromkeys(("collective_permute", "reduce_scatter", "partition_id", "replica_id"), _USERS),
    **dict.fromkeys(("case", "if", "while"), _REGIONS),
    **dict.fromkeys(
        ("batch_norm_grad", "batch_norm_inference", "batch_norm_training", "fft"), _GATHERED
    ),
    **dict.fromkeys(("rng", "rng_bit_generator"), "its numbers depend on the layout of its result"),
}

# Why some operations have no rule that could be used.
WITHOUT_RULE: Mapping[str, str] = {
    "composite": "its body is unknown to the partitioner",
    "custom_call": "the partitioner knows nothing of its target",
}


def why_opaque(op: Op) -> str:
    """The reason why an operation runs replicated, or nothing."""
    if op.island is not None:
        return ""
    if op.rule is None:
        return OPAQUE_OPS.get(op.name) or WITHOUT_RULE.get(
            op.name, "no sharding rule is known for it"
        )
    return OPAQUE_OPS.get(op.name, "")


def is_opaque(op: Op) -> bool:
    """Whether the operation runs replicated for lack of a rule that can be used."""
    return bool(why_opaque(op))


def shardable_factors(op: Op) -> tuple[int, ...]:
    """Factors that may be split: all but those that need the whole dimension, move data along it in
    unknown ways, or leave partial results that no collective combines."""
    rule = op.rule
    if rule is None or is_opaque(op):
        return ()
    windows = {window.factor for window in op.windows}
    below = {factor for window in op.windows for factor in rule.operands[0][window.dim][1:]}
    whole = (
        rule.need_replication | (rule.permutation - windows) | rule.blocked | below | _lost(rule)
    )
    if op.reducer not in COLLECTIVE_REDUCERS:
        whole |= rule.reduction
    if op.name == "dynamic_update_slice":
        # The rule lets dimensions be split that the update covers in part; XLA would gather the
        # operand for that.
        target, update = ({factor for dim in dims for factor in dim} for dims in rule.operands[:2])
        whole |= target - update
    return tuple(
        factor for factor, size in enumerate(rule.sizes) if size > 1 and factor not in whole
    )


def _lost(rule: FactorRule) -> frozenset[int]:
    """Factors of operands that no result has, although nothing is contracted: reshapes that tangle
    dimensions."""
    kept = {factor for dims in rule.results for dim in dims for factor in dim}
    return frozenset(range(len(rule.sizes))) - kept - rule.reduction


def is_feasible(op: Op, split: Split, mesh: Mesh) -> bool:
    """Whether the factors can be split together: evenly or, where a factor is a whole dimension,
    with padding; with borders that are exchanged, and in one reduction."""
    tiles = {factor: prod(mesh.axis_size(axis) for axis in axes) for factor, axes in split.items()}
    if op.rule is None:
        return True
    windows = [window for window in op.windows if window.factor in split]
    moving = {window.factor for window in windows}
    if not all(
        _splits(op.rule, factor, count) for factor, count in tiles.items() if factor not in moving
    ):
        return False
    if not all(fits(window, tiles[window.factor]) for window in windows):
        return False
    if op.name == "custom_call" and any(op.rule.sizes[f] % count for f, count in tiles.items()):
        return False  # what is called knows nothing of padding
    if op.name == "convolution" and not _convolves(op, split, windows, mesh):
        return False
    if op.name == "scatter":
        # XLA reduces updates once for each of their dimensions, and gathers uneven ones. Where rows
        # are split that updates go to, every device takes all updates: nothing is left to add up.
        summed = split.keys() & op.rule.reduction
        if summed and _splits_rows(op.rule, split):
            return False
        return len(summed) <= 1 and not any(op.rule.sizes[f] % tiles[f] for f in summed)
    return True


def _splits_rows(rule: FactorRule, split: Split) -> bool:
    """Whether a dimension is split that the results of a scatter have, and its updates have not."""
    results, updates = (
        {factor for mapping in mappings for dim in mapping for factor in dim}
        for mappings in (rule.results, rule.operands[len(rule.results) + 1 :])
    )
    return bool(split.keys() & (results - updates))


def _splits(rule: FactorRule, factor: int, tiles: int) -> bool:
    """Whether so many tiles of the factor are tiles of every dimension that it is in. Padded ones
    are not where the dimension has other factors: 10 rows of 3 over 4 are 3 rows, or 8 elements of
    the 30."""
    if rule.sizes[factor] % tiles == 0:
        return True
    return may_split(rule.sizes[factor], tiles) and all(
        rule.sizes[other] == 1
        for mapping in (*rule.operands, *rule.results)
        for dim in mapping
        if factor in dim
        for other in dim
        if other != factor
    )


def uneven_factor(op: Op, mesh: Mesh) -> int:
    """The extent of the largest factor that may be split, if it is too short for some axis, else
    0."""
    factors = shardable_factors(op)
    if op.rule is None or not factors:
        return 0
    extent = max(op.rule.sizes[factor] for factor in factors)
    return 0 if all(may_split(extent, size) for _, size in mesh.axes) else extent


def _convolves(op: Op, split: Split, windows: Sequence[Window], mesh: Mesh) -> bool:
    """Whether XLA splits the space of a convolution as asked.

    It does not when the kernel's output features are split too, unless the kernel is a single
    point; and it spreads a space that is contracted (the gradient of a kernel) over all devices
    that would do the same work."""
    assert op.rule is not None
    source, kernel = ({factor for dim in dims for factor in dim} for dims in op.rule.operands)
    if any(window.size > 1 for window in windows) and split.keys() & (kernel - source):
        return False
    contracted = {axis for window in windows if window.contracted for axis in split[window.factor]}
    return not contracted or contracted == {axis for axis, size in mesh.axes if size > 1}

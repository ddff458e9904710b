"""What every preset of `--intra-op` starts from and returns, and how it names strategies by what
they split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod

from shardopt.graph.op_graph import FactorRule
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.intra_op.sharded_ops import Transient
from shardopt.solve.sharding.strategies.strategies import live_axes

Axes = tuple[str, ...]
Split = Mapping[int, Axes]  # the axes of each factor that is split, major to minor
Dims = tuple[Axes, ...]


@dataclass(frozen=True)
class InputKinds:
    """What the presets need to know of a graph: inputs that hold state, inputs that hold the batch
    with the dimension it lies on, the same of what other meshes send, the pairs that must agree,
    for `shardy` what Shardy's own propagation made of the tensors, and why no input is known to
    hold the batch."""

    state: Set[int] = frozenset()
    batch: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    tied: tuple[tuple[int, int], ...] = ()
    propagated: Mapping[int, Sharding] = field(default_factory=dict)
    no_batch: str = ""


@dataclass(frozen=True)
class Restriction:
    """Tensors with a given sharding, and operations with the numbers of the strategies they may
    take; copies of `transient` tensors in other shardings are dropped after use."""

    fixed: Mapping[int, Sharding] = field(default_factory=dict)
    allowed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    transient: Transient = ()


def replicated(tables: IntraOpTables, tensors: Iterable[int]) -> dict[int, Sharding]:
    return {k: Sharding.replicated(len(tables.graph.tensors[k].shape)) for k in tensors}


def split_greedily(
    mesh: Mesh,
    shape: tuple[int, ...],
    order: Callable[[tuple[int, ...]], Iterable[int]],
    axes: Axes | None = None,
) -> Sharding:
    """Give each axis (all by default) in turn to the first dimension, in `order` of the local
    shape, it divides."""
    dims: list[Axes] = [()] * len(shape)
    local = list(shape)
    for axis in live_axes(mesh) if axes is None else axes:
        size = mesh.axis_size(axis)
        place = next(
            (d for d in order(tuple(local)) if d < len(local) and local[d] % size == 0), None
        )
        if place is not None:
            dims[place] = (*dims[place], axis)
            local[place] //= size
    return Sharding(tuple(dims))


def split_longest(mesh: Mesh, shape: tuple[int, ...], axes: Axes) -> Sharding:
    """Split the longest dimension that all the axes divide together, which one collective can do;
    where there is none, axis by axis."""
    count = tiles(mesh, axes)
    place = next((dim for dim in largest(shape) if shape[dim] % count == 0), None)
    if place is None:
        return split_greedily(mesh, shape, largest, axes)
    return Sharding(tuple(axes if dim == place else () for dim in range(len(shape))))


def split_further(mesh: Mesh, shape: tuple[int, ...], sharding: Sharding, axes: Axes) -> Sharding:
    """Split the dimensions that `sharding` leaves whole by these axes too, the longest first."""
    rest = tuple(1 if taken else extent for extent, taken in zip(shape, sharding.dims, strict=True))
    others = split_longest(mesh, rest, axes)
    return Sharding(
        tuple(taken or other for taken, other in zip(sharding.dims, others.dims, strict=True))
    )


def largest(local: tuple[int, ...]) -> Iterable[int]:
    """Dimensions, the longest first."""
    return sorted(range(len(local)), key=lambda dim: -local[dim])


def tiles(mesh: Mesh, axes: Iterable[str]) -> int:
    return prod(mesh.axis_size(axis) for axis in axes)


def strategies_that_split(
    tables: IntraOpTables, op: int, split: Split, scatter: Dims | None = None
) -> tuple[int, ...]:
    """The strategies of an operation whose operands and results lie as `split` says, whether or not
    sums over a split factor are finished; with `scatter`, those whose one result lies so instead.
    Empty when there is none."""
    rule = tables.graph.ops[op].rule
    if rule is None:
        return () if split else (0,)
    operands = dims_of(rule, rule.operands, split)
    results = (scatter,) if scatter is not None else dims_of(rule, rule.results, split)
    return tuple(
        number
        for number, strategy in enumerate(tables.ops[op].strategies)
        if tuple(sharding.dims for sharding in strategy.operands[: len(operands)]) == operands
        and tuple(sharding.dims for sharding in strategy.results) == results
    )


def strategies_within(tables: IntraOpTables, op: int, axes: Axes) -> tuple[int, ...]:
    """The strategies that use no other axes than these."""
    return tuple(
        number
        for number, strategy in enumerate(tables.ops[op].strategies)
        if all(
            axis in axes
            for sharding in (*strategy.operands, *strategy.results)
            for axis in sharding.axes
        )
    )


def in_full(tables: IntraOpTables, op: int) -> tuple[int, ...]:
    """The strategies that split no value of the operation; number 0 is always among them."""
    return strategies_within(tables, op, ())


def finished(tables: IntraOpTables, op: int, numbers: Iterable[int]) -> tuple[int, ...]:
    """Those of the strategies that leave no sum unfinished."""
    chosen = tables.ops[op].strategies
    return tuple(
        n for n in numbers if not any(sharding.unreduced for sharding in chosen[n].results)
    )


def scattering(
    tables: IntraOpTables, op: int, split: Split, over: Axes | None = None
) -> tuple[int, ...]:
    """The strategies that sum over the split factors and leave each device a part of the sum; with
    `over`, parts along these axes alone, summed along the others or left open there."""
    rule = tables.graph.ops[op].rule
    if rule is None:
        return ()
    operands, results = dims_of(rule, rule.operands, split), dims_of(rule, rule.results, split)
    reduced = {axis for factor in rule.reduction for axis in split.get(factor, ())}
    own = {axis for dims in results for axes in dims for axis in axes}
    return tuple(
        number
        for number, strategy in enumerate(tables.ops[op].strategies)
        if tuple(sharding.dims for sharding in strategy.operands[: len(operands)]) == operands
        and tuple(sharding.dims for sharding in strategy.results) != results
        and is_part(strategy.results, reduced, own, over)
    )


def is_part(
    results: Sequence[Sharding], reduced: Set[str], own: Set[str], over: Axes | None
) -> bool:
    """Whether results lie in parts along all `reduced` axes, or along those of them that are among
    `over`; their `own` axes split them anyway."""
    scattered = reduced if over is None else reduced & set(over)
    axes = {axis for sharding in results for axis in sharding.axes}
    return scattered <= axes and axes <= scattered | own


def dims_of(
    rule: FactorRule, mappings: Sequence[tuple[tuple[int, ...], ...]], split: Split
) -> tuple[Dims, ...]:
    """How operands or results lie when factors are split."""
    return tuple(
        tuple(
            tuple(axis for factor in factors for axis in split.get(factor, ()))
            for factors in mapping
        )
        for mapping in mappings
    )

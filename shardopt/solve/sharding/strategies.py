"""Strategies of one operation: mesh axes assigned to the factors of its Shardy rule, and what each choice costs.

A strategy puts every live mesh axis on at most one factor. Operand and result shardings follow from the factors of
their dimensions. An axis on a contracted factor leaves every device with a partial result. It is made whole at once, by
an all-reduce, or by a reduce-scatter that also shards a result dimension along the axis (XLA's CPU backend emits that
as all-reduce and slice; GPU and TPU backends fuse the two); or it stays partial, where `linear` found
that its readers are linear in it. Such a reader may put an axis on partial operands instead of a factor: it works on
the terms, and its result is partial along the axis or made whole in the same ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from shardopt.cost.cluster import Cluster, Device
from shardopt.cost.collectives import ALL_REDUCE, PERMUTE, REDUCE_SCATTER, Step
from shardopt.cost.graph import MARKER, FactorRule, Op, Tensor
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.cost.shardings import all_shardings as all_shardings
from shardopt.cost.shardings import live_axes as live_axes
from shardopt.cost.windows import exchanges, reach
from shardopt.solve.sharding.factors import Axes, Split, is_feasible, shardable_factors
from shardopt.solve.sharding.kernel_bytes import Accesses, accessed_bytes
from shardopt.solve.sharding.linear import CLOSED, Linear
from shardopt.solve.sharding.strategies_cost import communication_seconds, compute_seconds

Terms = Mapping[tuple[int, ...], Axes]  # the axes along which the operands of a linear mode are partial


@dataclass(frozen=True)
class Strategy:
    """One way to partition an operation, with its seconds for one execution on one device.

    `reduced` are the axes along which the operation leaves terms of its result; `collectives` take the sum, if it is
    not left open. `unscattered` are the result shardings that tell the partitioner the strategy: what the operation
    itself makes when it works on partial operands, otherwise what all-reduces instead of reduce-scatters give.
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    unscattered: tuple[Sharding, ...]
    reduced: Axes
    collectives: tuple[Step, ...]
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

    def __str__(self) -> str:
        kinds = "".join(f" {step.kind}({', '.join(step.axes)})" for step in self.collectives)
        return f"{', '.join(map(str, self.operands))} -> {', '.join(map(str, self.results))}{kinds}"


def marker_strategy(sharding: Sharding) -> Strategy:
    """An operation that hands its operand on in one given sharding: what is before it is resharded, for a price of its
    own."""
    return Strategy((sharding,), (sharding,), (sharding,), (), (), 0.0, 0.0)


def op_strategies(
    op: Op,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    mesh: Mesh,
    cluster: Cluster,
    linear: Linear = CLOSED,
    accesses: Accesses | None = None,
) -> tuple[Strategy, ...]:
    """All strategies of `op` in a fixed order, the replicated one first. An opaque op has that one only. `linear` says
    which operands and results may be partial, `accesses` in how many kernels the op touches each of its tensors: in one
    of its own, by default."""
    device = cluster.group_of(mesh).device
    pricer = _Pricer(op, tuple(operands), tuple(results), mesh, cluster, device, accesses)
    return tuple(
        pricer.strategy(split, terms, *shardings, final)
        for split, terms in _splits(op, mesh, linear)
        if (shardings := _shardings(op, split, terms, operands, results, mesh)) is not None
        for final in _forms(_reduced(op, split, terms, mesh), terms, shardings[1], results, mesh, linear)
    )


class LeastCompute:
    """No strategy of `op` computes one execution faster than `seconds`: every axis that can split anything does, and
    all that it reads and writes stays inside of kernels."""

    def __init__(self, op: Op, operands: Sequence[Tensor], results: Sequence[Tensor], cluster: Cluster) -> None:
        moving = {window.factor for window in op.windows}
        # What may be split: 0 for a factor along which data moves, which any axis can split.
        self._extents = {
            0 if factor in moving else op.rule.sizes[factor] for factor in shardable_factors(op) if op.rule is not None
        }
        self._op, self._operands, self._results, self._cluster = op, tuple(operands), tuple(results), cluster
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, mesh: Mesh) -> float:
        sizes = [size for _, size in mesh.axes if size > 1]
        shards = prod([size for size in sizes if any(extent % size == 0 for extent in self._extents)])
        key = (self._cluster.group_index(mesh.devices[0]), shards)
        if key not in self._known:
            tensors, device = (*self._operands, *self._results), self._cluster.group_of(mesh).device
            accesses = (0,) * len(tensors)
            pricer = _Pricer(self._op, self._operands, self._results, mesh, self._cluster, device, accesses)
            self._known[key] = pricer.share_seconds(shards, [tensor.size_bytes / shards for tensor in tensors])
        return self._known[key]


def is_made_anywhere(op: Op, operands: Sequence[Tensor]) -> bool:
    """Whether every reader can have the result in the sharding it wants for nothing: constants, iotas and broadcast
    scalars are made where they are used."""
    if op.name == "broadcast_in_dim":
        return not operands[0].shape
    return op.name in ("constant", "iota")


def _splits(op: Op, mesh: Mesh, linear: Linear) -> Iterator[tuple[Split, Terms]]:
    """Assignments of axes to factors that divide evenly and to linear modes; the empty one comes first."""
    axes = live_axes(mesh)
    for targets in product((None, *shardable_factors(op), *linear.modes), repeat=len(axes)):
        split: dict[int, Axes] = {}
        terms: dict[tuple[int, ...], Axes] = {}
        for axis, target in zip(axes, targets, strict=True):
            if isinstance(target, int):
                split[target] = (*split.get(target, ()), axis)
            elif target is not None:
                terms[target] = (*terms.get(target, ()), axis)
        if is_feasible(op, split, mesh) and not (terms and _moves(op, split)):
            yield split, terms


def _moves(op: Op, split: Split) -> bool:
    """Whether borders are exchanged, which nobody has tried on partial values."""
    return any(window.factor in split for window in op.windows)


def _shardings(
    op: Op, split: Split, terms: Terms, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh
) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]] | None:
    """Shardings of operands and reduced results, or None if one of them is no plain tile assignment."""
    if op.rule is None:
        return tuple(map(_replicated, operands)), tuple(map(_replicated, results))
    found = []
    for tensors, mappings in ((operands, op.rule.operands), (results, op.rule.results)):
        shardings = []
        for mapping in mappings:
            sharding = _sharding(mapping, split, op.rule, mesh)
            if sharding is None:
                return None
            shardings.append(sharding)
        # Values that regions capture stand behind the operands of the rule.
        found.append((*shardings, *map(_replicated, tensors[len(mappings) :])))
    return tuple(_partial(sharding, k, terms, mesh) for k, sharding in enumerate(found[0])), found[1]


def _partial(sharding: Sharding, position: int, terms: Terms, mesh: Mesh) -> Sharding:
    over = {axis for mode, axes in terms.items() if position in mode for axis in axes}
    return Sharding(sharding.dims, tuple(axis for axis in mesh.axis_names if axis in over))


def _replicated(tensor: Tensor) -> Sharding:
    return Sharding.replicated(len(tensor.shape))


def _sharding(mapping: tuple[tuple[int, ...], ...], split: Split, rule: FactorRule, mesh: Mesh) -> Sharding | None:
    dims = [_dim_axes(factors, split, rule, mesh) for factors in mapping]
    return None if None in dims else Sharding(tuple(dims))  # type: ignore[arg-type]


def _dim_axes(factors: Sequence[int], split: Split, rule: FactorRule, mesh: Mesh) -> Axes | None:
    """Axes that split a dimension made of `factors`, or None when the tiles would not be contiguous.

    Contiguous tiles come from splitting the major-most factor, and a further one only where all before it are split
    into single elements.
    """
    axes: Axes = ()
    exhausted = True
    for factor in factors:
        over = split.get(factor, ())
        if over and not exhausted:
            return None
        axes += over
        exhausted = exhausted and _tiles(mesh, over) == rule.sizes[factor]
    return axes


def _forms(
    reduced: Axes,
    terms: Terms,
    results: tuple[Sharding, ...],
    tensors: Sequence[Tensor],
    mesh: Mesh,
    linear: Linear,
) -> Iterator[tuple[Sharding, ...]]:
    """The shardings in which the results may end: all-reduced, scattered onto one dimension, partial.

    Scattering some axes and all-reducing others, or onto several dimensions, doubles the strategies of a contraction
    over two axes and with it the time of the solver twentyfold, and improved plans by 0.01 % where it was tried.
    """
    if not terms or linear.sums:
        yield results
        if reduced and len(results) == 1:
            scattered = (_scattered(results[0], reduced, dim) for dim in range(results[0].rank))
            yield from ((sharding,) for sharding in scattered if _fits(sharding, tensors[0].shape, mesh))
    contracted = {axis for axes in terms.values() for axis in axes} != set(reduced)
    if reduced and linear.open and (linear.contracts or not contracted):
        yield (Sharding(results[0].dims, reduced),)


def _reduced(op: Op, split: Split, terms: Terms, mesh: Mesh) -> Axes:
    over = {axis for factor, axes in split.items() if op.rule and factor in op.rule.reduction for axis in axes}
    over.update(axis for axes in terms.values() for axis in axes)
    return tuple(axis for axis in mesh.axis_names if axis in over)


def _scattered(sharding: Sharding, axes: Axes, dim: int) -> Sharding:
    """The axes become the minor ones of the dimension: the device keeps a part of what it has."""
    return Sharding((*sharding.dims[:dim], (*sharding.dims[dim], *axes), *sharding.dims[dim + 1 :]))


def _fits(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Even, and in the canonical order of axes, so that the same layout does not appear in two spellings."""
    order = mesh.axis_names.index
    return all(list(dim) == sorted(dim, key=order) for dim in sharding) and all(
        extent % tiles == 0 for extent, tiles in zip(shape, sharding.tile_counts(mesh), strict=True)
    )


def _tiles(mesh: Mesh, axes: Axes) -> int:
    return prod(mesh.axis_size(axis) for axis in axes)


@dataclass(frozen=True)
class _Pricer:
    op: Op
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    mesh: Mesh
    cluster: Cluster
    device: Device
    accesses: Accesses | None

    def strategy(
        self,
        split: Split,
        terms: Terms,
        operands: tuple[Sharding, ...],
        results: tuple[Sharding, ...],
        final: tuple[Sharding, ...],
    ) -> Strategy:
        reduced = _reduced(self.op, split, terms, self.mesh)
        borders = self._borders(split, operands)
        collectives: tuple[Step, ...] = ()
        if reduced and not final[0].partial:
            # A reduction of several operands at once (no single reducer) is never split, so there is one result here.
            local_bytes = self._local_bytes(self.results[0], results[0])
            collectives = (Step(ALL_REDUCE if final == results else REDUCE_SCATTER, reduced, local_bytes),)
        return Strategy(
            operands,
            final,
            (Sharding(results[0].dims, reduced),) if terms else results if collectives else final,
            reduced,
            (*borders, *collectives),
            self._compute_seconds(split, operands, results),
            communication_seconds(self.cluster, self.mesh, (*borders, *collectives)),
        )

    def _borders(self, split: Split, operands: tuple[Sharding, ...]) -> tuple[Step, ...]:
        """Permutes that bring the elements of neighbours which windows reach."""
        held = self._local_bytes(self.operands[0], operands[0]) if self.op.windows else 0.0
        steps: list[Step] = []
        for window in self.op.windows:
            over = split.get(window.factor, ())
            if over:
                tiles = _tiles(self.mesh, over)
                line = held * tiles / window.source
                steps += [Step(PERMUTE, over, line * elements) for elements in exchanges(window, tiles)]
                held = line * reach(window, tiles)
        return tuple(steps)

    def _compute_seconds(self, split: Split, operands: tuple[Sharding, ...], results: tuple[Sharding, ...]) -> float:
        shards = prod(_tiles(self.mesh, axes) for axes in split.values())
        tensors, shardings = (*self.operands, *self.results), (*operands, *results)
        return self.share_seconds(shards, [self._local_bytes(*pair) for pair in zip(tensors, shardings, strict=True)])

    def share_seconds(self, shards: int, sizes: Sequence[float]) -> float:
        """Seconds of one of `shards` devices, which holds so many bytes of the operands and results."""
        if self.op.name == MARKER:
            return 0.0
        # What is fused moves nothing, but still does something for each element of its result.
        work = max(self.op.weighted_flops, sum(prod(tensor.shape) for tensor in self.results)) / shards
        count = len(self.operands)
        alone = accessed_bytes(self.op.name, count, sizes, (1,) * len(sizes))
        moved = alone if self.accesses is None else accessed_bytes(self.op.name, count, sizes, self.accesses)
        dtype = self.results[0].dtype if self.results else "f32"
        return compute_seconds(self.device, self.op.name, work, alone, moved, dtype, self._is_batched())

    def _is_batched(self) -> bool:
        """Whether a factor with more than one element is in all operands and results of a product."""
        rule = self.op.rule
        if rule is None or len(rule.operands) != 2:
            return False
        sides = [{f for dim in mapping for f in dim} for mapping in (*rule.operands, *rule.results)]
        return any(rule.sizes[factor] > 1 for factor in set.intersection(*sides))

    def _local_bytes(self, tensor: Tensor, sharding: Sharding) -> float:
        return tensor.size_bytes / _tiles(self.mesh, sharding.axes)

"""Strategies of one operation: mesh axes assigned to the factors of its Shardy rule, and what each
choice costs.

A strategy puts every live mesh axis on at most one factor. Operand and result shardings follow from
the factors of their dimensions. An axis on a contracted factor leaves every device with an
unreduced result. It is made whole at once, by an all-reduce, or by a reduce-scatter that also
shards a result dimension along the axis (XLA's CPU backend emits that as all-reduce and slice; GPU
and TPU backends fuse the two), or by both, one along the faster axes and one along the slower ones;
or it stays unreduced, where `linear` found that its readers are linear in it. Such a reader may put
an axis on unreduced operands instead of a factor: it works on the terms, and its result is
unreduced along the axis or made whole in the same ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from shardopt.cost.attention import least_attention_seconds
from shardopt.cost.collectives import ALL_REDUCE, PERMUTE, REDUCE_SCATTER, Step
from shardopt.cost.compute import copy_seconds, held_seconds, peak_flops
from shardopt.cost.products import Product
from shardopt.graph.op_graph import MARKER, Island, Op, Tensor
from shardopt.graph.windows import exchanges, reach
from shardopt.hardware.cluster import Cluster, Device
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import all_shardings as all_shardings
from shardopt.mesh.shardings import live_axes as live_axes
from shardopt.mesh.splits import may_split, tile_extent
from shardopt.solve.sharding.kernels.kernel_bytes import (
    Accesses,
    accessed_bytes,
    copied_bytes,
    kernels_of,
)
from shardopt.solve.sharding.strategies.costs import CommunicationCosts, compute_seconds
from shardopt.solve.sharding.strategies.factors import Axes, Split, shardable_factors
from shardopt.solve.sharding.strategies.layouts import (
    Layout,
    Layouts,
    SplitLayout,
    axis_names,
    tiles,
)
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear
from shardopt.solve.sharding.strategies.product_sizes import product_of

_PRODUCTS = frozenset({"dot_general", "dot", "convolution"})


@dataclass(frozen=True)
class Strategy:
    """One way to partition an operation, with its seconds for one execution on one device.

    `reduced` are the axes along which the operation leaves terms of its result; `collectives` take
    the sum, if it is not left unreduced. `unscattered` are the result shardings that tell the
    partitioner the strategy: what the operation itself makes when it works on unreduced operands,
    otherwise what all-reduces instead of reduce-scatters give."""

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
    """An operation that hands its operand on in one given sharding: what is before it is resharded,
    at a cost of its own."""
    return Strategy(
        operands=(sharding,),
        results=(sharding,),
        unscattered=(sharding,),
        reduced=(),
        collectives=(),
        compute_seconds=0.0,
        communication_seconds=0.0,
    )


def op_strategies(
    op: Op,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    mesh: Mesh,
    cluster: Cluster,
    linear: Linear = REDUCED,
    accesses: Accesses | None = None,
) -> tuple[Strategy, ...]:
    """All strategies of `op` in a fixed order, the replicated one first. An opaque op has that one
    only. `linear` says which operands and results may be unreduced, `accesses` in how many kernels
    the op touches each of its tensors: in one of its own, by default."""
    layout = Layouts().of(op, operands, results, mesh, linear)
    return layout_strategies(
        layout, op, operands, results, CommunicationCosts(cluster, mesh), accesses
    )


def layout_strategies(
    layout: Layout,
    op: Op,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    links: CommunicationCosts,
    accesses: Accesses | None,
) -> tuple[Strategy, ...]:
    """The strategies of a layout of `op`, with their costs on the mesh of `links`."""
    device = links.cluster.group_of(links.mesh).device
    costs = _StrategyCosts(
        op=op,
        operands=tuple(operands),
        results=tuple(results),
        mesh=links.mesh,
        device=device,
        accesses=accesses,
    )
    return tuple(strategy for split in layout.splits for strategy in costs.strategies(split, links))


class LeastCompute:
    """No strategy of `op` computes one execution faster than `seconds`: every axis that can split
    anything does, and all that it reads and writes stays inside of kernels."""

    def __init__(
        self, op: Op, operands: Sequence[Tensor], results: Sequence[Tensor], cluster: Cluster
    ) -> None:
        moving = {window.factor for window in op.windows}
        # What may be split: 0 for a factor along which data moves, which any axis can split.
        self._extents = {
            0 if factor in moving else op.rule.sizes[factor]
            for factor in shardable_factors(op)
            if op.rule is not None
        }
        self._op = op
        self._operands = tuple(operands)
        self._results = tuple(results)
        self._cluster = cluster
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, mesh: Mesh) -> float:
        sizes = [size for _, size in mesh.axes if size > 1]
        shards = prod(
            [size for size in sizes if any(may_split(extent, size) for extent in self._extents)]
        )
        key = (self._cluster.group_index(mesh.devices[0]), shards)
        if key not in self._known:
            tensors, device = (*self._operands, *self._results), self._cluster.group_of(mesh).device
            accesses = Accesses((0,) * len(tensors))
            costs = _StrategyCosts(
                op=self._op,
                operands=self._operands,
                results=self._results,
                mesh=mesh,
                device=device,
                accesses=accesses,
            )
            held = [tensor.size_bytes / shards for tensor in tensors]
            self._known[key] = min(
                costs.share_seconds(shards, held), costs.least_in_attention(shards)
            )
        return self._known[key]


def is_cheap_to_clone(op: Op, operands: Sequence[Tensor]) -> bool:
    """Whether every reader can have the result in the sharding it wants for nothing: constants,
    iotas and broadcast scalars are made where they are used."""
    if op.name == "broadcast_in_dim":
        return not operands[0].shape
    return op.name in ("constant", "iota")


def island_steps(island: Island, mesh: Mesh) -> tuple[Step, ...]:
    """The collectives that a region written for one device asks for itself."""
    names = axis_names(island, mesh)
    return tuple(
        Step(kind, tuple(own for axis in axes for own in names.get(axis, ())), bytes)
        for kind, axes, bytes, count in island.steps
        for _ in range(count)
    )


def _is_in_steps(sums: tuple[Step, ...], final: Sharding) -> bool:
    """Whether collectives take a sum that is no sum in between, or not all of it."""
    return len(sums) > 1 or (len(sums) > 0 and len(final.unreduced) > 0)


@dataclass(frozen=True, eq=False)
class _StrategyCosts:
    op: Op
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    mesh: Mesh
    device: Device
    accesses: Accesses | None

    def strategies(self, layout: SplitLayout, links: CommunicationCosts) -> Iterator[Strategy]:
        borders, seconds = self._borders(layout), self._compute_seconds(layout)
        if self.op.island is not None:
            borders = island_steps(self.op.island, self.mesh)
        for final in layout.forms:
            # A reduction of several operands at once (no single reducer) is never split: there is
            # one result where axes are reduced.
            collectives = self._sums(layout, final[0]) if layout.reduced else ()
            unscattered = layout.made if collectives else final
            if layout.has_terms or _is_in_steps(collectives, final[0]):
                unscattered = (Sharding(layout.made[0].dims, layout.reduced),)
            steps = (*borders, *collectives)
            yield Strategy(
                operands=layout.operands,
                results=final,
                unscattered=unscattered,
                reduced=layout.reduced,
                collectives=steps,
                compute_seconds=seconds,
                communication_seconds=links.seconds(steps),
            )

    def _sums(self, layout: SplitLayout, final: Sharding) -> tuple[Step, ...]:
        """The collectives that make the `final` result of terms along the axes `reduced`: scattered
        along those that split it further, and what is left of it all-reduced along the others."""
        left = [axis for axis in layout.reduced if axis not in final.unreduced]
        scattered = tuple(axis for axis in left if axis in final.axes)
        summed = tuple(axis for axis in left if axis not in final.axes)
        local = self._local_bytes(self.results[0], layout.made[0])
        steps = (
            Step(REDUCE_SCATTER, scattered, local),
            Step(ALL_REDUCE, summed, local / tiles(self.mesh, scattered)),
        )
        return tuple(step for step in steps if step.axes)

    def _borders(self, layout: SplitLayout) -> tuple[Step, ...]:
        """Permutes that bring the elements of neighbours which windows reach."""
        held = self._local_bytes(self.operands[0], layout.operands[0]) if self.op.windows else 0.0
        steps: list[Step] = []
        for window in self.op.windows:
            over = layout.split.get(window.factor, ())
            if over:
                count = tiles(self.mesh, over)
                line = held / tile_extent(window.source, count)
                steps += [
                    Step(PERMUTE, over, line * elements) for elements in exchanges(window, count)
                ]
                # The borders of the next dimension include those that have come with this one.
                held = line * reach(window, count)
        return tuple(steps)

    def _compute_seconds(self, layout: SplitLayout) -> float:
        shards = self._shards(layout.split)
        tensors, shardings = (*self.operands, *self.results), (*layout.operands, *layout.made)
        product = None
        if self.op.name in _PRODUCTS:
            shapes = [
                sharding.local_shape(self.mesh, tensor.shape)
                for tensor, sharding in zip(tensors, shardings, strict=True)
            ]
            product = product_of(self.op, tensors, shapes, self._work / shards)
        return self.share_seconds(
            shards,
            [self._local_bytes(*pair) for pair in zip(tensors, shardings, strict=True)],
            product,
        )

    def _shards(self, split: Split) -> float:
        """By how much the work of a device is less than all of it: the number of tiles, less what
        they compute of padding."""
        shards = float(prod(tiles(self.mesh, axes) for axes in split.values()))
        for factor, axes in split.items():
            assert self.op.rule is not None
            extent, count = self.op.rule.sizes[factor], tiles(self.mesh, axes)
            if extent % count:
                shards *= extent / (tile_extent(extent, count) * count)
        return shards

    def share_seconds(
        self, shards: float, sizes: Sequence[float], product: Product | None = None
    ) -> float:
        """Seconds of one of `shards` devices, which holds so many bytes of the operands and
        results; the least of any `product` where none is named."""
        if self.op.name == MARKER:
            return 0.0
        work = self._work / shards
        count = len(self.operands)
        alone = accessed_bytes(self.op.name, count, sizes, self._once)
        moved = (
            alone
            if self.accesses is None
            else accessed_bytes(self.op.name, count, sizes, self.accesses)
        )
        dtype = self._dtype
        attention = self.accesses.attention if self.accesses else ()
        if self.op.attention is not None:
            attention = (self.op.attention,)
        seconds = compute_seconds(
            device=self.device,
            name=self._of_products,
            flops=work,
            alone_bytes=alone,
            kernel_bytes=moved,
            dtype=dtype,
            kernels=self._kernels,
            batched=self._is_batched or self.op.attention is not None,
            product=product,
            attention=attention,
        )
        if self.accesses is not None and (held := self.accesses.held) is not None:
            elements = sizes[0] / self.operands[0].itemsize
            seconds += held_seconds(self.device, elements, held)
        if self.accesses is None or not self.accesses.copies:
            return seconds
        copied, copies = copied_bytes(sizes, self.accesses), sum(self.accesses.copies)
        return seconds + copy_seconds(self.device, copied, copies, dtype)

    def least_in_attention(self, shards: int) -> float:
        """Seconds if the operation were part of attention whose kernels are the fastest; inf where
        it cannot be."""
        kernels = self.device.kernels
        if kernels is None or not kernels.attention or self.op.name not in _PRODUCTS:
            return inf
        peak = peak_flops(self.device, self._dtype)
        return least_attention_seconds(kernels.attention, peak, self._work / shards)

    @cached_property
    def _once(self) -> Accesses:
        """Each tensor in one kernel."""
        return Accesses((1,) * (len(self.operands) + len(self.results)))

    @cached_property
    def _kernels(self) -> int:
        return kernels_of(self.op.name, len(self.operands), len(self.results), self.accesses)

    @cached_property
    def _work(self) -> float:
        """What is fused moves nothing, but still does something for each element of its result."""
        return max(self.op.weighted_flops, sum(prod(tensor.shape) for tensor in self.results))

    @property
    def _of_products(self) -> str:
        """The name of operations that take as long as this one for as many FLOPs."""
        return "dot_general" if self.op.attention is not None else self.op.name

    @cached_property
    def _dtype(self) -> str:
        """Units multiply in the type of the operands, and add up in a wider one where the result
        has that."""
        if self.op.name in _PRODUCTS:
            return max(self.operands[:2], key=lambda tensor: tensor.itemsize).dtype
        return self.results[0].dtype if self.results else "f32"

    @cached_property
    def _is_batched(self) -> bool:
        """Whether a factor with more than one element is in all operands and results of a
        product."""
        rule = self.op.rule
        if rule is None or len(rule.operands) != 2:
            return False
        sides = [{f for dim in mapping for f in dim} for mapping in (*rule.operands, *rule.results)]
        return any(rule.sizes[factor] > 1 for factor in set.intersection(*sides))

    def _local_bytes(self, tensor: Tensor, sharding: Sharding) -> float:
        return sharding.local_elements(self.mesh, tensor.shape) * tensor.itemsize

"""The data-parallel presets: the batch is split over the mesh, and they differ in where the state
lies.

* `data`: weights and optimizer state whole on every device, gradients all-reduced (Li et al., arXiv
  2006.15704).
* `zero1`, `zero2`, `zero3`: ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5): optimizer state
  split; gradients reduce-scattered too; weights split too and gathered for use (FSDP, Zhao et al.,
  arXiv 2304.11277).
* `mics`: the state split as in `zero3` over the innermost axis only, one copy for each index of the
  others (MiCS, Zhang et al., arXiv 2205.00119, section 3).

An operation that carries the batch is split along it and no other way; what depends on the batch
but does not carry it (batch statistics, the loss) is whole. How weights are gathered and shards are
updated is the solver's choice between those. In a loop over microbatches gradients are added up on
each device and exchanged once, behind the loop. A tensor of state is split along its longest
dimension; one that no dimension divides stays whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardopt.graph.op_graph import MARKER
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    Axes,
    InputKinds,
    Restriction,
    Split,
    finished,
    in_full,
    largest,
    replicated,
    scattered_or_unreduced,
    split_greedily,
    strategies_that_split,
    strategies_within,
    tiles,
)
from shardopt.solve.presets.flow import BatchFlow, follow_batch
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError


@dataclass(frozen=True, eq=False)
class DataParallel:
    """A graph whose batch is split over `axes`: those of the wanted ones that divide it."""

    tables: IntraOpTables
    flow: BatchFlow
    axes: Axes

    def inputs(self) -> dict[int, Sharding]:
        """The shardings of the tensors in which the batch starts."""
        shardings = {}
        for tensor, place in self.flow.seeds.items():
            rank = len(self.tables.graph.tensors[tensor].shape)
            shardings[tensor] = Sharding(
                tuple(self.axes if dim == place else () for dim in range(rank))
            )
        return shardings

    def split(self, op: int) -> Split:
        """The split of an operation along the batch, empty when it has none or an uneven one."""
        factor, rule = self.flow.factors[op], self.tables.graph.ops[op].rule
        if (
            factor is None
            or rule is None
            or rule.sizes[factor] % tiles(self.tables.mesh, self.axes)
        ):
            return {}
        return {factor: self.axes}

    def activations(self) -> dict[int, Sequence[int]]:
        """The strategies of all operations that depend on the batch, without the update; sums are
        finished at once."""
        strategies: dict[int, Sequence[int]] = {}
        for op, node in enumerate(self.tables.graph.ops):
            batched = self.flow.factors[op] is not None
            if batched or (
                node.results and self.flow.depends[node.results[0]] and op not in self.flow.update
            ):
                numbers = strategies_that_split(self.tables, op, self.split(op)) or in_full(
                    self.tables, op
                )
                strategies[op] = finished(self.tables, op, numbers) or numbers
        return strategies

    def allowed(self, update_axes: Axes | None = None) -> dict[int, Sequence[int]]:
        """`activations`, and the update without axes other than these (those of the batch by
        default)."""
        axes, activations = self.axes if update_axes is None else update_axes, self.activations()
        if axes == live_axes(self.tables.mesh):
            return activations
        others = sorted(set(range(len(self.tables.graph.ops))) - activations.keys())
        return {**{op: strategies_within(self.tables, op, axes) for op in others}, **activations}

    def sums_once_a_step(self) -> dict[int, Sequence[int]]:
        """Gradients of a loop over microbatches as values that stay unreduced in it, and are
        finished, whole, behind it."""
        graph = self.tables.graph
        looped = [op for op in sorted(self.flow.gradients) if graph.ops[op].repeat > 1]
        summed = {op: strategies_that_split(self.tables, op, self.split(op)) for op in looped}
        sum_points = [op for op in sorted(self.flow.update) if graph.ops[op].name == MARKER]
        whole = {op: finished(self.tables, op, in_full(self.tables, op)) for op in sum_points}
        return {op: numbers for op, numbers in (*summed.items(), *whole.items()) if numbers}

    def scattered_gradients(self) -> dict[int, Sequence[int]]:
        """The gradients as sums that are scattered, or left for their readers to finish, where that
        is possible."""
        scattered: dict[int, Sequence[int]] = {}
        for op in sorted(self.flow.gradients):
            split = self.split(op)
            if split and (better := scattered_or_unreduced(self.tables, op, split)):
                scattered[op] = better
        return scattered

    def shards(self, tensors: Iterable[int], axes: Axes) -> dict[int, Sharding]:
        shapes = {k: self.tables.graph.tensors[k].shape for k in sorted(tensors)}
        return {
            k: split_greedily(self.tables.mesh, shape, largest, axes) for k, shape in shapes.items()
        }


def data_parallel(
    tables: IntraOpTables, input_kinds: InputKinds, preset: str, axes: Axes | None = None
) -> DataParallel:
    """Over all axes by default. Raises UserError when the batch is not known or divides over none
    of the axes."""
    flow = follow_batch(tables.graph, input_kinds, preset)
    candidates = live_axes(tables.mesh) if axes is None else axes
    taken: Axes = ()
    for axis in candidates:
        # Axis by axis: one that does not divide the batch is left to repeat the work.
        if flow.extent % tiles(tables.mesh, (*taken, axis)) == 0:
            taken = (*taken, axis)
    if candidates and not taken:
        sizes = ", ".join(f"{axis}={tables.mesh.axis_size(axis)}" for axis in candidates)
        raise UserError(
            f"preset '{preset}' splits the batch: expected an extent that {sizes} divides, "
            f"found {flow.extent}"
        )
    return DataParallel(tables, flow, taken)


def data(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    plan = data_parallel(tables, input_kinds, "data")
    others: dict[int, Sequence[int]] = {
        op: in_full(tables, op)
        for op, node in enumerate(tables.graph.ops)
        if op in plan.flow.update or not tables.cheap_to_clone.issuperset(node.results)
    }
    state = replicated(tables, sorted(input_kinds.state))
    return Restriction(
        {**state, **plan.inputs()}, {**others, **plan.activations(), **plan.sums_once_a_step()}
    )


def zero1(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    plan = data_parallel(tables, input_kinds, "zero1")
    if not plan.flow.slots:
        raise UserError(
            "preset 'zero1' splits optimizer state: expected state that only the update "
            "reads, found none"
        )
    state = {
        **replicated(tables, sorted(input_kinds.state)),
        **plan.shards(plan.flow.slots, plan.axes),
    }
    return Restriction({**state, **plan.inputs()}, {**plan.allowed(), **plan.sums_once_a_step()})


def zero2(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    plan = with_gradients(tables, input_kinds, "zero2")
    state = {
        **replicated(tables, sorted(input_kinds.state)),
        **plan.shards(plan.flow.slots, plan.axes),
    }
    return Restriction({**state, **plan.inputs()}, {**plan.allowed(), **plan.scattered_gradients()})


def zero3(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    plan = with_gradients(tables, input_kinds, "zero3")
    state = plan.shards(plan.flow.weights | input_kinds.state, plan.axes)
    return Restriction({**state, **plan.inputs()}, {**plan.allowed(), **plan.scattered_gradients()})


def mics(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    axes = live_axes(tables.mesh)
    if len(axes) < 2:
        raise UserError(
            "preset 'mics' splits state along one mesh axis and repeats it along the others: "
            f"expected a mesh of at least two axes, found {tables.mesh}"
        )
    plan = with_gradients(tables, input_kinds, "mics")
    state = plan.shards(plan.flow.weights | input_kinds.state, axes[-1:])
    return Restriction(
        {**state, **plan.inputs()}, {**plan.allowed(axes[-1:]), **_unreduced_gradients(plan)}
    )


def _unreduced_gradients(plan: DataParallel) -> dict[int, Sequence[int]]:
    """Gradients that their readers may finish: scattered over one axis, all-reduced over the
    others."""
    by_gradient = {
        op: strategies_that_split(plan.tables, op, plan.split(op))
        for op in sorted(plan.flow.gradients)
    }
    return {op: numbers for op, numbers in by_gradient.items() if numbers}


def with_gradients(
    tables: IntraOpTables, input_kinds: InputKinds, preset: str, axes: Axes | None = None
) -> DataParallel:
    """Over all axes by default. Raises UserError as `data_parallel` does, and when the graph has no
    gradients."""
    plan = data_parallel(tables, input_kinds, preset, axes)
    if not plan.flow.gradients:
        raise UserError(
            f"preset '{preset}' splits gradients: expected sums over the batch that update the "
            "state, found none"
        )
    return plan

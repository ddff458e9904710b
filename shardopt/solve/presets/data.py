"""The data-parallel presets: the batch is split over the mesh, and they differ in where the state
lies.

* `data`: weights and optimizer state whole on every device, gradients all-reduced (Li et al., arXiv
  2006.15704).
* `zero1`, `zero2`, `zero3`: ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5): optimizer state
  split; gradients reduce-scattered too; weights split too and gathered for use (FSDP, Zhao et al.,
  arXiv 2304.11277).
* `autodist`: for each weight by itself the cheaper of an all-reduce and of servers that keep a part
  each (AutoSync: Zhang et al., NeurIPS'20; in AutoDist).
* `mics`: the state split as in `zero3` over the innermost axis only, one copy for each index of the
  others; gradients scattered among the devices that share a copy, and the parts all-reduced between
  copies, of a loop over microbatches once behind it (MiCS, Zhang et al., arXiv 2205.00119, sections
  3.2 and 3.4).

An operation that carries the batch is split along it and no other way; what depends on the batch
but does not carry it (batch statistics, the loss) is whole. How weights are gathered and shards are
updated is the solver's choice between those. In a loop over microbatches `data` and `zero1` add
gradients up on each device and exchange them once, behind the loop, `zero2` and `zero3`, which hold
parts of the sums, those of each microbatch. A tensor of state is split along its longest
dimension; one that no dimension divides stays whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from shardopt.graph.op_graph import MARKER
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    Axes,
    InputKinds,
    Restriction,
    Split,
    finished,
    in_full,
    replicated,
    scattering,
    split_longest,
    strategies_that_split,
    strategies_within,
    tiles,
)
from shardopt.solve.presets.flow import BatchFlow, follow_batch
from shardopt.solve.presets.sums import joined_terms, scattered_sum, scattering_terms
from shardopt.solve.presets.weights import WeightUses
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.intra_op.sharded_ops import Transient
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

    def as_split(self, op: int) -> Sequence[int]:
        """The strategies of an operation that is split as it should be or, failing that, not at
        all."""
        return strategies_that_split(self.tables, op, self.split(op)) or in_full(self.tables, op)

    def activations(self) -> dict[int, Sequence[int]]:
        """The strategies of all operations that depend on the batch, without the update; sums are
        finished at once, those of gradients where their readers have added up what belongs to one
        weight."""
        strategies: dict[int, Sequence[int]] = {}
        for op, node in enumerate(self.tables.graph.ops):
            batched = self.flow.factors[op] is not None
            if batched or (
                node.results and self.flow.depends[node.results[0]] and op not in self.flow.update
            ):
                numbers = self.as_split(op)
                whole = () if op in self.flow.gradients else finished(self.tables, op, numbers)
                strategies[op] = whole or numbers
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

    def scattered_gradients(self, stage: int, over: Axes | None = None) -> dict[int, Sequence[int]]:
        """The gradients as sums that are scattered, those of one weight added up before, where that
        is possible; with `over`, scattered along these axes alone. ZeRO `stage` 1 keeps whole ones
        over the microbatches of a loop."""
        tables, scattered = self.tables, dict[int, Sequence[int]]()
        joined = joined_terms(tables)
        for op in sorted(self.flow.gradients):
            split = self.split(op)
            if not split or (stage == 1 and tables.graph.ops[op].repeat > 1):
                continue
            if numbers := scattered_sum(tables, op, split, joined, over):
                scattered[op] = numbers
        terms = {t for op in scattered for t in tables.graph.ops[op].results}
        for op in sorted(self.flow.update):
            node = tables.graph.ops[op]
            if not joined & set(node.operands) <= terms:
                continue  # one of them is summed where it is made
            if numbers := scattering_terms(tables, op, joined, self.axes, over):
                scattered[op] = numbers
                terms.update(node.results)
        return scattered

    def whole_for_use(self, stage: int) -> dict[int, Sequence[int]]:
        """What is made of weights alone for batched operations, in full on every device. Of weights
        that are split (ZeRO `stage` 3) only what makes more of them than they are, such as a
        broadcast of a bias: weights are gathered, and not what is made of them."""
        graph, derived = self.tables.graph, WeightUses.of(self.tables.graph, self.flow).derived
        is_used = [False] * len(graph.tensors)
        whole: dict[int, Sequence[int]] = {}
        for op in reversed(range(len(graph.ops))):
            node = graph.ops[op]
            made = [is_used[result] for result in node.results]
            if self.flow.factors[op] is not None or any(made):
                for operand in node.operands:
                    is_used[operand] = derived[operand]
            read = sum(graph.tensors[t].size_bytes for t in node.operands)
            written = sum(graph.tensors[t].size_bytes for t in node.results)
            if any(made) and (stage < 3 or written > read):
                whole[op] = in_full(self.tables, op)
        return whole

    def gathered_for_use(self, stage: int) -> Transient:
        """What ZeRO 3 gathers before each use and drops behind it (section 5.3): weights, and what
        is made of them alone."""
        graph = self.tables.graph
        if stage < 3:
            return ()
        derived = WeightUses.of(graph, self.flow).derived
        return (frozenset(tensor for tensor, is_derived in enumerate(derived) if is_derived),)

    def kept_in_parts(self, stage: int, state: Mapping[int, Sharding]) -> dict[int, Sequence[int]]:
        """What ZeRO 3 makes of weights in one fragment for another, such as casts ahead of a loop
        over microbatches or the layers of a stack of weights, lies in parts as they do: whole, it
        would be held through the loop."""
        graph, numbers = self.tables.graph, dict[int, Sequence[int]]()
        lies = {weight: state[weight] for weight in self.flow.weights} if stage == 3 else {}
        for op, node in enumerate(graph.ops):
            sources = [tensor for tensor in dict.fromkeys(node.operands) if tensor in lies]
            if len(sources) == 1 and (same := self._in_parts(op, sources[0], lies[sources[0]])):
                numbers[op] = same
                lies[node.results[0]] = self.tables.ops[op].strategies[same[0]].results[0]
        consumers, kept = graph.consumers(), dict[int, Sequence[int]]()
        for op in reversed(numbers):
            readers = consumers[graph.ops[op].results[0]]
            if any(r in kept or graph.ops[r].group != graph.ops[op].group for r in readers):
                kept[op] = numbers[op]
        return kept

    def _in_parts(self, op: int, source: int, lies: Sharding) -> Sequence[int]:
        """The strategies of an operation that makes of `source`, which lies so, one value that is
        no larger, split alike: along the same dimension, where it has the same shape, and otherwise
        along the same axes."""
        tensors, node = self.tables.graph.tensors, self.tables.graph.ops[op]
        if len(node.results) != 1:
            return ()
        before, after = tensors[source].shape, tensors[node.results[0]].shape
        if prod(after) > prod(before):
            return ()
        numbers = [
            number
            for number, strategy in enumerate(self.tables.ops[op].strategies)
            if not strategy.collectives
            and _splits_alike(strategy.results[0], lies, before == after)
            and all(
                sharding == lies
                for tensor, sharding in zip(node.operands, strategy.operands, strict=False)
                if tensor == source
            )
        ]
        made = [self.tables.ops[op].strategies[number].results for number in numbers]
        return tuple(n for n, results in zip(numbers, made, strict=True) if results == made[0])

    def shards(self, tensors: Iterable[int], axes: Axes) -> dict[int, Sharding]:
        """Each split along its longest dimension; what belongs to a weight, as the weight would
        be."""
        tables, chosen = self.tables, set(tensors)

        def split(tensor: int) -> Sharding:
            return split_longest(tables.mesh, tables.graph.tensors[tensor].shape, axes)

        shardings = {tensor: split(tensor) for tensor in sorted(chosen)}
        for weight, slots in sorted(self.flow.slots_of.items()):
            whole = split(weight)
            shardings.update((s.tensor, s.like(whole)) for s in slots if s.tensor in chosen)
        return shardings


def _splits_alike(made: Sharding, lies: Sharding, same_shape: bool) -> bool:
    if same_shape:
        return made == lies
    return sorted(made.axes) == sorted(lies.axes) and not made.unreduced


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


def zero(stage: int, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """`stage` is that of ZeRO, 1 to 3."""
    return state_in_parts(
        data_for_zero(tables, input_kinds, f"zero{stage}", stage), input_kinds, stage
    )


def state_in_parts(plan: DataParallel, input_kinds: InputKinds, stage: int) -> Restriction:
    """A plan with its state split over its axes, as ZeRO `stage` 1 to 3 does."""
    tables = plan.tables
    parts = plan.flow.weights | input_kinds.state if stage == 3 else plan.flow.slots
    state = {**replicated(tables, sorted(input_kinds.state)), **plan.shards(parts, plan.axes)}
    allowed = {**plan.allowed(), **plan.whole_for_use(stage), **plan.scattered_gradients(stage)}
    allowed |= plan.kept_in_parts(stage, state)
    return Restriction({**state, **plan.inputs()}, allowed, plan.gathered_for_use(stage))


def autodist(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """Each weight with its state is whole and its gradient all-reduced, or it is split, its
    gradient scattered and the weight gathered, as the solver finds cheaper."""
    plan = data_parallel(tables, input_kinds, "autodist")
    gradients: dict[int, Sequence[int]] = {}
    for op in sorted(plan.flow.gradients):
        if split := plan.split(op):
            whole = strategies_that_split(tables, op, split)
            gradients[op] = (*whole, *scattering(tables, op, split))
    return Restriction(plan.inputs(), {**plan.allowed(), **plan.whole_for_use(3), **gradients})


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
        {**state, **plan.inputs()},
        {
            **plan.allowed(axes[-1:]),
            **plan.whole_for_use(3),
            **plan.scattered_gradients(3, axes[-1:]),
            **plan.kept_in_parts(3, state),
        },
        plan.gathered_for_use(3),
    )


def data_for_zero(
    tables: IntraOpTables,
    input_kinds: InputKinds,
    preset: str,
    stage: int,
    axes: Axes | None = None,
) -> DataParallel:
    """The batch split over `axes` (by default all) of a graph that has what ZeRO `stage` 1 to 3
    splits. Raises UserError where the batch does not divide, or there is nothing to split."""
    plan = data_parallel(tables, input_kinds, preset, axes)
    check_for_zero(plan, preset, stage)
    return plan


def check_for_zero(plan: DataParallel, preset: str, stage: int) -> None:
    """Raises UserError for a graph that has nothing for ZeRO `stage` 1 to 3 to split."""
    if stage > 1:
        _check_gradients(plan, preset)
    elif not plan.flow.slots:
        raise UserError(
            f"preset '{preset}' splits optimizer state: expected state (arguments that the step "
            "donates) that only the update reads, found none"
        )


def with_gradients(
    tables: IntraOpTables, input_kinds: InputKinds, preset: str, axes: Axes | None = None
) -> DataParallel:
    """Over all axes by default. Raises UserError as `data_parallel` does, and when the graph has no
    gradients."""
    plan = data_parallel(tables, input_kinds, preset, axes)
    _check_gradients(plan, preset)
    return plan


def _check_gradients(plan: DataParallel, preset: str) -> None:
    if not plan.flow.gradients:
        raise UserError(
            f"preset '{preset}' splits gradients: expected sums over the batch that update the "
            "state, found none"
        )

"""The tensor-parallel presets: weights are split over the innermost axis, the batch over the
others.

* `megatron` (Shoeybi et al., arXiv 1909.08053, section 3): of two matrix products in a row the
  first weight is split by its columns (outputs) and the second by its rows (inputs), so that what
  lies between stays split and one all-reduce ends the pair; the largest embedding table is split by
  its rows; what neither product reaches is whole.
* `sequence` (Korthikanti et al., arXiv 2205.05198, section 4): the all-reduce becomes a
  reduce-scatter along the sequence, so norms, dropout and residuals in between are split along it,
  and an all-gather before the next pair.
* `megatron-zero1` to `sequence-zero3`: ZeRO over the axes of the batch besides
  (`shardopt.solve.presets.split_state`), as Megatron-LM's distributed optimizer (stage 1) and FSDP
  with tensor parallelism (stage 3) do.
* `summa-2d` (Optimus: Xu et al., arXiv 2104.05343, section 3): on a grid of two axes, activations
  are split by batch and by features, weights on two dimensions; a product gathers its blocks along
  the rows and the columns of the grid.
* `2.5d` (Tesseract: Wang et al., arXiv 2105.14500, section 3): several such grids, each with the
  weights and a part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardopt.graph.op_graph import FactorRule, Op
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import InputKinds, Restriction, Split, scattering, split_further
from shardopt.solve.presets.data import DataParallel, data_for_zero, data_parallel
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.presets.split_state import with_split_state
from shardopt.solve.presets.walk import AxisWalk
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.intra_op.sharded_ops import Transient
from shardopt.solve.sharding.strategies.factors import shardable_factors
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError


class MegatronWalk(AxisWalk):
    def factors(self, op: Op) -> list[int]:
        """A gradient of the largest table is split by its rows, as the table is: each device adds
        up those of its words."""
        words = self._words(op)
        return [words] if words in set(shardable_factors(op)) else super().factors(op)

    def _words(self, op: Op) -> int | None:
        """The factor of the rows in a gradient of a table whose rows the axis splits: in a
        scattered sum, or a product with one-hot rows."""
        rule = op.rule
        if rule is None or not self.plan.flow.depends[op.results[0]]:
            return None
        if op.name == "scatter":
            shape = self.graph.tensors[op.results[0]].shape
            place = next((dim for of_table, dim in self._split_rows() if of_table == shape), None)
            return None if place is None else leading_factor(rule.results[0][place], rule.sizes)
        if self.uses.product(op) is not None:
            return None
        rows = {shape[dim] for shape, dim in self._split_rows()}
        kept = (
            leading_factor(factors, rule.sizes)
            for operand, mapping in zip(op.operands[:2], rule.operands, strict=False)
            if op.name == "dot_general" and operand in self.uses.one_hot
            for factors in mapping
            if not rule.reduction & {*factors}
        )
        return next((f for f in kept if f is not None and rule.sizes[f] in rows), None)

    def _split_rows(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """The largest tables: the shape of each, and the dimension that the axis splits."""
        for table in sorted(self.uses.vocabulary):
            shape = self.graph.tensors[table].shape
            for dim in range(len(shape)):
                if any(self.decided.get(w) == place for w, place in self.uses.origins(table, dim)):
                    yield shape, dim

    def weight_factor(self, op: Op, position: int, usable: set[int]) -> tuple[int | None, bool]:
        rule = op.rule
        assert rule is not None
        if self.uses.looks_up(op):
            is_vocabulary = op.operands[position] in self.uses.vocabulary
            of_table = [
                f
                for factors in rule.operands[position]
                for f in factors
                if f in rule.reduction & usable
            ]
            return (of_table[0] if is_vocabulary and of_table else None), False
        entering = self.factor_of(op, 1 - position)
        if entering in rule.reduction & usable and any(
            entering in factors for factors in rule.operands[position]
        ):
            return entering, True
        return self.first_output(rule, position, usable), False

    def first_output(self, rule: FactorRule, position: int, usable: set[int]) -> int | None:
        """The major-most factor of the result that is the weight's alone and that the axis
        divides."""
        leading = {leading_factor(factors, rule.sizes) for factors in rule.operands[position]}
        others = {f for factors in rule.operands[1 - position] for f in factors}
        outputs = [
            f
            for factors in rule.results[0]
            for f in factors
            if f in usable & leading and f not in others
        ]
        return next((f for f in outputs if rule.sizes[f] % self.size == 0), None)


@dataclass(eq=False)
class SequenceWalk(MegatronWalk):
    """`scattered` is the dimension of each shape, with the batch on its dimension, onto which sums
    are scattered."""

    scattered: dict[tuple[tuple[int, ...], int | None], int] = field(default_factory=dict)

    def scatter_dim(self, op: Op, factor: int) -> int | None:
        """Onto the first dimension that is neither the weight's nor the batch; onto the batch where
        both are one."""
        product, rule = self.uses.product(op), op.rule
        if product is None or rule is None or factor not in rule.reduction:
            return None
        of_weight = {f for factors in rule.operands[product] for f in factors}
        result, batch = op.results[0], self.plan.flow.dims[op.results[0]]
        places = [
            dim
            for dim, factors in enumerate(rule.results[0])
            if factors and factors[0] not in of_weight and self.divides(result, dim)
        ]
        chosen = next((dim for dim in places if dim != batch), next(iter(places), None))
        if chosen is not None:
            self.scattered[self.graph.tensors[result].shape, batch] = chosen
        return chosen

    def split_arrivals(self) -> dict[int, int]:
        """Residuals, and their gradients, go from stage to stage in the parts in which they lie."""
        flow, places = self.plan.flow, dict[int, int]()
        for tensor in sorted(self.arriving & flow.seeds.keys()):
            place = self.scattered.get((self.graph.tensors[tensor].shape, flow.seeds[tensor]))
            if place is not None and self.divides(tensor, place):
                places[tensor] = place
        return places

    def gathered_for_use(self) -> Transient:
        """What lies split along the sequence; a product's weight gradient gathers its operand once
        more (section 4.2.2)."""
        places, depends = self.where, self.plan.flow.depends
        return (frozenset(t for t, place in enumerate(places) if place is not None and depends[t]),)


class SummaWalk(MegatronWalk):
    def weight_factor(self, op: Op, position: int, usable: set[int]) -> tuple[int | None, bool]:
        assert op.rule is not None
        return self.first_output(op.rule, position, usable), False

    def scatter_dim(self, op: Op, factor: int) -> int | None:
        """Onto the features that the weight has in the result."""
        product, rule = self.uses.product(op), op.rule
        if product is None or rule is None or factor not in rule.reduction:
            return None
        of_weight = {f for factors in rule.operands[product] for f in factors}
        places = [
            dim
            for dim, factors in enumerate(rule.results[0])
            if factors and factors[0] in of_weight
        ]
        return next((dim for dim in places if self.divides(op.results[0], dim)), None)

    def strategies(self, index: int, split: Split, factor: int) -> Sequence[int]:
        numbers = super().strategies(index, split, factor)
        if index in self.plan.flow.gradients:
            return (*numbers, *scattering(self.tables, index, split))
        return numbers

    def sharding(self, shape: tuple[int, ...], place: int | None) -> Sharding:
        """Split by the other axis too, along the longest dimension that is left."""
        columns = super().sharding(shape, place)
        return (
            columns
            if place is None
            else split_further(self.tables.mesh, shape, columns, self.plan.axes[-1:])
        )

    def is_limited(self, index: int) -> bool:
        """State is on two axes, of which the walk follows one."""
        results = self.graph.ops[index].results
        in_update = index in self.plan.flow.update or any(
            self.of_state[result] for result in results
        )
        return super().is_limited(index) and not in_update


_GRID_AXES = {"summa-2d": 2, "2.5d": 3}
_COUNTS = {2: "two", 3: "three"}
_METHODS: Mapping[str, type[AxisWalk]] = {"megatron": MegatronWalk, "sequence": SequenceWalk}


def pairs(method: str, stage: int, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """`method` is megatron or sequence; ZeRO `stage` 1 to 3 besides, over the axes of the batch, or
    0."""
    axes = live_axes(tables.mesh)
    if not axes:
        return Restriction()
    preset = f"{method}-zero{stage}" if stage else method
    batch = (
        data_for_zero(tables, input_kinds, preset, stage, axes[:-1])
        if stage
        else data_parallel(tables, input_kinds, preset, axes[:-1])
    )
    walk = walk_pairs(method, preset, batch, axes[-1], input_kinds)
    if stage:
        return with_split_state(walk, input_kinds, stage)
    return Restriction({**walk.state(), **walk.inputs()}, walk.allowed, walk.gathered_for_use())


def walk_pairs(
    method: str, preset: str, batch: DataParallel, axis: str, input_kinds: InputKinds
) -> AxisWalk:
    """An axis followed to its end. Raises UserError where no weights come in pairs."""
    walk = _METHODS[method](batch, axis, arriving=frozenset(input_kinds.received))
    walk.run()
    if not walk.rows:
        raise _no_products(preset, batch.tables, axis, ", two in a row")
    return walk


def summa(preset: str, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """The last two axes are the grid; the batch is split over its rows, and over the axis before
    the grid if there is one (2.5d)."""
    axes, rank = live_axes(tables.mesh), _GRID_AXES[preset]
    if len(axes) != rank:
        raise UserError(
            f"preset '{preset}' needs a grid: expected a mesh of {_COUNTS[rank]} axes, "
            f"found {tables.mesh}"
        )
    plan = data_parallel(tables, input_kinds, preset, axes[:-1])
    walk = SummaWalk(plan, axes[-1])
    walk.run()
    if not walk.decided:
        raise _no_products(preset, tables, axes[-1], "")
    return Restriction({**walk.state(), **plan.inputs()}, walk.allowed)


def _no_products(preset: str, tables: IntraOpTables, axis: str, how: str) -> UserError:
    return UserError(
        f"preset '{preset}' splits weights: expected products of activations with weights that "
        f"axis {axis}={tables.mesh.axis_size(axis)} divides{how}, found none"
    )

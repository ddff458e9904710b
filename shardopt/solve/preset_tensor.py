"""The tensor-parallel presets: weights are split over the innermost axis, the batch over the others.

* `megatron` (Shoeybi et al., arXiv 1909.08053, section 3): of two matrix products in a row the first weight is split by
  its columns (outputs) and the second by its rows (inputs), so that what lies between stays split and one all-reduce
  ends the pair; the largest embedding table is split by its rows; what neither product reaches is whole.
* `sequence` (Korthikanti et al., arXiv 2205.05198, section 4): the all-reduce becomes a reduce-scatter along the
  sequence, so norms, dropout and residuals in between are split along it, and an all-gather before the next pair.
* `summa-2d` (Optimus: Xu et al., arXiv 2104.05343, section 3): on a grid of two axes, activations are split by batch
  and by features, weights on two dimensions; a product gathers its blocks along the rows and the columns of the grid.

The walk follows one axis through the graph in program order. A *weight product* is a matrix product, convolution or
gather of an activation and a weight (or what becomes of it by reshapes, transposes, …). The first product of a weight
decides how it is split; backward products find it decided. Where the axis gets lost (a slice of a split dimension), the
operation is left to the solver and the axis taken up again behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardopt.cost.errors import UserError
from shardopt.cost.graph import Op
from shardopt.cost.mesh import Sharding
from shardopt.solve.intra_op import IntraOpTables
from shardopt.solve.preset_base import (
    Axes,
    Dims,
    Restriction,
    Roles,
    Split,
    dims_of,
    in_full,
    largest,
    scattering,
    split_greedily,
    strategies_that_split,
    tiles,
)
from shardopt.solve.preset_data import DataParallel, data_parallel
from shardopt.solve.preset_flow import leading_factor
from shardopt.solve.preset_weights import WeightUses, dim_of
from shardopt.solve.strategies import live_axes, shardable_factors

Method = Literal["megatron", "sequence", "summa-2d"]


def megatron(tables: IntraOpTables, roles: Roles) -> Restriction:
    return _tensor_parallel(tables, roles, "megatron")


def sequence(tables: IntraOpTables, roles: Roles) -> Restriction:
    return _tensor_parallel(tables, roles, "sequence")


def summa_2d(tables: IntraOpTables, roles: Roles) -> Restriction:
    axes = live_axes(tables.mesh)
    if len(axes) != 2:
        raise UserError(f"preset 'summa-2d' needs a grid: expected a mesh of two axes, found {tables.mesh}")
    return _tensor_parallel(tables, roles, "summa-2d")


def _tensor_parallel(tables: IntraOpTables, roles: Roles, method: Method) -> Restriction:
    axes = live_axes(tables.mesh)
    if not axes:
        return Restriction()
    plan = data_parallel(tables, roles, method, axes[:-1])
    walk = _Walk(plan, axes[-1], method)
    walk.run()
    if not walk.decided or (method != "summa-2d" and not walk.rows):
        raise UserError(
            f"preset '{method}' splits weights: expected products of activations with weights that axis {axes[-1]}="
            f"{tables.mesh.axis_size(axes[-1])} divides{'' if method == 'summa-2d' else ', two in a row'}, found none"
        )
    walk.run()  # with all weights decided, those of products that stood before the decision too
    return Restriction({**walk.weights(), **plan.inputs()}, walk.allowed)


@dataclass(eq=False)
class _Walk:
    """`where[t]` is the dimension of a tensor that the axis splits, `decided[w]` that of a weight; `rows` are weights
    that are split by rows, `followers` biases and scales split like the activations they are combined with."""

    plan: DataParallel
    axis: str
    method: Method
    where: list[int | None] = field(default_factory=list)
    decided: dict[int, int] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    followers: dict[int, int] = field(default_factory=dict)
    allowed: dict[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.plan.tables.graph
        self.graph = graph
        self.size = self.plan.tables.mesh.axis_size(self.axis)
        self.depends = self.plan.flow.depends
        self.uses = WeightUses.of(graph, self.plan.flow)

    def run(self) -> None:
        """One walk over the graph, with the decisions of the last one."""
        self.where = [self.decided.get(tensor) for tensor in range(len(self.graph.tensors))]
        self.allowed.clear()
        self.followers.clear()
        for index in range(len(self.graph.ops)):
            self._visit(index)

    def weights(self) -> dict[int, Sharding]:
        """Every weight as decided, or split as the first activation it is combined with, or whole."""
        found = {}
        for weight in sorted(self.plan.flow.weights):
            shape = self.graph.tensors[weight].shape
            place = self.decided.get(weight, self.followers.get(weight))
            dims: list[Axes] = [(self.axis,) if dim == place else () for dim in range(len(shape))]
            if self.method == "summa-2d" and place is not None:
                rest = tuple(1 if dim == place else extent for dim, extent in enumerate(shape))
                grid = split_greedily(self.plan.tables.mesh, rest, largest, self.plan.axes)
                dims = [axes or other for axes, other in zip(dims, grid.dims, strict=True)]
            found[weight] = Sharding(tuple(dims))
        return found

    # ---- one operation ----

    def _visit(self, index: int) -> None:
        op = self.graph.ops[index]
        if op.rule is None:
            return
        factors = self._factors(index, op)
        batch = self.plan.split(index)
        numbers: list[int] = []
        for factor in factors:
            split = self._with_axis(batch, factor)
            numbers += self._strategies(index, op, split, factor)
        chosen = factors[0] if numbers else None
        self._mark_results(index, op, chosen, lost=factors if not numbers else ())
        if not self._is_limited(index):
            return
        if numbers:
            self.allowed[index] = tuple(dict.fromkeys(numbers))
            self._note_followers(op, chosen)
        elif not factors and not self._reads_split(op):
            self.allowed[index] = strategies_that_split(self.plan.tables, index, batch) or in_full(
                self.plan.tables, index
            )

    def _is_limited(self, index: int) -> bool:
        """Constants and weights on their way to a product, and the update, are left to the solver."""
        results = self.graph.ops[index].results
        return bool(results) and self.depends[results[0]] and index not in self.plan.flow.update

    def _reads_split(self, op: Op) -> bool:
        return any(self.where[operand] is not None for operand in op.operands)

    def _factors(self, index: int, op: Op) -> list[int]:
        """The factors that the axis may split, alternatives of equal right; empty to leave the axis out."""
        usable = set(shardable_factors(op))
        product = self.uses.product(op)
        if product is not None:
            if self.where[op.operands[product]] is None:
                self._decide(index, op, product)
            factor = self._factor_of(op, product)
            if factor in usable:
                return [factor]
        rule = op.rule
        assert rule is not None
        found = [
            (self.depends[tensor], factor not in rule.reduction, factor)
            for position, tensor in enumerate(op.operands[: len(rule.operands)])
            if (factor := self._factor_of(op, position)) in usable
        ]
        best = max((rank[:2] for rank in found), default=None)
        return list(dict.fromkeys(factor for *rank, factor in found if tuple(rank) == best))

    def _factor_of(self, op: Op, position: int) -> int | None:
        """The factor on which the axis enters by an operand: behind the batch where both split one dimension."""
        tensor, rule = op.operands[position], op.rule
        dim = self.where[tensor]
        if dim is None or rule is None or position >= len(rule.operands):
            return None
        before = tiles(self.plan.tables.mesh, self.plan.axes) if self.plan.flow.dims[tensor] == dim else 1
        for factor in rule.operands[position][dim]:
            if before < rule.sizes[factor]:
                return factor
            before //= rule.sizes[factor]
        return None

    def _with_axis(self, batch: Split, factor: int) -> Split:
        return {**batch, factor: (*batch.get(factor, ()), self.axis)}

    def _strategies(self, index: int, op: Op, split: Split, factor: int) -> tuple[int, ...]:
        tables = self.plan.tables
        numbers = strategies_that_split(tables, index, split)
        if index in self.plan.flow.gradients:
            return (*numbers, *scattering(tables, index, split)) if self.method == "summa-2d" else numbers
        target = self._scattered(op, split, factor)
        if target is None or not numbers:
            return numbers
        scattered = strategies_that_split(tables, index, split, scatter=target)
        results = tables.ops[index].strategies
        return (*scattered, *(n for n in numbers if results[n].results[0].partial)) if scattered else numbers

    def _scattered(self, op: Op, split: Split, factor: int) -> Dims | None:
        """How the sum over the axis is left split, for the methods that do not leave it whole."""
        dim = self._scatter_dim(op, factor)
        if dim is None or op.rule is None:
            return None
        [dims] = dims_of(op.rule, op.rule.results, split)
        return (*dims[:dim], (*dims[dim], self.axis), *dims[dim + 1 :])

    def _scatter_dim(self, op: Op, factor: int) -> int | None:
        product = self.uses.product(op)
        if self.method == "megatron" or product is None or op.rule is None or factor not in op.rule.reduction:
            return None
        of_weight = {f for factors in op.rule.operands[product] for f in factors}
        batch_dim = self.plan.flow.dims[op.results[0]]
        by_weight = self.method == "summa-2d"
        places = [
            dim
            for dim, factors in enumerate(op.rule.results[0])
            if factors and (factors[0] in of_weight) == by_weight and self._divides(op, dim)
        ]
        return next((dim for dim in places if dim != batch_dim), next(iter(places), None))

    def _divides(self, op: Op, dim: int) -> bool:
        result = op.results[0]
        extent = self.graph.tensors[result].shape[dim]
        batch = tiles(self.plan.tables.mesh, self.plan.axes) if self.plan.flow.dims[result] == dim else 1
        return extent % (batch * self.size) == 0

    def _mark_results(self, index: int, op: Op, factor: int | None, lost: Sequence[int]) -> None:
        """Where the axis splits the results; behind an operation that it cannot pass, the dimension it split before."""
        assert op.rule is not None
        for position, result in enumerate(op.results):
            if factor is not None and factor not in op.rule.reduction:
                self.where[result] = dim_of(op.rule.results[position], factor)
            elif factor is not None:
                self.where[result] = self._scatter_dim(op, factor)
            else:
                self.where[result] = self._dim_kept(op, result)

    def _dim_kept(self, op: Op, result: int) -> int | None:
        shape = self.graph.tensors[result].shape
        if op.name not in _LOCAL_MOVES or not op.operands:
            return None
        dim = self.where[op.operands[0]]
        return dim if dim is not None and dim < len(shape) and shape[dim] % self.size == 0 else None

    # ---- weights ----

    def _decide(self, index: int, op: Op, position: int) -> None:
        """Split the weight of its first product, by rows if the activation is split on the contracted factor."""
        factor, by_rows = self._wanted(op, position)
        dim = None if factor is None or op.rule is None else dim_of(op.rule.operands[position], factor)
        if dim is None:
            return
        found = list(self.uses.origins(op.operands[position], dim))
        if not found or any(weight in self.decided for weight, _ in found):
            return
        if any(self.graph.tensors[weight].shape[place] % self.size for weight, place in found):
            return
        self.decided.update(found)
        self.rows.update(weight for weight, _ in found if by_rows)
        for weight, place in found:
            self.where[weight] = place
        for earlier in sorted(self.uses.chain(op.operands[position])):
            self._visit(earlier)

    def _wanted(self, op: Op, position: int) -> tuple[int | None, bool]:
        """(factor of the weight to split, whether these are rows)."""
        rule = op.rule
        assert rule is not None
        usable = set(shardable_factors(op))
        of_weight = [f for factors in rule.operands[position] if (f := leading_factor(factors, rule.sizes)) in usable]
        if op.name == "gather" and self.method != "summa-2d":
            is_vocabulary = op.operands[position] in self.uses.vocabulary
            return next((f for f in of_weight if f in rule.reduction), None) if is_vocabulary else None, False
        entering = self._factor_of(op, 1 - position)
        if entering in of_weight and entering in rule.reduction and self.method != "summa-2d":
            return entering, True
        others = {f for factors in rule.operands[1 - position] for f in factors}
        outputs = [f for factors in rule.results[0] for f in factors if f in of_weight and f not in others]
        return next((f for f in outputs if rule.sizes[f] % self.size == 0), None), False

    def _note_followers(self, op: Op, factor: int | None) -> None:
        """Biases and scales that are combined with a split activation are split alike."""
        if op.rule is None or factor is None:
            return
        for tensor, mapping in zip(op.operands, op.rule.operands, strict=False):
            place = dim_of(mapping, factor)
            if place is not None and self.uses.derived[tensor]:
                for weight, dim in self.uses.origins(tensor, place):
                    if self.graph.tensors[weight].shape[dim] % self.size == 0:
                        self.followers.setdefault(weight, dim)


# Operations whose result has the dimensions of their first operand, and that move or cut what lies along some.
_LOCAL_MOVES = frozenset({"concatenate", "dynamic_slice", "dynamic_update_slice", "pad", "reverse", "slice"})

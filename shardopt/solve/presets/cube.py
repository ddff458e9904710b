"""`3d` (Bian et al., arXiv 2105.14450, section 3; in Colossal-AI): products on a cube of devices.

    x [batch: c, sequence: b, features: a]    gathered along the sequence
    w [features: a and c, outputs: b]         gathered along c
    x w [batch: c, sequence: a, outputs: b]   scattered along the sequence

The last axis c splits the batch; the other two split the features and the outputs of a weight, and
change their places with every product in a row, so that what one product makes is what the next one
wants. The backward products go the same ways back, and gradients of weights are scattered along c.
So every tensor of a product is split over all three axes. What lies between products is split by
the batch, and otherwise the choice of the solver."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.graph.op_graph import Op
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    InputKinds,
    Restriction,
    Split,
    dims_of,
    scattering,
    strategies_that_split,
)
from shardopt.solve.presets.data import DataParallel, data_parallel
from shardopt.solve.presets.tensor import MegatronWalk
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.factors import shardable_factors
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError


def cube(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """Raises UserError for a mesh without three axes, and where no product has a batch, a sequence,
    features and outputs that these divide."""
    axes = live_axes(tables.mesh)
    if len(axes) != 3:
        raise UserError(
            f"preset '3d' needs a cube: expected a mesh of three axes, found {tables.mesh}"
        )
    plan = data_parallel(tables, input_kinds, "3d", axes[2:])
    # Which of two products in a row a weight belongs to is what Megatron's walk finds.
    walk = MegatronWalk(plan, axes[1])
    walk.run()
    finder = _Products(plan, walk, axes[0])
    products = {op: numbers for op in range(len(tables.ops)) if (numbers := finder.strategies(op))}
    if not products:
        raise UserError(
            "preset '3d' splits products on three axes: expected a batch, a sequence, features and "
            f"outputs that the axes of {tables.mesh} divide, found none"
        )
    batched = {
        op: numbers for op in range(len(tables.ops)) if (numbers := _split_by_batch(plan, op))
    }
    return Restriction({**finder.state(), **plan.inputs()}, {**batched, **products})


def _split_by_batch(plan: DataParallel, op: int) -> Sequence[int]:
    """The strategies that split results along the batch over its axis, and no sum is left open;
    empty for an operation without the batch."""
    node, flow = plan.tables.graph.ops[op], plan.flow
    places = [(k, flow.dims[t]) for k, t in enumerate(node.results) if flow.dims[t] is not None]
    if flow.factors[op] is None or not places:
        return ()
    strategies = plan.tables.ops[op].strategies
    return tuple(
        number
        for number, strategy in enumerate(strategies)
        if all(strategy.results[k].dims[dim or 0] == plan.axes for k, dim in places)
        and not any(each.unreduced for each in (*strategy.operands, *strategy.results))
    )


class _Products:
    """Products of activations with weights whose two dimensions the first two axes split: `first`
    along the dimension that the walk leaves whole."""

    def __init__(self, plan: DataParallel, walk: MegatronWalk, first: str) -> None:
        self.plan, self.walk, self.tables = plan, walk, walk.tables
        self.graph, self.first, self.second = walk.graph, first, walk.axis
        self.dims = {
            weight: dims for weight in sorted(walk.decided) if (dims := self._dims(weight))
        }

    def _dims(self, weight: int) -> tuple[int, int] | None:
        """The dimensions of a weight for the first and the second axis: the largest of those that
        are left, and the one of the walk."""
        shape, place = self.graph.tensors[weight].shape, self.walk.decided[weight]
        size = self.tables.mesh.axis_size(self.first)
        left = [dim for dim, extent in enumerate(shape) if dim != place and extent % size == 0]
        return (max(left, key=lambda dim: (shape[dim], -dim)), place) if left else None

    def state(self) -> dict[int, Sharding]:
        """The weights with their slots; along the axis of the batch they are split further."""
        shardings: dict[int, Sharding] = {}
        for weight, (first, second) in self.dims.items():
            shape = self.graph.tensors[weight].shape
            axes = {first: (self.first,), second: (self.second,)}
            sharding = Sharding(tuple(axes.get(dim, ()) for dim in range(len(shape))))
            sharding = _along_batch(self.plan, shape, sharding)
            slots = self.plan.flow.slots_of.get(weight, ())
            shardings[weight] = sharding
            shardings.update((slot.tensor, slot.like(sharding)) for slot in slots)
        return shardings

    def strategies(self, index: int) -> Sequence[int]:
        """Those of a product, forward or backward, or of the gradient of a weight; empty for all
        other operations."""
        op = self.graph.ops[index]
        if op.rule is None or op.name != "dot_general":
            return ()
        if index in self.plan.flow.gradients:
            return self._gradient(index, op)
        position = self.walk.uses.product(op)
        if position is None:
            return ()
        split = self._split(index, op, position)
        dim = None if split is None else self._sequence(op, split)
        if split is None or dim is None:
            return ()
        [dims] = dims_of(op.rule, op.rule.results, split)
        summed = next(split[factor] for factor in op.rule.reduction if factor in split)
        scattered = (*dims[:dim], (*dims[dim], *summed), *dims[dim + 1 :])
        return strategies_that_split(self.tables, index, split, scatter=scattered)

    def _split(self, index: int, op: Op, position: int) -> Split | None:
        """The factors of a product with a weight, by the dimensions of the weight that they are."""
        assert op.rule is not None
        split = dict(self.plan.split(index))
        for dim, factors in enumerate(op.rule.operands[position]):
            origins = set(self.walk.uses.origins(op.operands[position], dim))
            for axis, which in ((self.first, 0), (self.second, 1)):
                if any(w in self.dims and self.dims[w][which] == place for w, place in origins):
                    split[factors[0]] = (axis,)
        reduced = [factor for factor in split if factor in op.rule.reduction]
        usable = set(shardable_factors(op))
        return split if len(split) == 3 and len(reduced) == 1 and split.keys() <= usable else None

    def _sequence(self, op: Op, split: Split) -> int | None:
        """The dimension of the result that is neither split nor the weight's."""
        assert op.rule is not None
        position = self.walk.uses.product(op)
        of_weight = {f for dim in op.rule.operands[position or 0] for f in dim}
        return next(
            (
                dim
                for dim, factors in enumerate(op.rule.results[0])
                if factors and factors[0] not in of_weight and factors[0] not in split
            ),
            None,
        )

    def _gradient(self, index: int, op: Op) -> Sequence[int]:
        """Split as its weight, and the sum over the batch scattered."""
        assert op.rule is not None
        shape = self.graph.tensors[op.results[0]].shape
        weights = [w for w in self.dims if self.graph.tensors[w].shape == shape]
        if not weights:
            return ()
        first, second = self.dims[weights[0]]
        split = {
            **self.plan.split(index),
            op.rule.results[0][first][0]: (self.first,),
            op.rule.results[0][second][0]: (self.second,),
        }
        return scattering(self.tables, index, split)


def _along_batch(plan: DataParallel, shape: tuple[int, ...], sharding: Sharding) -> Sharding:
    """Split by the axis of the batch as well, behind the others, on the largest dimension that it
    divides."""
    mesh, counts = plan.tables.mesh, sharding.tile_counts(plan.tables.mesh)
    local = [extent // count for extent, count in zip(shape, counts, strict=True)]
    [axis] = plan.axes
    places = [dim for dim, extent in enumerate(local) if extent % mesh.axis_size(axis) == 0]
    if not places:
        return sharding
    place = max(places, key=lambda dim: (local[dim], -dim))
    return Sharding(
        tuple((*dim, axis) if d == place else dim for d, dim in enumerate(sharding.dims))
    )

"""The presets for mixtures of experts: experts over the innermost axis, everything else data
parallel over all axes.

GShard (Lepikhin et al., arXiv 2006.16668, section 3.3): the weights of the experts are split along
the expert dimension, and the tokens, which are split by the batch everywhere else, are exchanged by
an all-to-all before the experts' products and another one behind them.

An expert dimension is one that a weight has in a product with an activation and that both carry
into the result (a batching dimension); or one that is summed over while the activation only repeats
its values along it, under a mask: that is how `jax.lax.ragged_dot` is written where no ragged
product exists.

`expert-zero1`, `expert-zero2` and `expert-zero3` split the state as ZeRO does besides
(DeepSpeed-MoE: Rajbhandari et al., arXiv 2201.05596, section 4): that of the experts over the axes
along which they are repeated, all other state over all axes."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.graph.op_graph import Op
from shardopt.solve.presets.base import InputKinds, Restriction, Split, replicated
from shardopt.solve.presets.data import DataParallel, data_for_zero, data_parallel
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.presets.split_state import with_split_state
from shardopt.solve.presets.walk import AxisWalk
from shardopt.solve.presets.weights import dim_of
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError


class ExpertWalk(AxisWalk):
    """The axis belongs to the experts where they are computed, to the batch elsewhere."""

    def weight_factor(self, op: Op, position: int, usable: set[int]) -> tuple[int | None, bool]:
        rule = op.rule
        assert rule is not None
        if op.name != "dot_general":
            return None, False
        other = 1 - position
        for factors in rule.operands[position]:
            factor = leading_factor(factors, rule.sizes)
            dim = None if factor is None else dim_of(rule.operands[other], factor)
            if factor not in usable or dim is None or rule.sizes[factor] % self.size:
                continue
            batching = dim_of(rule.results[0], factor) is not None
            if batching or self._repeats_along(op.operands[other], dim):
                return factor, False
        return None, False

    def batch_split(self, index: int, factor: int | None) -> Split:
        split = self.plan.split(index)
        if factor is None:
            return split
        rest = {f: tuple(axis for axis in axes if axis != self.axis) for f, axes in split.items()}
        return {f: axes for f, axes in rest.items() if axes}

    def inherited(self, op: Op, usable: set[int]) -> list[int]:
        """Products of what the experts made with tokens belong to the batch: they dispatch, or
        combine."""
        rule = op.rule
        assert rule is not None
        mappings = [
            m
            for tensor, m in zip(op.operands, rule.operands, strict=False)
            if self.plan.flow.depends[tensor]
        ]
        return [
            factor
            for factor in super().inherited(op, usable)
            if factor not in rule.reduction
            and (
                op.name != "dot_general"
                or all(dim_of(mapping, factor) is not None for mapping in mappings)
            )
        ]

    def is_free(self, index: int, factors: Sequence[int]) -> bool:
        return not self.plan.split(index) and index not in self.plan.flow.update

    def _repeats_along(self, tensor: int, dim: int) -> bool:
        """Whether an activation is a broadcast along a dimension, apart from masks."""
        producer = self.uses.producers[tensor]
        op = self.graph.ops[producer] if producer >= 0 else None
        if (
            op is None
            or op.rule is None
            or len(op.results) != 1
            or not self.plan.flow.depends[tensor]
        ):
            return False
        factor = leading_factor(op.rule.results[0][dim], op.rule.sizes)
        carriers = [
            (operand, place)
            for operand, mapping in zip(op.operands, op.rule.operands, strict=False)
            if factor is not None and (place := dim_of(mapping, factor)) is not None
        ]
        if not carriers:
            return op.name == "broadcast_in_dim"
        # Of a select, the values if it holds, with the predicate as mask; elsewhere one operand
        # must bring all that varies along the dimension.
        values = carriers[1:2] if op.name == "select" else carriers if len(carriers) == 1 else []
        return any(self._repeats_along(operand, place) for operand, place in values)


def expert(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    if not live_axes(tables.mesh):
        return Restriction()
    plan = data_parallel(tables, input_kinds, "expert")
    walk = _walk(plan, "expert")
    return Restriction(
        {**replicated(tables, sorted(input_kinds.state)), **walk.state(), **plan.inputs()},
        walk.allowed,
    )


def expert_zero(stage: int, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """`stage` is that of ZeRO, 1 to 3."""
    if not live_axes(tables.mesh):
        return Restriction()
    preset = f"expert-zero{stage}"
    walk = _walk(data_for_zero(tables, input_kinds, preset, stage), preset)
    return with_split_state(walk, input_kinds, stage)


def _walk(plan: DataParallel, preset: str) -> ExpertWalk:
    """Raises UserError when there are no experts that the innermost axis divides."""
    axis = live_axes(plan.tables.mesh)[-1]
    walk = ExpertWalk(plan, axis)
    walk.run()
    if not walk.decided:
        raise UserError(
            f"preset '{preset}' splits experts: expected products with weights that have an expert "
            f"dimension which axis {axis}={plan.tables.mesh.axis_size(axis)} divides, found none"
        )
    return walk

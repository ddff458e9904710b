"""ZeRO beside an axis that a walk gives to weights: of its state, each device keeps a part of what
it would have (Rajbhandari et al., arXiv 1910.02054, section 5).

The walk splits a weight along its axis, or leaves it whole; either way devices along the other axes
of the batch (all of them, for a weight left whole where the walk's axis splits the batch too) hold
copies. ZeRO 1 splits the optimizer state among these, ZeRO 2 exchanges gradients by scattering,
ZeRO 3 splits the weights too. How shards are updated and when weights are gathered is the choice of
the solver: the walk's own strategies for them know one axis alone."""

from __future__ import annotations

from collections.abc import Sequence, Set

from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    Axes,
    InputKinds,
    Restriction,
    replicated,
    scattered_or_unreduced,
    split_further,
)
from shardopt.solve.presets.data import DataParallel, data_parallel, with_gradients
from shardopt.solve.presets.walk import AxisWalk
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.support.errors import UserError


def batch_for_zero(
    tables: IntraOpTables,
    input_kinds: InputKinds,
    preset: str,
    stage: int,
    axes: Axes | None = None,
) -> DataParallel:
    """The batch split over `axes` (by default all) of a graph that has what ZeRO `stage` 1 to 3
    splits. Raises UserError where the batch does not divide, or there is nothing to split."""
    if stage > 1:
        return with_gradients(tables, input_kinds, preset, axes)
    plan = data_parallel(tables, input_kinds, preset, axes)
    if not plan.flow.slots:
        raise UserError(
            f"preset '{preset}' splits optimizer state: expected state that only the update "
            "reads, found none"
        )
    return plan


def with_split_state(walk: AxisWalk, input_kinds: InputKinds, stage: int) -> Restriction:
    """What a finished walk fixes, with its state as ZeRO `stage` 1 to 3 has it."""
    flow, graph = walk.plan.flow, walk.graph
    parts = flow.weights | input_kinds.state if stage == 3 else flow.slots
    of_state = {
        number
        for number, op in enumerate(graph.ops)
        if any(walk.of_state[result] for result in op.results)
    }
    free = flow.update | of_state
    allowed = {op: numbers for op, numbers in walk.allowed.items() if op not in free}
    if stage > 1:
        allowed.update(_scattered_gradients(walk))
    return Restriction({**_state(walk, input_kinds, parts), **walk.plan.inputs()}, allowed)


def _state(walk: AxisWalk, input_kinds: InputKinds, parts: Set[int]) -> dict[int, Sharding]:
    """All state as the walk has it; of the tensors in `parts` each device keeps a part of its
    copy."""
    tables, plan = walk.tables, walk.plan
    state = {**replicated(tables, sorted(input_kinds.state)), **walk.state()}
    for tensor in sorted(parts & state.keys()):
        shape = tables.graph.tensors[tensor].shape
        rest = tuple(axis for axis in plan.axes if axis not in state[tensor].axes)
        state[tensor] = split_further(tables.mesh, shape, state[tensor], rest)
    return state


def _scattered_gradients(walk: AxisWalk) -> dict[int, Sequence[int]]:
    """As of `zero2`; gradients of what the walk's axis splits are summed over the other axes."""
    strategies = walk.plan.scattered_gradients()
    for op in sorted(walk.plan.flow.gradients & walk.allowed.keys()):
        factors = walk.factors(walk.graph.ops[op])
        splits = [walk.split(op, factor) for factor in factors]
        scattered = [
            number for split in splits for number in scattered_or_unreduced(walk.tables, op, split)
        ]
        if factors:
            strategies[op] = tuple(dict.fromkeys(scattered)) or walk.allowed[op]
    return strategies

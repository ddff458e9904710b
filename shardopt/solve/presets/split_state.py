"""ZeRO beside an axis that a walk gives to weights: of its state, each device keeps a part of what
it would have (Rajbhandari et al., arXiv 1910.02054, section 5).

The walk splits a weight along its axis, or leaves it whole; either way devices along the other axes
of the batch (all of them, for a weight left whole where the walk's axis splits the batch too) hold
copies. ZeRO 1 splits the optimizer state among these and exchanges gradients by scattering, ZeRO 2
does so for every microbatch, ZeRO 3 splits the weights too. How shards are updated and when weights
are gathered is the choice of the solver: the walk's own strategies for them know one axis alone."""

from __future__ import annotations

from collections.abc import Sequence, Set

from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    Axes,
    InputKinds,
    Restriction,
    replicated,
    split_further,
)
from shardopt.solve.presets.sums import joined_terms, scattered_sum
from shardopt.solve.presets.walk import AxisWalk


def with_split_state(
    walk: AxisWalk, input_kinds: InputKinds, stage: int, axes: Axes | None = None
) -> Restriction:
    """What a finished walk fixes, with its state as ZeRO `stage` 1 to 3 has it, over `axes` (those
    of the batch by default)."""
    flow, graph = walk.plan.flow, walk.graph
    parts = flow.weights | input_kinds.state if stage == 3 else flow.slots
    of_state = {
        number
        for number, op in enumerate(graph.ops)
        if any(walk.of_state[result] for result in op.results)
    }
    free = flow.update | of_state
    allowed = {op: numbers for op, numbers in walk.allowed.items() if op not in free}
    if stage == 3:  # a weight is gathered for use, and not along the walk's axis
        whole = walk.plan.whole_for_use(stage)
        allowed.update((op, walk.allowed.get(op, numbers)) for op, numbers in whole.items())
    allowed.update(_scattered_gradients(walk, stage))
    state = _state(walk, input_kinds, parts, walk.plan.axes if axes is None else axes)
    allowed.update(walk.plan.kept_in_parts(stage, state))
    fixed = {**state, **walk.inputs()}
    transient = (*walk.gathered_for_use(), *walk.plan.gathered_for_use(stage))
    return Restriction(fixed, allowed, transient)


def _state(
    walk: AxisWalk, input_kinds: InputKinds, parts: Set[int], axes: Axes
) -> dict[int, Sharding]:
    """All state as the walk has it; of the tensors in `parts` each device along the axes keeps a
    part of its copy."""
    tables, plan = walk.tables, walk.plan
    state = {**replicated(tables, sorted(input_kinds.state)), **walk.state()}
    whole = dict(state)
    for tensor in sorted(parts & state.keys()):
        state[tensor] = _in_parts(walk, tensor, whole[tensor], axes)
    for weight, slots in sorted(plan.flow.slots_of.items()):
        parted = _in_parts(walk, weight, whole[weight], axes)
        state.update((slot.tensor, slot.like(parted)) for slot in slots if slot.tensor in parts)
    return state


def _in_parts(walk: AxisWalk, tensor: int, sharding: Sharding, axes: Axes) -> Sharding:
    """A sharding of a tensor, split further over the axes along which it has copies."""
    rest = tuple(axis for axis in axes if axis not in sharding.axes)
    return split_further(walk.tables.mesh, walk.graph.tensors[tensor].shape, sharding, rest)


def _scattered_gradients(walk: AxisWalk, stage: int) -> dict[int, Sequence[int]]:
    """As without the walk; gradients of what its axis splits are summed over the other axes."""
    strategies, joined = walk.plan.scattered_gradients(stage), joined_terms(walk.tables)
    for op in sorted(walk.plan.flow.gradients & walk.allowed.keys()):
        if stage == 1 and walk.graph.ops[op].repeat > 1:
            strategies[op] = walk.allowed[op]
            continue
        factors = walk.factors(walk.graph.ops[op])
        splits = [walk.split(op, factor) for factor in factors]
        scattered = [
            number for split in splits for number in scattered_sum(walk.tables, op, split, joined)
        ]
        if factors:
            strategies[op] = tuple(dict.fromkeys(scattered)) or walk.allowed[op]
    return strategies

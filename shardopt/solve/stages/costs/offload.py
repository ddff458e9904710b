"""A step that lays into the memory of the hosts what a mode of offloading says
(`shardopt.graph.offloading`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from shardopt.graph.offloading import has_activations, has_state
from shardopt.graph.op_graph import SHARED
from shardopt.graph.streamed_state import StateUse, spreads
from shardopt.solve.stages.step_graph import StepGraph


def offload(step: StepGraph, mode: str) -> StepGraph:
    """The step with what a mode leaves on the hosts."""
    with_state = offload_state(step) if has_state(mode) else step
    return replace(with_state, activations_on_host=True) if has_activations(mode) else with_state


def offload_state(step: StepGraph) -> StepGraph:
    """The step in which all state that can rest on the hosts does, as `shardopt-offload-state` lays
    it there. Broadcasts of something small around the loop are made where they are read."""
    times = Counter(step.graph.outputs)
    on_host = frozenset(
        before for before, after in step.tied if _use(step, before, after, times[after]).can_rest
    )
    if not on_host:
        return step
    tensors = step.graph.tensors
    layers = tuple(
        SHARED
        if not step.in_body(number)
        and not op.block  # in a loop or branch it goes with that
        and spreads(op.name, (tensors[tensor].size_bytes for tensor in op.operands))
        else layer
        for number, (op, layer) in enumerate(zip(step.graph.ops, step.op_layer, strict=True))
    )
    return replace(step, op_layer=layers, on_host=on_host)


def moved_bytes(step: StepGraph) -> np.ndarray:
    """Bytes of state that travel between devices and hosts for each layer in a step: every group
    around the loop that reads such a tensor fetches it, at least one does, and it is stored once.
    `[layers]`, of whole tensors."""
    moved = np.zeros(step.num_layers)
    for tensor in sorted(step.on_host):
        moved[step.owner[tensor]] += 2 * step.graph.tensors[tensor].size_bytes
    return moved


def _use(step: StepGraph, before: int, after: int, returned: int) -> StateUse:
    readers, maker = step.consumers[before], step.producers[after]
    is_input = step.producers[before] < 0
    return StateUse(
        rank=len(step.graph.tensors[before].shape),
        owner=step.owner.get(before, SHARED) if is_input else SHARED,
        readers={step.op_layer[op] for op in readers},
        elsewhere=any(map(step.in_body, (*readers, *step.consumers[after])))
        or before in step.graph.outputs,
        maker=None if maker < 0 or step.in_body(maker) else step.op_layer[maker],
        returned=returned,
    )

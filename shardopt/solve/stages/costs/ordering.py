"""An order of a stage's operations that does not depend on how the model names its parameters.

Updates stand in a program in the order of the parameters' names, where layer 10 comes before layer
2. Here they stand in the order in which the body first touches what they update, so that equal
layers become equal programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from shardopt.solve.stages.step_graph import StepGraph


def first_uses(step: StepGraph, body: Iterable[int]) -> dict[int, int]:
    """The tensors that operations of the body touch, numbered by first use."""
    uses: dict[int, int] = {}
    for op in body:
        for tensor in (*step.graph.ops[op].operands, *step.graph.ops[op].results):
            uses.setdefault(tensor, len(uses))
    return uses


def by_first_use(step: StepGraph, ops: Sequence[int], uses: Mapping[int, int]) -> tuple[int, ...]:
    """Operations around the loop in an order of dependences, those that belong to early tensors of
    the body first."""
    anchors = _anchors(step, ops, uses)
    rank = {op: (anchors[op], number) for number, op in enumerate(ops)}
    waiting = {op: set(step.awaited(step.graph.ops[op].operands) & rank.keys()) for op in ops}
    readers: dict[int, list[int]] = {}
    for op, makers in waiting.items():
        for maker in makers:
            readers.setdefault(maker, []).append(op)
    ready = [rank[op] for op in ops if not waiting[op]]
    heapify(ready)
    ordered = []
    while ready:
        _, number = heappop(ready)
        op = ops[number]
        ordered.append(op)
        for reader in readers.get(op, ()):
            waiting[reader].discard(op)
            if not waiting[reader]:
                heappush(ready, rank[reader])
    return tuple(ordered)


def _anchors(step: StepGraph, ops: Sequence[int], uses: Mapping[int, int]) -> dict[int, int]:
    """For each operation the tensor of the body that it works for: the last that it depends on,
    else the first that depends on it. Scalars (norms, step counts) tie everything to everything and
    do not count."""
    graph, last = step.graph, len(uses)
    of_tensor = {t: use for t, use in uses.items() if graph.tensors[t].elements > 1}
    anchors: dict[int, int] = {}
    for op in ops:
        read = [of_tensor[t] for t in graph.ops[op].operands if t in of_tensor]
        if read:
            anchors[op] = max(read)
            of_tensor.update(
                (t, anchors[op]) for t in graph.ops[op].results if graph.tensors[t].elements > 1
            )
    # Backwards, as an operation may only know its place from those that read it.
    for op in reversed(ops):
        if op not in anchors:
            results = graph.ops[op].results
            behind = [
                anchors[reader]
                for t in results
                for reader in step.consumers[t]
                if reader in anchors
            ]
            behind += [uses[t] for t in results if t in uses]
            anchors[op] = min(behind, default=last)
    return anchors

"""Which layer owns the operations around the microbatch loop: weight casts, random bits, gradient
clipping, updates.

Parameters belong to the layer whose forward pass reads them, accumulated values to the layer that
accumulates them. The epilogue follows its largest owned operand (an update follows its parameter
and gradient; the few operations that mix layers, such as a global norm, work on scalars). The
prologue follows its consumers. Constants, and small values that several layers need (learning-rate
schedules, step counts, keys), are `SHARED`: every reader computes its own copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardopt.graph.op_graph import SHARED, Op, OpGraph

# Cheaper to make again wherever they are read than to send, whatever their size, as long as what
# they read is small.
_COPYABLE = frozenset({"constant", "iota", "broadcast_in_dim"})
# A value of at most this size is cheaper to compute again on every stage than to send.
SMALL_BYTES = 4096


@dataclass(frozen=True)
class OwnershipProblem:
    """`@main` without its loop. Ops before `num_prologue` precede the loop.

    `owned[t]`: layer of a tensor known beforehand (loop results; arguments the body reads).
    `demand[t]`: layers of the loop that read tensor t (captured values, initial accumulators).
    """

    graph: OpGraph
    num_prologue: int
    owned: Mapping[int, int]
    demand: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Ownership:
    """Layer (or `SHARED`) of every op, and the layer of every input tensor."""

    op_layer: tuple[int, ...]
    input_layer: Mapping[int, int]


def assign_owners(problem: OwnershipProblem) -> Ownership:
    """Two sweeps: the epilogue forwards, from owned tensors to their readers; then all other
    operations backwards, from readers to producers."""
    graph = problem.graph
    layer: list[int | None] = [None] * len(graph.ops)
    owner = dict(problem.owned)
    for index in range(problem.num_prologue, len(graph.ops)):
        op = graph.ops[index]
        # In program order, so that an update passes its layer on to what reads its result.
        owned = [t for t in op.operands if t in owner]
        if owned and not _spreads(graph, op):
            chosen = layer[index] = owner[
                max(owned, key=lambda t: (graph.tensors[t].size_bytes, -owned.index(t)))
            ]
            owner.update((result, chosen) for result in op.results)
    small, constant = _cheap_to_copy(problem), _constant(graph)
    consumers = graph.consumers()
    # Backwards, as these follow their readers.
    for index in range(len(graph.ops) - 1, -1, -1):
        if layer[index] is None:
            readers = {layer[c] for r in graph.ops[index].results for c in consumers[r]}
            readers |= {k for r in graph.ops[index].results for k in problem.demand.get(r, ())}
            known = {k for k in readers if k is not None}
            layer[index] = _choose(known, small[index], constant[index])
    final = tuple(0 if k is None else k for k in layer)
    return Ownership(
        final, {t: _input_layer(t, problem, consumers[t], final) for t in graph.inputs}
    )


def _choose(readers: set[int], small: bool, constant: bool) -> int:
    if small and (constant or len(readers) > 1 or SHARED in readers):
        return SHARED
    return min((k for k in readers if k >= 0), default=0)


def _input_layer(
    tensor: int, problem: OwnershipProblem, consumers: tuple[int, ...], layer: tuple[int, ...]
) -> int:
    if tensor in problem.owned:
        return problem.owned[tensor]
    readers = {layer[c] for c in consumers} | set(problem.demand.get(tensor, ()))
    return min((k for k in readers if k >= 0), default=0)


def _spreads(graph: OpGraph, op: Op) -> bool:
    """A broadcast of something small belongs to who reads it, not to who made the scalar."""
    return op.name in _COPYABLE and _all_small(graph, op.operands)


def _all_small(graph: OpGraph, tensors: Iterable[int]) -> bool:
    return all(graph.tensors[t].size_bytes <= SMALL_BYTES for t in tensors)


def _constant(graph: OpGraph) -> list[bool]:
    """Ops that are made of nothing but constants."""
    producers, found = graph.producers(), list[bool]()
    for op in graph.ops:
        makers = [producers[tensor] for tensor in op.operands]
        found.append(all(maker >= 0 and found[maker] for maker in makers))
    return found


def _cheap_to_copy(problem: OwnershipProblem) -> list[bool]:
    """Ops that every reader may compute again: small with a small ancestry up to arguments, or a
    spread scalar."""
    graph = problem.graph
    producers = graph.producers()
    pure: list[bool] = []
    for op in graph.ops:
        known = all(
            pure[producers[t]] if producers[t] >= 0 else t not in problem.owned for t in op.operands
        )
        pure.append(known and _all_small(graph, (*op.operands, *op.results)))
    return [is_pure or _spreads(graph, op) for is_pure, op in zip(pure, graph.ops, strict=True)]

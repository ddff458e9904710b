"""Which collectives a device can run beside computing, and how much time that saves.

    %w = all_gather %shard          its operand was there when the program began: it may start then
    %g = reduce_scatter %partial    no product of the program waits for it: it may end last
    %a = all_reduce %activations    the next product waits for it: nothing runs beside it
    %y = dot (all_gather %x), %w    in pieces: a product of what came, while the next piece comes

XLA makes collectives asynchronous, and its latency-hiding scheduler starts them as early and awaits
them as late as it can (xla/service/latency_hiding_scheduler.h). A program of f seconds of
computing, b seconds of collectives of the first two kinds and w of the third takes max(f, b) + w
seconds: at least half of their sum, and at most all of it. A gather for a product, and a scatter of
the sum that one makes, belong to the third kind unless the compiler takes both in pieces
(`HostGroup.windowed_products`; Wang et al., "Overlap Communication with Dependent Computation via
Decomposition", ASPLOS 2023): then they are beside it. Collectives of GPUs run on the cores
that compute, which gets slower: of b only the share `HostGroup.overlap_share` counts, in pieces
`HostGroup.pieces_share`.

Collectives of the first two kinds are combined where `HostGroup.combined_bytes` says so, and so are
reshardings of what only the end of a program reads."""

from __future__ import annotations

from collections.abc import Callable

from shardopt.cost.collectives import ALL_GATHER, REDUCE_SCATTER, Step
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.hardware.cluster import COMBINED_TENSORS, HostGroup
from shardopt.solve.sharding.kernels.fusion import CHEAP

# No program takes less than this share of what it would take without overlap; nor than that, where
# collectives are combined.
LEAST_SHARE = 0.5
LEAST_SHARE_COMBINED = 1 / (COMBINED_TENSORS + 1)


def least_share(group: HostGroup) -> float:
    """What a program takes at least of its computing and communication one behind the other."""
    if not group.overlap:
        return 1.0
    return LEAST_SHARE if group.combined_bytes is None else LEAST_SHARE_COMBINED


def saved_seconds(compute: float, beside: float) -> float:
    """What a program saves that computes so long, and has collectives beside which it could get on
    by so many seconds of that."""
    return min(compute, beside)


def in_pieces_share(group: HostGroup, op: Op, step: Step) -> float:
    """`HostGroup.pieces_share` for a step that brings an operand to a product, or away what it
    makes, if the two are taken in pieces; else 0."""
    if not group.windowed_products or op.name != "dot_general":
        return 0.0
    return group.pieces_share if step.kind in (ALL_GATHER, REDUCE_SCATTER) else 0.0


def beside_computing(graph: OpGraph) -> tuple[Callable[[int, int], bool], frozenset[int]]:
    """Whether a tensor can be resharded for a reader ahead of its use, `(reader, tensor)`, and the
    operations whose results can be completed behind all products of their program."""
    producers = graph.producers()
    ready = set[int]()

    def is_ready(reader: int, tensor: int) -> bool:
        producer = producers[tensor]
        group = graph.ops[reader].group
        return producer < 0 or graph.ops[producer].group != group or tensor in ready

    for index, op in enumerate(graph.ops):
        if _goes_over_elements(graph, op) and all(
            is_ready(index, tensor) for tensor in op.operands
        ):
            ready.update(op.results)
    return is_ready, _late(graph)


def _late(graph: OpGraph) -> frozenset[int]:
    """Operations that nothing of their program waits for but what goes over elements."""
    awaited, late = set[tuple[int, int]](), set[int]()
    for index in reversed(range(len(graph.ops))):
        op = graph.ops[index]
        waits = any((tensor, op.group) in awaited for tensor in op.results)
        if not waits:
            late.add(index)
        if waits or not _goes_over_elements(graph, op):
            awaited.update((tensor, op.group) for tensor in op.operands)
    return frozenset(late)


def _goes_over_elements(graph: OpGraph, op: Op) -> bool:
    return op.name in CHEAP or any(result in graph.handed_on for result in op.results)

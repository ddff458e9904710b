"""What the body of the microbatch loop can make for itself, instead of being handed it."""

from __future__ import annotations

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.microbatches.time_axis import HEAVY

# Values computed from constants and iotas by at most this many cheap ops are recomputed in the
# body, so that no argument carries them to every stage; XLA fuses such chains into their users.
MAX_CLONED_OPS = 64
# A block of these is not the same op at a smaller size: random numbers depend on the position in
# the full result.
UNSPLITTABLE = frozenset({"rng", "rng_bit_generator"})


def count_cloned_ops(graph: OpGraph) -> list[int]:
    """For each tensor an upper bound on the ops of its cone, if cheap and made of constants
    only; else too many."""
    count = [MAX_CLONED_OPS + 1] * len(graph.tensors)
    for op in graph.ops:
        opaque = op.rule is None or op.name in HEAVY or op.name in UNSPLITTABLE
        total = 1 + sum(count[t] for t in op.operands)
        if not opaque and total <= MAX_CLONED_OPS:
            for result in op.results:
                count[result] = total
    return count


def find_sources(graph: OpGraph) -> list[frozenset[int]]:
    """For each tensor the results of opaque ops that the body must be given to make it; itself
    if it is smaller.

    So of random bits, and the mask made from them, the mask is sliced.
    """
    sources: list[frozenset[int]] = [frozenset()] * len(graph.tensors)
    for op in graph.ops:
        opaque = op.rule is None or op.name in UNSPLITTABLE
        read = frozenset().union(*(sources[t] for t in op.operands))
        size = sum(graph.tensors[t].size_bytes for t in read)
        for result in op.results:
            is_source = opaque or size > graph.tensors[result].size_bytes
            sources[result] = frozenset({result}) if is_source else read
    return sources

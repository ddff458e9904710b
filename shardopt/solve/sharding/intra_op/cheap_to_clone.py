"""Values that cost nothing to make again, as constants do."""

from __future__ import annotations

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.sharding.strategies.factors import is_opaque
from shardopt.solve.sharding.strategies.strategies import is_cheap_to_clone


def find_cheap_to_clone(graph: OpGraph) -> frozenset[int]:
    """Tensors that each reader gets in the sharding it wants: no edge ties it to the others. What
    leaves the graph, goes through a barrier or may be captured by regions is excluded, as it has to
    be one value."""
    made = {
        op.results[0]
        for op in graph.ops
        if is_cheap_to_clone(op, tuple(graph.tensors[t] for t in op.operands))
    }
    captured = (op.operands for op in graph.ops if is_opaque(op))
    return frozenset(made.difference(graph.outputs, graph.fenced, *captured))

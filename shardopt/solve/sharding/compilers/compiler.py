"""Which rules say in which order a device's compiler runs operations, and what is in memory then.

All accounts of memory ask here: those of stages before a plan exists, and those of the plan
itself."""

from __future__ import annotations

from collections.abc import Set

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.sharding.compilers.host.execution import host_execution
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder, execution_order
from shardopt.solve.sharding.kernels.fusion import Fusion


def execution_of(graph: OpGraph, cheap_to_clone: Set[int], fusion: Fusion) -> ExecutionOrder:
    """`fusion` is that of the same graph."""
    if fusion.fusing.for_hosts:
        return host_execution(graph)
    return execution_order(graph, cheap_to_clone, fusion)

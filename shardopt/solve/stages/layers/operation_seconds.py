"""Seconds of the operations of a microbatch on one device, by the cost model of the stages.

Stages split operations over devices, which makes them shorter by about one factor: what is a
balance on one device is about one on all."""

from __future__ import annotations

import numpy as np

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh
from shardopt.solve.sharding.intra_op.graph_kernels import GraphKernels
from shardopt.solve.sharding.strategies.tables import StrategyTables

_Axes = tuple[tuple[str, int], ...]
_ALONE: _Axes = (("x", 1),)


def operation_seconds(graph: OpGraph, cluster: Cluster) -> np.ndarray:
    """float64 `[operations]`, on the first device of the cluster, with the kernels that its
    compiler makes of the graph. A manual region counts for all devices that it is written for."""
    accesses = GraphKernels(graph, cluster.fusing).accesses
    tables = {axes: _tables(axes, cluster) for axes in {_axes_of(op) for op in graph.ops}}
    return np.array(
        [
            float(of_axes.of(op, graph.tensors, accesses=each).seconds[0]) * of_axes.mesh.size
            for op, each in zip(graph.ops, accesses, strict=True)
            for of_axes in (tables[_axes_of(op)],)
        ]
    )


def _axes_of(op: Op) -> _Axes:
    return _ALONE if op.island is None else op.island.axes


def _tables(axes: _Axes, cluster: Cluster) -> StrategyTables:
    size = int(np.prod([size for _, size in axes]))
    return StrategyTables(Mesh("one", axes, tuple(range(size))), cluster)

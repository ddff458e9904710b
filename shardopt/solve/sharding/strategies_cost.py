"""Seconds of the parts of a strategy: what the cost model says, and what a plan of many small steps adds to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardopt.cost.cluster import Cluster, Device
from shardopt.cost.collectives import Step, steps_seconds
from shardopt.cost.compute import op_seconds, work_kind
from shardopt.cost.graph import Tensor
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.cost.resharding_costs import ReshardingCosts

# Operations that read and write device memory in full. The others are fused into chains; we take one value in four
# that such a chain computes to reach memory.
_UNFUSED_OPS = frozenset(
    [
        "cholesky",
        "concatenate",
        "convolution",
        "dot",
        "dot_general",
        "fft",
        "gather",
        "reduce",
        "reduce_window",
        "scatter",
        "select_and_scatter",
        "sort",
        "triangular_solve",
    ]
)
_FUSED_TRAFFIC = 0.25

# Starting one more collective. Ring formulas alone do not tell an all-reduce from a reduce-scatter and an all-gather.
_LAUNCH_SECONDS = 1e-6


def compute_seconds(
    device: Device, name: str, flops: float, traffic_bytes: float, dtype: str, batched: bool = False
) -> float:
    """One device's share of an operation, as part of a larger program: no dispatch, and fused where XLA fuses.

    `batched` tells a product of many small matrices from one of two.
    """
    share = 1.0 if name in _UNFUSED_OPS else _FUSED_TRAFFIC
    kind = work_kind(name, batched)
    return op_seconds(device, flops, traffic_bytes, dtype, kind=kind, in_memory=share)


def communication_seconds(cluster: Cluster, mesh: Mesh, steps: Sequence[Step]) -> float:
    """Seconds of collectives, one after another."""
    return steps_seconds(cluster, mesh, steps) + _LAUNCH_SECONDS * len(steps)


def resharding_table(
    costs: ReshardingCosts, sources: Sequence[Sharding], targets: Sequence[Sharding], tensor: Tensor
) -> np.ndarray:
    """Seconds from every source to every target sharding of one tensor: `[sources, targets]`; inf where none exists."""
    chains = costs.table(sources, targets, tensor.size_bytes)
    return chains.seconds + _LAUNCH_SECONDS * chains.steps

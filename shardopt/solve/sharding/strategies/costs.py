"""Seconds of collectives and reshardings: what the cost model says, and what a plan of many small
steps adds to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardopt.cost.collectives import Step, collective_curve, steps_seconds
from shardopt.cost.compute import memory_seconds, op_seconds, work_kind
from shardopt.cost.products import Product
from shardopt.cost.resharding_costs import ArcTable, ReshardingCosts
from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_graph import Tensor
from shardopt.hardware.cluster import COMBINED_TENSORS, Cluster, Device
from shardopt.hardware.curves import Curve
from shardopt.mesh.mesh import Mesh, Sharding

# Starting one more collective. Ring formulas alone do not tell an all-reduce from a reduce-scatter
# and an all-gather.
_LAUNCH_SECONDS = 1e-6


def compute_seconds(
    device: Device,
    name: str,
    flops: float,
    alone_bytes: float,
    kernel_bytes: float,
    dtype: str,
    kernels: int = 1,
    *,
    batched: bool = False,
    product: Product | None = None,
    attention: Sequence[AttentionUse] = (),
) -> float:
    """One device's share of an operation, as part of a larger program: no dispatch, and fused where
    XLA fuses.

    `alone_bytes` is what it would read and write in a kernel of its own, `kernel_bytes` what it
    adds to the kernels that it is part of, `kernels` the number of kernels that end with it.
    `batched` tells a product of many small matrices from one of two, `product` has the sizes of the
    share, `attention` are the kernels of attention that compute it."""
    # Alpa counts no compute, which makes work that every device repeats look free.
    share = kernel_bytes / alone_bytes if alone_bytes else 0.0
    return op_seconds(
        device,
        flops,
        alone_bytes,
        dtype,
        kind=work_kind(name, batched),
        in_memory=share,
        kernels=kernels,
        product=product,
        attention=attention,
    )


def communication_seconds(cluster: Cluster, mesh: Mesh, steps: Sequence[Step]) -> float:
    """Seconds of collectives, one after another."""
    return steps_seconds(cluster, mesh, steps) + _LAUNCH_SECONDS * len(steps)


class CommunicationCosts:
    """The collectives of one placed mesh that were asked for so far."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster, self.mesh = cluster, mesh
        self._curves: dict[tuple[str, tuple[str, ...]], Curve] = {}

    def seconds(self, steps: Sequence[Step]) -> float:
        """As `communication_seconds`."""
        return sum(self._alone(step, step.bytes) for step in steps)

    def combined_seconds(self, step: Step) -> float:
        """Of a step that is combined with others: its share of the largest collective that they are
        combined into, or of one of as many tensors as there can be."""
        alone = self._alone(step, step.bytes)
        most = self.cluster.group_of(self.mesh).combined_bytes
        if most is None or step.bytes >= most:
            return alone
        share = self._alone(step, most) * step.bytes / most
        return min(alone, max(share, alone / COMBINED_TENSORS))

    def _alone(self, step: Step, size_bytes: float) -> float:
        key = (step.kind, step.axes)
        if key not in self._curves:
            self._curves[key] = collective_curve(self.cluster, self.mesh, *key)
        return self._curves[key].at(size_bytes) + _LAUNCH_SECONDS


def resharding_table(
    costs: ReshardingCosts, sources: Sequence[Sharding], targets: Sequence[Sharding], tensor: Tensor
) -> np.ndarray:
    """Seconds from every source to every target sharding of one tensor: `[sources, targets]`; inf
    where none exists."""
    chains = costs.table(sources, targets, tensor.shape, tensor.itemsize)
    return chains.seconds + _LAUNCH_SECONDS * chains.steps


def resharding_arcs(
    costs: ReshardingCosts, sources: Sequence[Sharding], targets: Sequence[Sharding], tensor: Tensor
) -> ArcTable:
    """The same chains as arcs."""
    arcs = costs.arcs(sources, targets, tensor.shape, tensor.itemsize)
    return arcs._replace(seconds=arcs.seconds + _LAUNCH_SECONDS)


def written_seconds(device: Device, tensor: Tensor, sharding: Sharding, mesh: Mesh) -> float:
    """Seconds to write, or to read, a device's share of a value that would stay inside of a kernel
    if it were not exchanged."""
    elements = sharding.local_elements(mesh, tensor.shape)
    return memory_seconds(device, elements * tensor.itemsize, tensor.dtype)

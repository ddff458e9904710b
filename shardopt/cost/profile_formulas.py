"""What the formulas say about the work that a profile measures: the other column of every comparison."""

from __future__ import annotations

from dataclasses import replace

from shardopt.cost import profile as kinds
from shardopt.cost.cluster import Cluster
from shardopt.cost.collectives import COLLECTIVES, collective_seconds
from shardopt.cost.compute import dispatch_seconds, memory_seconds, op_seconds
from shardopt.cost.mesh import Mesh
from shardopt.cost.profile import INTER_HOST, Measurement
from shardopt.cost.transfers import messages_seconds

_BY_FLOPS = (kinds.MATMUL, kinds.BATCH_MATMUL, kinds.CONVOLUTION, kinds.SCATTER)


def formula_seconds(cluster: Cluster, measurement: Measurement) -> tuple[float, ...] | None:
    """Seconds at the sizes of a measurement without a profile; None where the cluster has no such group."""
    plain = replace(cluster, device=replace(cluster.device, profile=None))
    kind, dtype, count = measurement.kind, measurement.dtype, measurement.devices
    if kind in kinds.COMPUTE_KINDS:
        device = plain.device
        if kind in _BY_FLOPS:
            return tuple(op_seconds(device, size, 0.0, dtype, kind=kind) for size in measurement.sizes)
        return tuple(memory_seconds(device, size, dtype) for size in measurement.sizes)
    if kind == kinds.DISPATCH:
        return tuple(dispatch_seconds(plain, count, int(size)) for size in measurement.sizes)
    apart = measurement.placement == INTER_HOST
    if count * (2 if kind == kinds.SEND else 1) > (plain.num_devices if apart else plain.devices_per_host):
        return None
    stride = plain.devices_per_host if apart else 1
    if kind == kinds.SEND:
        offset = stride if apart else count
        return tuple(
            messages_seconds(plain, [(k, k + offset, int(size)) for k in range(count)]) for size in measurement.sizes
        )
    assert kind in COLLECTIVES
    ids = tuple(k * stride for k in range(count))
    if ids[-1] >= plain.num_devices:
        return None
    mesh = Mesh("group", (("x", count),), ids)
    return tuple(collective_seconds(plain, mesh, kind, ("x",), size) for size in measurement.sizes)

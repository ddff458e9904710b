"""What the formulas say about the work that a profile measures: the other column of every
comparison."""

from __future__ import annotations

from dataclasses import replace

from shardopt.cost.collectives import collective_seconds
from shardopt.cost.compute import dispatch_seconds, memory_seconds, op_seconds
from shardopt.cost.transfers import messages_seconds
from shardopt.hardware import profile as kinds
from shardopt.hardware.cluster import Cluster, HostGroup
from shardopt.hardware.profile import INTER_HOST, Measurement
from shardopt.mesh.mesh import Mesh

_BY_FLOPS = (kinds.MATMUL, kinds.BATCH_MATMUL, kinds.CONVOLUTION, kinds.SCATTER)


def formula_seconds(cluster: Cluster, measurement: Measurement) -> tuple[float, ...] | None:
    """Seconds at the sizes of a measurement, by the first host group and without a profile; None
    where it has no such group of devices."""
    group = cluster.groups[0]
    group = replace(group, device=replace(group.device, profile=None))
    kind, dtype = measurement.kind, measurement.dtype
    if kind in _BY_FLOPS:
        return tuple(
            op_seconds(group.device, size, 0.0, dtype, kind=kind) for size in measurement.sizes
        )
    if kind in kinds.COMPUTE_KINDS:
        return tuple(memory_seconds(group.device, size, dtype) for size in measurement.sizes)
    if kind == kinds.DISPATCH:
        return tuple(
            dispatch_seconds(group, measurement.devices, int(size)) for size in measurement.sizes
        )
    return _between_devices(replace(cluster, groups=(group,), links=()), group, measurement)


def _between_devices(
    cluster: Cluster, group: HostGroup, measurement: Measurement
) -> tuple[float, ...] | None:
    """Collectives and messages. What crosses hosts does so with one device of each."""
    count, apart = measurement.devices, measurement.placement == INTER_HOST
    stride = group.devices_per_host if apart else 1
    needed = 2 * count if measurement.kind == kinds.SEND else count
    if needed > (group.hosts if apart else group.devices_per_host):
        return None
    ids = tuple(k * stride for k in range(count))
    if measurement.kind == kinds.SEND:
        pairs = [(device, device + count * stride) for device in ids]
        return tuple(
            messages_seconds(cluster, [(*pair, int(size)) for pair in pairs])
            for size in measurement.sizes
        )
    mesh = Mesh("group", (("x", count),), ids)
    return tuple(
        collective_seconds(cluster, mesh, measurement.kind, ("x",), size)
        for size in measurement.sizes
    )

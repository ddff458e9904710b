"""Time of a set of point-to-point messages that start together: what a cross-mesh resharding costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shardopt.cost.cluster import Cluster


def messages_seconds(cluster: Cluster, messages: Iterable[tuple[int, int, int]]) -> float:
    """Seconds until all `(source device, destination device, bytes)` have arrived.

    Inside a host every device has a link of its own; between hosts the messages of a host share its network card, each
    direction for itself. The busiest link decides. Copies inside a device cost nothing.
    """
    inside: Counter[tuple[str, int]] = Counter()
    across: Counter[tuple[str, int]] = Counter()
    latency = 0.0
    for source, target, size in messages:
        if source == target:
            continue
        hosts = cluster.host_of(source), cluster.host_of(target)
        if hosts[0] == hosts[1]:
            latency = max(latency, cluster.intra_host.latency_seconds)
            inside.update({("out", source): size, ("in", target): size})
        else:
            latency = max(latency, cluster.inter_host.latency_seconds)
            across.update({("out", hosts[0]): size, ("in", hosts[1]): size})
    return latency + max(
        max(inside.values(), default=0) / cluster.intra_host.bandwidth_bytes_per_second,
        max(across.values(), default=0) / cluster.inter_host.bandwidth_bytes_per_second,
    )

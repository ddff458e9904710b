"""Time of a set of point-to-point messages that start together: what a cross-mesh resharding costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shardopt.cost.cluster import Cluster, Link
from shardopt.cost.curves import Curve
from shardopt.cost.profile import INTER_HOST, INTRA_HOST, SEND


def messages_seconds(cluster: Cluster, messages: Iterable[tuple[int, int, int]]) -> float:
    """Seconds until all `(source device, destination device, bytes)` have arrived.

    Inside a host every device has a link of its own; between hosts the messages of a host share its network card, each
    direction for itself. The busiest link decides. Copies inside a device cost nothing. Where sending was measured for
    as many senders at once, that decides.
    """
    inside: Counter[tuple[str, int]] = Counter()
    across: Counter[tuple[str, int]] = Counter()
    for source, target, size in messages:
        if source == target:
            continue
        hosts = cluster.host_of(source), cluster.host_of(target)
        if hosts[0] == hosts[1]:
            inside.update({("out", source): size, ("in", target): size})
        else:
            across.update({("out", hosts[0]): size, ("in", hosts[1]): size})
    loads = ((cluster.intra_host, INTRA_HOST, inside), (cluster.inter_host, INTER_HOST, across))
    curves = [(_link_curve(cluster, link, where, load), max(load.values())) for link, where, load in loads if load]
    latency = max((curve.at(0.0) for curve, _ in curves), default=0.0)
    return latency + max((curve.at(float(size)) - curve.at(0.0) for curve, size in curves), default=0.0)


def _link_curve(cluster: Cluster, link: Link, placement: str, load: Counter[tuple[str, int]]) -> Curve:
    """Seconds by the bytes of the busiest link."""
    profile = cluster.device.profile
    senders = sum(1 for way, _ in load if way == "out")
    measured = profile.nearest(SEND, senders, placement) if profile else None
    return measured or Curve.affine(link.latency_seconds, 1 / link.bandwidth_bytes_per_second)

"""Time of a set of point-to-point messages that start together: what a cross-mesh resharding costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from shardopt.cost.cluster import Cluster
from shardopt.cost.curves import Curve
from shardopt.cost.profile import INTER_HOST, INTRA_HOST, SEND

_Load = Counter[tuple[str, int]]  # bytes by end: the link of a device or the card of a host, in one direction


def messages_seconds(cluster: Cluster, messages: Iterable[tuple[int, int, int]]) -> float:
    """Seconds until all `(source device, destination device, bytes)` have arrived.

    Inside a host every device has a link of its own; between hosts the messages of a host share its network card, each
    direction for itself, whether they go to a host of the same group or of another, and those inside a group share its
    fabric where it is narrower than the cards. The busiest link decides. Copies inside a device cost nothing. Where
    sending was measured for as many senders at once, that tells what a load takes.
    """
    loads: dict[tuple[int, int, bool], _Load] = {}
    for source, target, size in messages:
        if source == target:
            continue
        hosts = cluster.host_of(source), cluster.host_of(target)
        inside = hosts[0] == hosts[1]
        load = loads.setdefault((cluster.group_index(source), cluster.group_index(target), inside), Counter())
        kind, (start, end) = ("device", (source, target)) if inside else ("card", hosts)
        load.update({(f"{kind} out", start): size, (f"{kind} in", end): size})
    latency, busy = 0.0, defaultdict[tuple[str, int], float](float)
    for (first, second, inside), load in loads.items():
        curve = _link_curve(cluster, first, second, inside, load)
        latency = max(latency, curve.at(0.0))
        for place, size in load.items():
            busy[place] += curve.at(float(size)) - curve.at(0.0)
        fabric = cluster.groups[first].fabric_bandwidth
        if first == second and not inside and fabric is not None:
            busy["fabric", first] = sum(size for (way, _), size in load.items() if way == "card out") / fabric
    return latency + max(busy.values(), default=0.0)


def _link_curve(cluster: Cluster, first: int, second: int, inside: bool, load: _Load) -> Curve:
    """Seconds by the bytes of the busiest link, inside a host, between hosts of a group, or between two groups."""
    group = cluster.groups[first]
    link = cluster.link_between(first, second) if first != second else group.intra_host if inside else group.inter_host
    senders = sum(1 for way, _ in load if way.endswith("out"))
    profile = group.device.profile if first == second else None
    measured = profile.nearest(SEND, senders, INTRA_HOST if inside else INTER_HOST) if profile else None
    return measured or Curve.affine(link.latency_seconds, 1 / link.bandwidth_bytes_per_second)

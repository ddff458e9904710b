"""Devices of a host that share what they compute with: how fast each is while others rest.

Costs are those of a host with all its devices at work. The speeds of a profile say what a device gains when they are
not: four devices of one CPU run four times as fast alone, four GPUs no faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardopt.cost.cluster import Cluster
from shardopt.cost.profile import Profile


@dataclass(frozen=True)
class Sharing:
    """For each mesh the number of its devices on each host, and the profile of those devices."""

    hosts: tuple[tuple[tuple[int, int], ...], ...]
    profiles: tuple[Profile | None, ...]

    def speeds(self, busy: Iterable[int]) -> dict[int, float]:
        """The speed of each mesh of `busy` while these are at work, relative to a host that is all at work. The host
        on which a mesh is slowest decides."""
        meshes = tuple(busy)
        load: Counter[int] = Counter()
        for mesh in meshes:
            load.update(dict(self.hosts[mesh]))
        found = {}
        for mesh in meshes:
            profile = self.profiles[mesh]
            found[mesh] = min(profile.speed(load[host]) for host, _ in self.hosts[mesh]) if profile else 1.0
        return found


def sharing_of(cluster: Cluster, meshes: Sequence[Sequence[int]]) -> Sharing | None:
    """For meshes given by their devices. None where no device is faster when others rest."""
    profiles = tuple(cluster.groups[cluster.group_index(devices[0])].device.profile for devices in meshes)
    if all(profile is None or set(profile.speeds) == {1.0} for profile in profiles):
        return None
    hosts = tuple(tuple(sorted(Counter(map(cluster.host_of, devices)).items())) for devices in meshes)
    return Sharing(hosts, profiles)


def most_speed(cluster: Cluster) -> float:
    """The speed of the device that gains most from being alone on its host; 1 where none gains."""
    profiles = (group.device.profile for group in cluster.groups)
    return max((speed for profile in profiles if profile for speed in profile.speeds), default=1.0)

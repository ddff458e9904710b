"""Devices of a host that share what they compute with: how fast each is while others rest.

Costs are those of a host with all its devices at work. The speeds of a profile say what a device
gains when they are not: four devices of one CPU run four times as fast alone, four GPUs no faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardopt.hardware.cluster import Cluster
from shardopt.hardware.profile import Profile


@dataclass(frozen=True)
class Sharing:
    """For each mesh the number of its devices on each host, and the profile of those devices."""

    hosts: tuple[tuple[tuple[int, int], ...], ...]
    profiles: tuple[Profile | None, ...]

    def speed(self, mesh: int, load: Mapping[int, int]) -> float:
        """The speed of a mesh while so many devices of each host are at work, relative to hosts
        that are all at work. The host on which it is slowest decides."""
        profile = self.profiles[mesh]
        return min(profile.speed(load[host]) for host, _ in self.hosts[mesh]) if profile else 1.0


def sharing_of(cluster: Cluster, meshes: Sequence[Sequence[int]]) -> Sharing | None:
    """For meshes given by their devices. None where no device is faster when others rest."""
    profiles = tuple(
        cluster.groups[cluster.group_index(devices[0])].device.profile for devices in meshes
    )
    if all(profile is None or set(profile.speeds) == {1.0} for profile in profiles):
        return None
    hosts = tuple(
        tuple(sorted(Counter(map(cluster.host_of, devices)).items())) for devices in meshes
    )
    return Sharing(hosts, profiles)


def most_speed(cluster: Cluster) -> float:
    """The speed of the device that gains most from being alone on its host; 1 where none gains."""
    profiles = (group.device.profile for group in cluster.groups)
    return max((speed for profile in profiles if profile for speed in profile.speeds), default=1.0)

"""Which submeshes a cluster has, and what lies under a logical mesh: the link that a ring along its
axes sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from shardopt.hardware.cluster import Cluster, HostGroup, Link, Submesh
from shardopt.hardware.link_rings import rings
from shardopt.mesh.mesh import Mesh


def submeshes(cluster: Cluster) -> tuple[tuple[int, Submesh], ...]:
    """(host group, submesh) of every shape a stage may take (Alpa, section 5.2): powers of two
    inside a host, a host, then whole hosts. A stage never spans groups."""
    return tuple(
        (index, submesh)
        for index, group in enumerate(cluster.groups)
        for submesh in _of_group(group)
    )


def _of_group(group: HostGroup) -> tuple[Submesh, ...]:
    width = group.devices_per_host
    inside = tuple(Submesh(1, 1 << bits) for bits in range(width.bit_length()) if 1 << bits < width)
    return (*inside, *(Submesh(hosts, width) for hosts in range(1, group.hosts + 1)))


def logical_shapes(submesh: Submesh) -> tuple[tuple[int, int], ...]:
    """All two-axis logical shapes of the submesh's devices; one axis alone appears once, as `(1,
    n)`."""
    n = submesh.num_devices
    return tuple(
        (rows, n // rows) for rows in range(1, n + 1) if n % rows == 0 and (rows < n or n == 1)
    )


@dataclass(frozen=True)
class GroupPlacement:
    """The device groups along some axes of a mesh: group size, the link a ring over one group sees,
    and the most members of one group on one host (1 where groups stay inside hosts: each device
    then has a link of its own)."""

    size: int
    link: Link
    members_per_host: int
    crosses: bool = False


@cache
def group_placement(cluster: Cluster, mesh: Mesh, axes: tuple[str, ...]) -> GroupPlacement:
    """Placement of the groups formed by `axes` together; KeyError for an axis the mesh does not
    have.

    A ring crosses a host's NIC once, however many of its members sit on the host, so the NIC is
    shared by the number of crossing groups on the busiest host, and a narrow fabric by the
    crossings of all hosts. Raises ValueError for a mesh over several host groups."""
    owner = cluster.group_of(mesh)
    index = {name: position for position, name in enumerate(mesh.axis_names)}
    positions = [index[axis] for axis in axes]
    size = math.prod(mesh.shape[position] for position in positions)
    hosts = np.array([cluster.host_of(device) for device in mesh.devices]).reshape(mesh.shape)
    groups = np.moveaxis(hosts, positions, range(-len(axes), 0)).reshape(-1, size)
    crossing = groups[(groups != groups[:, :1]).any(axis=1)]
    if not crossing.size:
        devices = np.moveaxis(
            np.array(mesh.devices).reshape(mesh.shape), positions, range(-len(axes), 0)
        )
        return GroupPlacement(size, _inside(cluster, owner, devices.reshape(-1, size)), 1)
    # [hosts, groups]: how many devices of each group are on each host.
    members = np.stack([(crossing == host).sum(axis=1) for host in np.unique(crossing)])
    nic = owner.inter_host
    bandwidth = min(
        owner.intra_host.bandwidth_bytes_per_second,
        nic.bandwidth_bytes_per_second / int((members > 0).sum(axis=1).max()),
        (owner.fabric_bandwidth or math.inf) / int((members > 0).sum()),
    )
    latency = max(owner.intra_host.latency_seconds, nic.latency_seconds)
    return GroupPlacement(size, Link(latency, bandwidth), int(members.max()), crosses=True)


def _inside(cluster: Cluster, owner: HostGroup, groups: np.ndarray) -> Link:
    """What a ring over one of some groups of devices, each on one host, sees; of the slowest."""
    if owner.device_links is None or groups.shape[1] < 2:
        return owner.intra_host
    begin = cluster.first_devices[cluster.group_index(int(groups.flat[0]))]
    places = {
        tuple(sorted(int(device - begin) % owner.devices_per_host for device in group))
        for group in groups
    }
    fewest = min(rings(owner.device_links, members) for members in places)
    every = max(map(sum, owner.device_links))
    bandwidth = owner.intra_host.bandwidth_bytes_per_second * fewest / every
    return Link(owner.intra_host.latency_seconds, bandwidth)


def axis_link(cluster: Cluster, mesh: Mesh, axis: str) -> Link:
    """Effective link of a ring along one mesh axis, from the hosts its devices are on."""
    return group_placement(cluster, mesh, (axis,)).link


def neighbours(cluster: Cluster) -> tuple[tuple[int, int], ...]:
    """A pair of devices for every kind of link that two stages may have between them: inside a
    host, between hosts of a group, between two groups. Links inside a host are left out of groups
    with several hosts, whose stages may lie on different ones; a cluster of one device has none."""
    pairs = []
    for first, group in zip(cluster.first_devices, cluster.groups, strict=False):
        if group.num_devices > 1:
            pairs.append((first, first + (group.devices_per_host if group.hosts > 1 else 1)))
    starts = cluster.first_devices[:-1]
    return (*pairs, *((a, b) for number, a in enumerate(starts) for b in starts[number + 1 :]))

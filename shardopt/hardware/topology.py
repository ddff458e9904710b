"""Which submeshes a cluster has, and what lies under a logical mesh: the link that a ring along its
axes sees, and what messages between its members reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from shardopt.hardware.cluster import Cluster, HostGroup, Link, Submesh
from shardopt.hardware.link_rings import rings
from shardopt.hardware.link_routes import Links, seconds_together
from shardopt.hardware.torus import TorusRates, box, lying, rates
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
    then has a link of its own).

    `exchange` and `shift` are the bytes/s of a device while each member of a group sends as much to
    every other one, and while each sends to the next: the bandwidth of `link` but where links of
    their own join the devices of a host, or a torus all chips.

    `steps` are the messages of a gather that wait for each other; None for those of one ring."""

    size: int
    link: Link
    members_per_host: int
    exchange: float
    shift: float
    crosses: bool = False
    steps: int | None = None


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
    devices = np.array(mesh.devices).reshape(mesh.shape)
    devices = np.moveaxis(devices, positions, range(-len(axes), 0)).reshape(-1, size)
    hosts = np.array([[cluster.host_of(device) for device in row] for row in devices.tolist()])
    crossing = hosts[(hosts != hosts[:, :1]).any(axis=1)]
    if size > 1 and (torus := _on_torus(cluster, owner, mesh, positions)) is not None:
        link_rate = owner.intra_host.bandwidth_bytes_per_second / 2
        ring, exchange, shift = (
            link_rate * rate for rate in (torus.ring, torus.exchange, torus.shift)
        )
        link = Link(owner.intra_host.latency_seconds, ring)
        return GroupPlacement(
            size, link, 1, exchange, shift, crosses=bool(crossing.size), steps=torus.steps
        )
    if not crossing.size:
        return _inside(cluster, owner, devices)
    # [hosts, groups]: how many devices of each group are on each host.
    members = np.stack([(crossing == host).sum(axis=1) for host in np.unique(crossing)])
    nic = owner.inter_host
    if owner.torus is not None and owner.between_slices is not None:
        first = cluster.first_devices[cluster.group_index(min(mesh.devices))]
        slices = (devices - first) // owner.torus.size
        if (slices != slices[:, :1]).any():
            nic = owner.between_slices
    bandwidth = min(
        owner.intra_host.bandwidth_bytes_per_second,
        nic.bandwidth_bytes_per_second / int((members > 0).sum(axis=1).max()),
        (owner.fabric_bandwidth or math.inf) / int((members > 0).sum()),
    )
    latency = max(owner.intra_host.latency_seconds, nic.latency_seconds)
    link, most = Link(latency, bandwidth), int(members.max())
    return GroupPlacement(size, link, most, bandwidth, bandwidth, crosses=True)


def _on_torus(
    cluster: Cluster, owner: HostGroup, mesh: Mesh, positions: Sequence[int]
) -> TorusRates | None:
    """What groups along axes at these positions have of the links of a torus; None where they lie
    in several slices, or the mesh in no box of one."""
    begin, count, sizes = min(mesh.devices), mesh.size, mesh.shape
    if owner.torus is None or mesh.devices != tuple(range(begin, begin + count)):
        return None
    most = owner.torus.size
    shape = owner.torus.shape(min(owner.num_devices, most))
    # The first axes go from slice to slice.
    slices, outer = max(count // most, 1), 0
    while math.prod(sizes[:outer]) < slices:
        outer += 1
    offset = (begin - cluster.first_devices[cluster.group_index(begin)]) % most
    if (
        shape is None
        or math.prod(sizes[:outer]) != slices
        or offset + count // slices > most
        or any(sizes[at] > 1 for at in positions if at < outer)
    ):
        return None
    part = box(shape, count // slices)
    if part is None or math.prod(sizes[outer:]) != math.prod(part):
        return None
    wraps = [
        around and length == whole
        for around, length, whole in zip(owner.torus.wrapped(shape), part, shape, strict=True)
    ]
    chosen = [at in positions for at in range(outer, len(sizes))]
    return rates(lying(tuple(sizes[outer:]), part), chosen, part, wraps)


def _inside(cluster: Cluster, owner: HostGroup, groups: np.ndarray) -> GroupPlacement:
    """Of some groups of devices, each on one host: what the slowest sees."""
    size = groups.shape[1]
    if owner.device_links is None or size < 2:
        bandwidth = owner.intra_host.bandwidth_bytes_per_second
        return GroupPlacement(size, owner.intra_host, 1, bandwidth, bandwidth)
    begin = cluster.first_devices[cluster.group_index(int(groups.flat[0]))]
    places = np.unique((groups - begin) % owner.devices_per_host, axis=0).tolist()
    link_rate, host_rate = owner.link_rate, owner.over_host_rate
    rates = [_rates(owner.device_links, tuple(each), link_rate, host_rate) for each in places]
    ring, exchange, shift = np.min(rates, axis=0)
    link = Link(owner.intra_host.latency_seconds, float(ring))
    return GroupPlacement(size, link, 1, float(exchange), float(shift))


@lru_cache(maxsize=1024)
def _rates(
    links: Links, members: tuple[int, ...], link_rate: float, host_rate: float
) -> tuple[float, float, float]:
    """Bytes/s of a device in rings over devices of a host with links of their own, in exchanges
    between all of them, and in sending to the next. Where no links lead, the memory of the host is
    the way."""
    ordered = tuple(sorted(members))
    pairs = [(a, b) for a in members for b in members if a != b]
    nexts = [*zip(members, members[1:] + members[:1], strict=True)]
    return (
        rings(links, ordered) * link_rate or host_rate,
        (len(members) - 1) / seconds_together(links, ordered, pairs, link_rate, host_rate),
        1 / seconds_together(links, ordered, nexts, link_rate, host_rate),
    )


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

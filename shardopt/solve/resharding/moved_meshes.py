"""Reshardings that differ only in which hosts of a host group they are on have one plan, moved by
so many hosts: the hosts of a group are alike, and so are the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh
from shardopt.solve.resharding.plan import ReshardingPlan
from shardopt.solve.resharding.strategies import Resharding


def on_first_hosts(
    reshardings: Sequence[Resharding], cluster: Cluster
) -> tuple[tuple[Resharding, ...], int]:
    """The reshardings from the first host of their group on, with meshes named by the order in
    which they occur, and by how many devices that is before where they are: 0 where meshes are on
    several groups."""
    meshes = dict.fromkeys(
        mesh for each in reshardings for mesh, _ in (each.source, each.destination)
    )
    devices = [device for mesh in meshes for device in mesh.devices]
    groups = {int(cluster.groups_of_devices[device]) for device in devices}
    by = 0
    if len(groups) == 1:
        [group] = groups
        begin, size = cluster.first_devices[group], cluster.groups[group].devices_per_host
        by = (min(devices) - begin) // size * size
    there = {
        mesh: replace(
            mesh, name=f"mesh{number}", devices=tuple(device - by for device in mesh.devices)
        )
        for number, mesh in enumerate(meshes)
    }
    return tuple(_between(each, there) for each in reshardings), by


def moved(plan: ReshardingPlan, by: int) -> ReshardingPlan:
    """The plan on devices with numbers larger by so many."""
    if not by:
        return plan
    return replace(
        plan,
        phases=tuple(
            tuple(
                replace(send, src_device=send.src_device + by, dst_device=send.dst_device + by)
                for send in phase
            )
            for phase in plan.phases
        ),
    )


def _between(resharding: Resharding, there: dict[Mesh, Mesh]) -> Resharding:
    (source, of_source), (destination, of_destination) = resharding.source, resharding.destination
    return replace(
        resharding,
        source=(there[source], of_source),
        destination=(there[destination], of_destination),
    )

"""Which devices of a mesh are in which process: the hosts of a mesh.

All hosts of a mesh run the same instruction list, each on its own shards. `Host.name` is how
workers are called: by their mesh, with the number of the host where it has several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.instructions import Program
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class Host:
    """Host `number` of `count` of a mesh; `shards` are the places of its devices in the mesh,
    ascending. `machine` is what parts of several meshes on one host have in common, None where that
    is not known."""

    mesh: str
    number: int
    count: int
    shards: tuple[int, ...]
    machine: int | None = None

    @property
    def name(self) -> str:
        return self.mesh if self.count == 1 else f"{self.mesh}/{self.number}"


Hosts = Mapping[str, tuple[Host, ...]]  # of every mesh, by its name


def one_host_each(program: Program) -> dict[str, tuple[Host, ...]]:
    """Every mesh in one process, wherever its devices would be."""
    return {part.mesh.name: hosts_of_mesh(part.mesh, ()) for part in program.meshes}


def num_devices(program: Program) -> int:
    """Of the cluster that the program is for, as far as it uses them."""
    return 1 + max(device for part in program.meshes for device in part.mesh.devices)


def devices_of_a_machine(hosts: Hosts) -> int:
    """How many devices the machine of the plan has that has most; those of no known machine are
    alone."""
    on_machine: Counter[int | str] = Counter()
    for host in (host for of_mesh in hosts.values() for host in of_mesh):
        home = host.name if host.machine is None else host.machine
        on_machine[home] += len(host.shards)
    return max(on_machine.values())


def hosts_of(program: Program, devices_per_host: int | None = None) -> dict[str, tuple[Host, ...]]:
    """The hosts that the program names; with `devices_per_host`, hosts of so many devices each, in
    the order of their numbers. Raises UserError when that is no positive number."""
    groups = program.hosts
    if devices_per_host is not None:
        if devices_per_host < 1:
            raise UserError(f"expected at least one device per host, found {devices_per_host}")
        groups = tuple(
            tuple(range(first, first + devices_per_host))
            for first in range(0, num_devices(program), devices_per_host)
        )
    return {part.mesh.name: hosts_of_mesh(part.mesh, groups) for part in program.meshes}


def hosts_of_mesh(mesh: Mesh, groups: Sequence[Sequence[int]]) -> tuple[Host, ...]:
    """The hosts of a mesh, numbered in the order of their first shard. Devices in no group share
    one host."""
    host_of = {device: number for number, devices in enumerate(groups) for device in devices}
    shards: dict[int | None, list[int]] = {}
    for place, device in enumerate(mesh.devices):
        shards.setdefault(host_of.get(device), []).append(place)
    return tuple(
        Host(mesh.name, number, len(shards), tuple(of_machine), machine)
        for number, (machine, of_machine) in enumerate(shards.items())
    )

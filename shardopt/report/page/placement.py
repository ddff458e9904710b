"""Where every argument of the step lies: on which mesh, in which tiles, and what a device holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Argument
from shardopt.mesh.mesh import Mesh, Sharding

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Tiles:
    """A tensor cut into `rows` x `columns` tiles, in row-major order: the first split dimension
    counts as rows, all others as columns. `devices[t]` are the devices that hold tile t."""

    rows: int
    columns: int
    devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ArgumentPlacement:
    """One argument. `bytes` are those of the whole tensor, `device_bytes` those of one tile."""

    name: str
    type: str
    mesh: str
    sharding: str
    is_state: bool
    bytes: int
    device_bytes: int
    tiles: Tiles

    @property
    def pattern(self) -> str:
        """The name with its numbers left out: equal for the same weight of every layer."""
        return _NUMBER.sub("*", self.name)


@dataclass(frozen=True)
class ArgumentGroup:
    """Arguments of one pattern that lie alike, in the order of the program."""

    members: tuple[ArgumentPlacement, ...]

    @property
    def first(self) -> ArgumentPlacement:
        return self.members[0]

    @property
    def name(self) -> str:
        return self.first.pattern if len(self.members) > 1 else self.first.name

    @property
    def bytes(self) -> int:
        return sum(member.bytes for member in self.members)

    @property
    def device_bytes(self) -> int:
        return sum(member.device_bytes for member in self.members)


def place(arguments: Iterable[Argument], meshes: Sequence[Mesh]) -> tuple[ArgumentPlacement, ...]:
    """Every argument, in the order of the program."""
    by_name = {mesh.name: mesh for mesh in meshes}
    return tuple(_placement(argument, by_name[argument.value.mesh]) for argument in arguments)


def _placement(argument: Argument, mesh: Mesh) -> ArgumentPlacement:
    spec = argument.value.spec
    itemsize = numpy_dtype(spec.dtype).itemsize
    return ArgumentPlacement(
        name=argument.label,
        type="x".join([*map(str, spec.shape), spec.dtype]),
        mesh=mesh.name,
        sharding=str(spec.sharding),
        is_state=argument.alias is not None,
        bytes=prod(spec.shape) * itemsize,
        device_bytes=prod(spec.sharding.local_shape(mesh, spec.shape)) * itemsize,
        tiles=tiles_of(spec.sharding, mesh),
    )


def tiles_of(sharding: Sharding, mesh: Mesh) -> Tiles:
    """How the devices of `mesh` share a tensor of that sharding."""
    counts = sharding.tile_counts(mesh)
    split = [dim for dim, count in enumerate(counts) if count > 1]
    rows = counts[split[0]] if split else 1
    columns = prod(counts[dim] for dim in split[1:])
    holders: list[list[int]] = [[] for _ in range(rows * columns)]
    for device, number in zip(mesh.devices, sharding.tile_numbers(mesh).tolist(), strict=True):
        tile = 0
        for dim in split:
            tile = tile * counts[dim] + number[dim]
        holders[tile].append(device)
    return Tiles(rows, columns, tuple(map(tuple, holders)))


def grouped(placements: Iterable[ArgumentPlacement]) -> tuple[ArgumentGroup, ...]:
    """Alike arguments together, what takes most memory of a device first."""

    def key(row: ArgumentPlacement) -> tuple[str, ...]:
        return (row.pattern, row.type, row.mesh, row.sharding)

    groups = [ArgumentGroup(tuple(rows)) for _, rows in groupby(sorted(placements, key=key), key)]
    return tuple(sorted(groups, key=lambda group: (-group.device_bytes, key(group.first))))

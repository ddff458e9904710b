"""Meshes and shardings as plain values: the vocabulary every layer above MLIR shares.

A *mesh* is a logical array of devices with named axes. A *sharding* assigns, to each tensor
dimension, the mesh axes that split it, major to minor, and may name axes along which the value is a
sum that nobody has taken yet; axes it does not name hold replicas. Both are immutable and know no
MLIR, so the solvers, the simulator and the runtime can use them; `shardopt.dialect.sharding` prints
them into the IR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np

from shardopt.mesh.splits import tile_extent
from shardopt.support.errors import UserError
from shardopt.support.kept_hash import keeps_hash

# The mesh of a module without stages (`jax.export` looks for a Shardy mesh of this very name), and
# its axes, slowest first.
MESH_NAME = "mesh"
AXIS_NAMES = ("x", "y", "z", "u")

Dims = tuple[tuple[str, ...], ...]
Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Mesh:
    """A logical mesh: axis names and sizes, and the global device ids in row-major order of the
    axes."""

    name: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        names = self.axis_names
        if len(set(names)) != len(names):
            raise ValueError(f"mesh '{self.name}': axis names {names} are not unique")
        if any(size < 1 for _, size in self.axes):
            raise ValueError(f"mesh '{self.name}': axis sizes {self.shape} must be at least 1")
        if len(self.devices) != self.size:
            raise ValueError(
                f"mesh '{self.name}': shape {self.shape} needs {self.size} devices, got "
                f"{len(self.devices)}"
            )
        if len(set(self.devices)) != len(self.devices):
            raise ValueError(f"mesh '{self.name}': device ids {self.devices} are not unique")
        if any(device < 0 for device in self.devices):
            raise ValueError(f"mesh '{self.name}': device ids {self.devices} must be at least 0")

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def axis_size(self, axis: str) -> int:
        return self._sizes[axis]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    def __str__(self) -> str:
        return f"{self.name}[{axes_text(self.axes)}]"


# What a planner asks for again and again: a few shardings of a few shapes.
@cache
def _tile_counts(dims: Dims, axes: Axes) -> tuple[int, ...]:
    """`Sharding.tile_counts` of these dimensions."""
    sizes = dict(axes)
    return tuple(prod(sizes[axis] for axis in dim) for dim in dims)


@cache
def _local_elements(dims: Dims, axes: Axes, shape: tuple[int, ...]) -> int:
    """`Sharding.local_elements` of these dimensions."""
    return prod(
        tile_extent(extent, tiles)
        for extent, tiles in zip(shape, _tile_counts(dims, axes), strict=True)
    )


@keeps_hash
@dataclass(frozen=True)
class Sharding:
    """Axis form of a sharding: `dims[d]` are the mesh axes that split dimension d, major to minor.

    Along the axes of `unreduced` every device holds a term of the value, which is the sum of the
    terms: an *unreduced* value. They are in the order of the mesh and
    split no dimension."""

    dims: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()

    @staticmethod
    def replicated(rank: int) -> Sharding:
        return Sharding(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that split a dimension."""
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        return not any(self.dims) and not self.unreduced

    def reduced(self) -> Sharding:
        """The same tiles, each summed up."""
        return Sharding(self.dims)

    def tile_counts(self, mesh: Mesh) -> tuple[int, ...]:
        """Number of tiles along each dimension."""
        return _tile_counts(self.dims, mesh.axes)

    def is_even(self, mesh: Mesh, shape: tuple[int, ...]) -> bool:
        """Whether all tiles are equal and full, as `jax` demands of arguments and results."""
        return not any(
            extent % tiles for extent, tiles in zip(shape, self.tile_counts(mesh), strict=True)
        )

    def pads_terms(self, mesh: Mesh, shape: tuple[int, ...]) -> bool:
        """Whether a sum that is still open lies in padded tiles, which ends XLA's process."""
        return len(self.unreduced) > 0 and not self.is_even(mesh, shape)

    def check(self, mesh: Mesh, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless rank and axes fit: known axes, each once, and unreduced axes in
        the order of the mesh. Tiles may be uneven."""
        if len(shape) != self.rank:
            raise ValueError(
                f"sharding {self} has rank {self.rank}, the tensor has rank {len(shape)}"
            )
        named = (*self.axes, *self.unreduced)
        unknown = [axis for axis in named if axis not in mesh.axis_names]
        if unknown:
            raise ValueError(
                f"sharding {self} names axis '{unknown[0]}', which is not an axis of mesh {mesh}"
            )
        if len(set(named)) != len(named):
            raise ValueError(f"sharding {self} uses an axis twice")
        if list(self.unreduced) != sorted(self.unreduced, key=mesh.axis_names.index):
            raise ValueError(
                f"sharding {self} names unreduced axes in another order than mesh {mesh}"
            )

    def local_shape(self, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of every device's buffer. Where tiles are uneven it is that of the largest one,
        as in XLA: smaller tiles stand at its start, and the rest is padding."""
        return tuple(
            tile_extent(extent, tiles)
            for extent, tiles in zip(shape, self.tile_counts(mesh), strict=True)
        )

    def padded_shape(self, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that all tiles make up together, with their padding."""
        return tuple(
            tile_extent(extent, tiles) * tiles
            for extent, tiles in zip(shape, self.tile_counts(mesh), strict=True)
        )

    def local_elements(self, mesh: Mesh, shape: tuple[int, ...]) -> int:
        """Elements of every device's buffer, padding included."""
        return _local_elements(self.dims, mesh.axes, shape)

    def tile_numbers(self, mesh: Mesh) -> np.ndarray:
        """Which tile of each dimension a device holds: int64 `[devices, rank]`, in the order of
        `mesh.devices`."""
        coords = dict(
            zip(mesh.axis_names, np.indices(mesh.shape).reshape(len(mesh.axes), -1), strict=True)
        )
        numbers = np.zeros((mesh.size, self.rank), dtype=np.int64)
        for dim, axes in enumerate(self.dims):
            for axis in axes:
                numbers[:, dim] = numbers[:, dim] * mesh.axis_size(axis) + coords[axis]
        return numbers

    def tiles(self, mesh: Mesh, shape: tuple[int, ...]) -> np.ndarray:
        """The slice each device holds: int64 `[devices, rank, 2]` of (start, limit), in the order
        of `mesh.devices`.

        Tiles that do not come out even are as XLA cuts them: all have the extent of `local_shape`,
        except that those at the end stop where the tensor does, and may hold nothing."""
        self.check(mesh, shape)
        local = np.array(self.local_shape(mesh, shape), dtype=np.int64)
        starts = self.tile_numbers(mesh) * local
        slices = np.stack([starts, starts + local], axis=-1)
        return np.minimum(slices, np.array(shape, dtype=np.int64)[:, None])

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self.dims)

    def __str__(self) -> str:
        dims = "[" + ", ".join(map(_braced, self.dims)) + "]"
        return f"{dims}, unreduced={_braced(self.unreduced)}" if self.unreduced else dims


def _braced(axes: tuple[str, ...]) -> str:
    return "{" + ", ".join(f'"{axis}"' for axis in axes) + "}"


def axes_text(axes: Sequence[tuple[str, int]]) -> str:
    """Names and sizes, as messages list them."""
    return ", ".join(f"{name}={size}" for name, size in axes)


def matching_axes(axes: Sequence[tuple[str, int]], mesh: Mesh) -> dict[str, tuple[str, ...]] | None:
    """The axes of `mesh` in the place of `axes` (name, size) of another mesh of the same devices:
    those of more than one device, in order, and several for one where their sizes make up its
    size. None where they do not."""
    ours = iter([axis for axis in mesh.axes if axis[1] > 1])
    matched: dict[str, tuple[str, ...]] = {}
    for name, size in axes:
        taken, count = list[str](), 1
        while count < size:
            own, own_size = next(ours, ("", 0))
            if not own_size:
                return None
            taken.append(own)
            count *= own_size
        if count != size:
            return None
        if taken:
            matched[name] = tuple(taken)
    return matched if next(ours, None) is None else None


_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*):(?P<size>[1-9]\d*)")
# Strategies of operations are listed for at most so many axes.
MAX_AXES = len(AXIS_NAMES)
MAX_DEVICES = 1 << 20


def numbered_devices(axes: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """0, 1, 2, … of a mesh with these axes. Raises ValueError where that is more than there are
    anywhere: a number of a hand-written file would fill the memory."""
    count = prod(size for _, size in axes)
    if count > MAX_DEVICES:
        raise ValueError(f"expected a mesh of at most {MAX_DEVICES} devices, found {count}")
    return tuple(range(count))


def parse_mesh(text: str) -> Mesh:
    """The mesh of a shape such as "2x2", or of named axes such as "data:2,model:4".

    Its devices are 0, 1, 2, … of the cluster, or those behind an `@`, in row-major order of the
    axes: "data:2,model:2@0,2,1,3". Raises UserError."""
    axes_text, _, devices_text = text.partition("@") if isinstance(text, str) else ("", "", "")
    axes, devices = _read_axes(axes_text), _read_devices(devices_text)
    if axes is None or devices is None:
        raise UserError(
            "expected the shape of a mesh with one to four axes, such as '2x2' or "
            f"'data:2,model:2', found {text!r}"
        )
    try:
        return Mesh(MESH_NAME, axes, devices or numbered_devices(axes))
    except ValueError as error:
        raise UserError(str(error)) from error


def mesh_text(mesh: Mesh) -> str:
    """What `parse_mesh` reads as the mesh."""
    if mesh.axis_names == AXIS_NAMES[: len(mesh.axes)]:
        axes = "x".join(map(str, mesh.shape))
    else:
        axes = ",".join(f"{name}:{size}" for name, size in mesh.axes)
    if mesh.devices == tuple(range(mesh.size)):
        return axes
    return f"{axes}@{','.join(map(str, mesh.devices))}"


def _read_axes(text: str) -> tuple[tuple[str, int], ...] | None:
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        sizes = tuple(map(int, text.split("x")))
        return tuple(zip(AXIS_NAMES, sizes, strict=False)) if len(sizes) <= MAX_AXES else None
    matches = [_AXIS.fullmatch(item) for item in text.split(",")]
    if len(matches) > MAX_AXES:
        return None
    axes = tuple((match["name"], int(match["size"])) for match in matches if match is not None)
    return axes if len(axes) == len(matches) else None


def _read_devices(text: str) -> tuple[int, ...] | None:
    if not text:
        return ()
    numbers = text.split(",")
    return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else None

"""What a user says about the sharding of one value: tiles over the user's own mesh, which need not
be the planner's.

An annotation and a sharding of ours agree when every device holds the same tile under both, so axis
names and the way a mesh is cut into axes do not matter: `{"dp", "mp"}` over dp=2, mp=4 is the same
as `{"x"}` over x=8. An open dimension (Shardy's `?`, JAX's `P.UNCONSTRAINED`) may be split further
than it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from shardopt.mesh.mesh import MAX_DEVICES, Mesh, Sharding, axes_text

# Device ids that a message shows.
_MAX_LISTED = 16


@dataclass(frozen=True)
class Annotation:
    """`dims[d]` are the axes that split dimension d, major to minor; `open` are dimensions that may
    be split further.

    Axes of `replicated` split nothing, open dimensions included. `devices` are the device ids at
    the positions of the mesh in row-major order of `axes`; empty means 0, 1, 2, … Raises ValueError
    for axes that are unknown or used twice."""

    axes: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, ...], ...]
    open: tuple[int, ...] = ()
    replicated: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        named = [*(axis for dim in self.dims for axis in dim), *self.replicated]
        unknown = [axis for axis in named if axis not in dict(self.axes)]
        if unknown:
            known = ", ".join(name for name, _ in self.axes) or "none"
            raise ValueError(f"expected axes of the mesh ({known}), found '{unknown[0]}'")
        if len(set(named)) != len(named):
            raise ValueError(f"expected every axis once, found {self}")
        if self.num_devices > MAX_DEVICES:
            raise ValueError(f"expected at most {MAX_DEVICES} devices, found {self.num_devices}")
        if self.devices and sorted(self.devices) != list(range(self.num_devices)):
            raise ValueError(
                f"expected device ids 0 to {self.num_devices - 1}, each once, found {self.devices}"
            )

    @property
    def num_devices(self) -> int:
        return prod(size for _, size in self.axes)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_vacuous(self) -> bool:
        """Whether every sharding agrees with it. A mesh of one device says nothing about larger
        ones."""
        free = len(self.open) == self.rank and not any(self.dims) and not self.replicated
        return free or (bool(self.axes) and self.num_devices == 1)

    @property
    def splits(self) -> bool:
        """Whether a dimension is split, or an axis kept from splitting one: only then do the
        devices matter."""
        sizes = dict(self.axes)
        named = [
            *(axis for dim in self.dims for axis in dim),
            *(self.replicated if self.open else ()),
        ]
        return any(sizes[axis] > 1 for axis in named)

    def without(self, dim: int) -> Annotation:
        """The same of a tensor that lacks a dimension, which is not split."""
        kept = tuple(each - (each > dim) for each in self.open if each != dim)
        return replace(self, dims=(*self.dims[:dim], *self.dims[dim + 1 :]), open=kept)

    def misfit(self, mesh: Mesh, shape: tuple[int, ...]) -> str:
        """Why no sharding of a tensor of this shape on the mesh can agree; empty when one may."""
        if len(shape) != self.rank:
            return f"it has rank {self.rank}, the tensor {_shape(shape)} has rank {len(shape)}"
        if self.splits and self.num_devices != mesh.size:
            return f"it is over {self.num_devices} devices, mesh {mesh} has {mesh.size}"
        return ""

    def agrees(self, sharding: Sharding, mesh: Mesh) -> bool:
        """Whether a sharding on the mesh is one that the annotation asks for. Unfinished sums never
        are."""
        if sharding.rank != self.rank or sharding.unreduced:
            return False
        ours = _places(mesh.shape, tuple(mesh.axis_names), sharding.dims, ())
        if not self.splits:
            return all(dim in self.open or not places.any() for dim, (places, _) in enumerate(ours))
        if self.num_devices != mesh.size:
            return False
        names, sizes = zip(*self.axes, strict=True)
        theirs = _places(sizes, names, self.dims, self.devices)
        for dim, ((mine, count), (required, tiles)) in enumerate(zip(ours, theirs, strict=True)):
            finer = count // tiles if dim in self.open else 1
            if finer < 1 or (finer * tiles != count) or not np.array_equal(mine // finer, required):
                return False
        return all(
            self._is_constant(places, axis) for places, _ in ours for axis in self.replicated
        )

    def _is_constant(self, places: np.ndarray, axis: str) -> bool:
        """Whether devices that differ along one of our axes only hold the same tile."""
        order = np.array(self.devices or range(self.num_devices))
        along = places[order].reshape([size for _, size in self.axes])
        position = [name for name, _ in self.axes].index(axis)
        return bool((along == along.take([0], axis=position)).all())

    def __str__(self) -> str:
        dims = []
        for number, dim in enumerate(self.dims):
            marks = ["?"] if number in self.open else []
            dims.append("{" + ", ".join([*(f'"{axis}"' for axis in dim), *marks]) + "}")
        kept = (
            ", replicated={" + ", ".join(f'"{axis}"' for axis in self.replicated) + "}"
            if self.replicated
            else ""
        )
        over = axes_text(self.axes)
        listed = ", ".join(map(str, self.devices[:_MAX_LISTED])) + (
            ", …" if len(self.devices) > _MAX_LISTED else ""
        )
        on = f" on devices {listed}" if self.devices else ""
        return f"[{', '.join(dims)}]{kept}" + (f" over {over}{on}" if over else "")


@lru_cache(maxsize=65536)
def _places(
    shape: tuple[int, ...],
    names: tuple[str, ...],
    dims: tuple[tuple[str, ...], ...],
    devices: tuple[int, ...],
) -> tuple[tuple[np.ndarray, int], ...]:
    """For each dimension the number of the tile that device 0, 1, … holds, and the count of
    tiles."""
    coords = dict(zip(names, np.indices(shape).reshape(len(shape), -1), strict=True))
    sizes = dict(zip(names, shape, strict=True))
    tiles_of_dims = []
    for axes in dims:
        place = np.zeros(prod(shape), dtype=np.int64)
        for axis in axes:
            place = place * sizes[axis] + coords[axis]
        by_device = place
        if devices:
            by_device = np.empty_like(place)
            by_device[np.array(devices)] = place
        tiles_of_dims.append((by_device, prod(sizes[axis] for axis in axes)))
    return tuple(tiles_of_dims)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"

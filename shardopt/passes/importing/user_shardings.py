"""Sharding annotations of users as `Annotation`s: GSPMD's texts (`mhlo.sharding`) and Shardy's
attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.mesh.annotation import Annotation

# `{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}`: the tiles of each dimension; the devices
# of the tiles in row-major order, as a transposed iota (`<=[2,2]T(1,0)`) or as a list (`0,2,1,3`);
# and what the tile dimensions behind those of the tensor mean.
_DEVICES = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\](?:<=\[(?P<source>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?|(?P<list>[\d,]+))"
    r"(?: (?P<last>last_tile_dim_replicate|last_tile_dims=\{[\w, ]*\}))?\}"
)
_NO_TILES = re.compile(r"^\{maximal device=\d+\}$|shard_as|shard_like")
_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,]*)\]")


class UnsupportedError(Exception):
    """An annotation that is right and that the planner has no word for."""


class ManualError(Exception):
    """An annotation of code that is written for one device."""


def from_gspmd(text: str, rank: int, backend_config: str = "") -> Annotation:
    """One `mhlo.sharding` (not a tuple) of a tensor of this rank. Raises ValueError,
    UnsupportedError, ManualError."""
    open_ = tuple(
        _numbers(match[1]) if (match := _UNSPECIFIED.search(backend_config)) and match[1] else ()
    )
    # By substring: it may also be one of several subgroups (`last_tile_dims={manual, replicated}`).
    if "manual" in text:
        raise ManualError(text)
    if text in ("{replicated}", "{unknown}"):
        return Annotation((), ((),) * rank, tuple(range(rank)) if text == "{unknown}" else open_)
    if _NO_TILES.search(text):
        raise UnsupportedError(text)
    devices, _ = devices_of_tiles(text, rank)
    order, tiles = tuple(devices.ravel().tolist()), devices.shape
    axes = tuple((f"d{k}" if k < rank else f"r{k - rank}", size) for k, size in enumerate(tiles))
    dims = tuple((f"d{k}",) if tiles[k] > 1 else () for k in range(rank))
    in_order = order == tuple(range(len(order)))
    # A mesh of one device is not "no mesh".
    kept = tuple(axis for axis in axes if axis[1] > 1) or axes[:1]
    return Annotation(kept, dims, open_, (), () if in_order else order)


def devices_of_tiles(text: str, rank: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The devices of the tiles of a `{devices=…}`, int64 `[tile dimensions]`, and what those behind
    the dimensions of the tensor mean. Raises ValueError and UnsupportedError."""
    match = _DEVICES.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a sharding such as {{devices=[2,1]<=[2]}}, found '{text}'")
    last = match["last"] or ""
    if "unreduced" in last:
        raise UnsupportedError(text)
    tiles, devices = _numbers(match["tiles"]), _devices(match)
    _check_tiles(text, rank, tiles, devices, last)
    named = re.findall(r"\w+", last.partition("=")[2])
    kinds = ("replicated",) if last == "last_tile_dim_replicate" else tuple(named)
    return np.array(devices, dtype=np.int64).reshape(tiles), kinds


def _check_tiles(
    text: str, rank: int, tiles: Sequence[int], devices: Sequence[int], last: str
) -> None:
    # Tile dimensions behind those of the tensor: one for `last_tile_dim_replicate`, else as many as
    # `last_tile_dims` names.
    extra = 1 if last == "last_tile_dim_replicate" else last.count(",") + 1 if last else 0
    if len(tiles) != rank + extra or prod(tiles) != len(devices):
        raise ValueError(
            f"expected tile counts for rank {rank} and {len(devices)} devices, found '{text}'"
        )


def _devices(match: re.Match[str]) -> tuple[int, ...]:
    """The device ids in row-major order of the tiles."""
    if match["list"]:
        return tuple(_numbers(match["list"]))
    source = _numbers(match["source"])
    perm = _numbers(match["perm"]) if match["perm"] else list(range(len(source)))
    if sorted(perm) != list(range(len(source))):
        raise ValueError(
            f"expected a permutation of {len(source)} dimensions, found T({match['perm']})"
        )
    return tuple(int(d) for d in np.arange(prod(source)).reshape(source).transpose(perm).ravel())


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def split_texts(text: str) -> list[str]:
    """`{{replicated}, {devices=…}}` -> its parts; a plain sharding is its own only part."""
    if not text.startswith("{{"):
        return [text] if text != "{}" else []
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character == "{":
            depth += 1
            start = at if depth == 2 else start
        elif character == "}":
            if depth == 2:
                parts.append(text[start : at + 1])
            depth -= 1
    return parts


def read_meshes(module: ir.Module) -> dict[str, sdy.MeshAttr]:
    """The `sdy.mesh` ops of a module by name."""
    mesh_ops = (op.operation for op in module.body.operations if op.operation.name == "sdy.mesh")
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: sdy.MeshAttr(op.attributes["mesh"])
        for op in mesh_ops
    }


def from_shardy(attr: ir.Attribute, meshes: Mapping[str, sdy.MeshAttr]) -> Annotation:
    """One `#sdy.sharding`. Axes that are named in parts are cut into those parts.

    Raises ValueError for a mesh that is not there, UnsupportedError for unfinished sums and maximal
    meshes."""
    sharding = sdy.TensorShardingAttr(attr)
    mesh = _mesh(sharding, meshes)
    if len(sharding.unreduced_axes) or (len(mesh.device_ids) == 1 and not len(mesh.axes)):
        raise UnsupportedError(str(attr))
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    refs = [_ref(axis) for dim in dims for axis in dim.axes] + [
        _ref(axis) for axis in sharding.replicated_axes
    ]
    sizes = [(sdy.MeshAxisAttr(axis).name, sdy.MeshAxisAttr(axis).size) for axis in mesh.axes]
    parts = {name: _parts(name, size, refs) for name, size in sizes}

    def named(axes: Sequence[ir.Attribute]) -> tuple[str, ...]:
        return tuple(part for axis in axes for part in _covered(_ref(axis), parts))

    annotation = Annotation(
        tuple((part, size) for name, _ in sizes for part, _, size in parts[name]),
        tuple(named(list(dim.axes)) for dim in dims),
        tuple(number for number, dim in enumerate(dims) if not dim.is_closed),
        named(list(sharding.replicated_axes)),
    )
    return replace(annotation, devices=tuple(mesh.device_ids))


def from_shardy_values(
    attr: ir.Attribute, meshes: Mapping[str, sdy.MeshAttr]
) -> Iterator[Annotation]:
    """Those of a `#sdy.sharding_per_value`."""
    for sharding in sdy.TensorShardingPerValueAttr(attr).shardings:
        yield from_shardy(sharding, meshes)


def _mesh(sharding: sdy.TensorShardingAttr, meshes: Mapping[str, sdy.MeshAttr]) -> sdy.MeshAttr:
    where = sharding.mesh_or_ref
    if sdy.MeshAttr.isinstance(where):
        return sdy.MeshAttr(where)
    name = ir.FlatSymbolRefAttr(where).value
    if name not in meshes:
        raise ValueError(
            f"expected a mesh of the module ({', '.join(meshes) or 'none'}), found '@{name}'"
        )
    return meshes[name]


# An axis, what of it lies major to this part, the part's size (0: the whole axis).
Ref = tuple[str, int, int]


def _ref(attr: ir.Attribute) -> Ref:
    axis = sdy.AxisRefAttr(attr)
    if axis.sub_axis_info is None:
        return axis.name, 1, 0
    part = sdy.SubAxisInfoAttr(axis.sub_axis_info)
    return axis.name, part.pre_size, part.size


def _parts(name: str, size: int, refs: Sequence[Ref]) -> list[tuple[str, int, int]]:
    """The pieces (name, pre-size, size) into which the named parts cut an axis."""
    cuts = {1, size}
    for axis, pre, extent in refs:
        if axis == name and extent:
            cuts |= {pre, pre * extent}
    ordered = sorted(cuts)
    if len(ordered) <= 2:
        return [(name, 1, size)]
    pieces = pairwise(ordered)
    return [(f"{name}:({pre}){stop // pre}", pre, stop // pre) for pre, stop in pieces]


def _covered(ref: Ref, parts: Mapping[str, list[tuple[str, int, int]]]) -> list[str]:
    name, pre, size = ref
    # In an axis of size 8, Shardy's `"x":(2)2` is the part with 2 tiles major to it and 2 of its
    # own: from pre-size 2 to 4. It covers the pieces that lie between.
    stop = pre * size if size else float("inf")
    return [part for part, start, extent in parts[name] if pre <= start and start * extent <= stop]

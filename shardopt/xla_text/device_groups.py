"""Groups of devices as XLA's HLO text prints them, and the mesh axes along which they run.

There are three notations: lists, rows of a transposed iota, and axes of a mesh.

    replica_groups={{0,1},{2,3}}
    replica_groups=[2,2]<=[2,2]T(1,0)
    replica_groups=mesh['a'=2,'b'=2] {'b'}
"""

from __future__ import annotations

import re
from functools import cache
from math import prod

import numpy as np

from shardopt.mesh.mesh import Mesh

# Axes of groups of devices that are no whole axes of the mesh.
UNKNOWN_AXES = ("?",)

_GROUPS = re.compile(
    r"replica_groups=(?P<groups>\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\].*?\{.*?\})"
)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>(?:\{\d+,\d+\},?)*)\}")
_ORDER = re.compile(
    r"device_ids=\((?:(?P<source>\[[\d,]+\])T\((?P<perm>[\d,]+)\)|(?P<ids>[\d,]+))\)"
)
_SUB_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[(?P<shape>[\d,]+)\]<=\[(?P<source>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?")

Groups = tuple[tuple[int, ...], ...]


def device_groups(rest: str, mesh: Mesh) -> Groups:
    """The groups of a collective, or the (source, target) pairs of a permute; all devices where
    none are named."""
    pairs = _PAIRS.search(rest)
    if pairs:
        return _listed(pairs["pairs"])
    groups = _GROUPS.search(rest)
    everything = (tuple(range(mesh.size)),)
    if groups is None or groups["groups"] == "{}":
        return everything
    text = groups["groups"]
    if text.startswith("{"):
        return _listed(text)
    return _by_mesh(text) if text.startswith("mesh") else _by_iota(text)


def _listed(text: str) -> Groups:
    """`{{0,1},{2,3}}`."""
    return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\d+(?:,\d+)*", text))


def _by_iota(text: str) -> Groups:
    """`[2,2]<=[2,2]T(1,0)`: the groups are the rows of a reshaped and transposed iota."""
    match = _IOTA.match(text)
    assert match is not None, text
    shape, source = _numbers(match["shape"]), _numbers(match["source"])
    ids = np.arange(prod(source)).reshape(source)
    if match["perm"]:
        ids = ids.transpose(_numbers(match["perm"]))
    return tuple(map(tuple, ids.reshape(shape).tolist()))


def _by_mesh(text: str) -> Groups:
    """`mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}`: the axes, or the parts of axes,
    to run along.

    `'b':(1)2` is the part of size 2 of axis b that has one such part before it. The devices of the
    mesh are in row-major order unless `device_ids` gives another one."""
    head, _, chosen = text.partition("]")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", head)}
    extents: list[int] = []
    moved: list[int] = []
    parts = {
        name: (int(before or 1), int(size or sizes[name]))
        for name, before, size in _SUB_AXIS.findall(chosen)
    }
    for name, size in sizes.items():
        before, part = parts.get(name, (1, 1))
        moved += [len(extents) + 1] if name in parts else []
        extents += [before, part, size // before // part]
    kept = [k for k in range(len(extents)) if k not in moved]
    ids = _device_order(chosen, prod(extents)).reshape(extents).transpose([*kept, *moved])
    return tuple(map(tuple, ids.reshape(-1, prod(extents[k] for k in moved)).tolist()))


def _device_order(text: str, count: int) -> np.ndarray:
    order = _ORDER.search(text)
    if order is None:
        return np.arange(count)
    if order["ids"]:
        return np.array(_numbers(order["ids"]))
    source = _numbers(order["source"][1:-1])
    return np.arange(count).reshape(source).transpose(_numbers(order["perm"])).reshape(-1)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


@cache
def axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which the groups run, in mesh order; `UNKNOWN_AXES` when they are no whole
    axes.

    Devices are numbered in row-major order of the mesh axes, whatever their global ids.
    """
    varying = _varying(groups, mesh)
    kept = [k for k, name in enumerate(mesh.axis_names) if name not in varying]
    ids = np.arange(mesh.size).reshape(mesh.shape)
    moved = [mesh.axis_names.index(name) for name in varying]
    expected = ids.transpose([*kept, *moved]).reshape(
        -1, prod(mesh.axis_size(name) for name in varying)
    )
    same = {frozenset(row) for row in expected.tolist()} == {frozenset(group) for group in groups}
    return varying if same else UNKNOWN_AXES


def axes_of_pairs(pairs: Groups, mesh: Mesh) -> tuple[str, ...]:
    """The axes whose coordinate changes for some device of a permute."""
    return _varying(pairs, mesh)


def _varying(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    coordinates = np.indices(mesh.shape).reshape(len(mesh.axes), -1)
    moved = [any(len(set(row[list(group)])) > 1 for group in groups) for row in coordinates]
    return tuple(name for name, varies in zip(mesh.axis_names, moved, strict=True) if varies)

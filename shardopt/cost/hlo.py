"""Read the collectives out of XLA's HLO text: what a compiled module really exchanges, to hold against a plan.

    %all-reduce.3 = (f32[32,32], f32[32]) all-reduce(%dot.1, %reduce.2), channel_id=1, replica_groups=[1,4]<=[4], …

is one all-reduce of two tensors that gives 4224 bytes, over all four devices. XLA merges collectives, so tensors are
what compares with a plan. Asynchronous pairs count once, at their `-start`. What stands in the body of a loop counts
once for each trip where XLA states the number of trips, and once otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER
from shardopt.cost.mesh import Mesh
from shardopt.cost.traffic import Traffic, total

_KINDS = {
    "all-gather": ALL_GATHER,
    "all-reduce": ALL_REDUCE,
    "all-to-all": ALL_TO_ALL,
    "collective-permute": PERMUTE,
    "reduce-scatter": REDUCE_SCATTER,
}
# Axes of groups of devices that are no whole axes of the mesh.
UNKNOWN_AXES = ("?",)

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.*?) "
    rf"(?P<kind>{'|'.join(_KINDS)})(?:-start)?\((?P<operands>.*?)\), (?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|true_computation|false_computation|branch_computations)="
    r"(?P<names>%?[\w.-]+|\{[^}]*\})"
)
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(?P<trips>\d+)')
_SHAPE = re.compile(r"(?P<type>[a-z]\w*)\[(?P<dims>[\d,]*)\]")
_GROUPS = re.compile(
    r"replica_groups=(?P<groups>\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\].*?\{.*?\})"
)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>.*?)\}\}?(?:,|$)")
_ORDER = re.compile(r"device_ids=\((?:(?P<source>\[[\d,]+\])T\((?P<perm>[\d,]+)\)|(?P<ids>[\d,]+))\)")
_SUB_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[(?P<shape>[\d,]+)\]<=\[(?P<source>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?")
_SOURCE = re.compile(r'op_name="(?P<name>[^"]*)"')
_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0}


@dataclass(frozen=True)
class HloCollective:
    """One instruction: how many tensors it combines and their bytes (as `Traffic` counts them) in one execution, the
    mesh axes it runs along, how often it runs, and which operation of the source it stands for."""

    name: str
    kind: str
    tensors: int
    bytes: int
    axes: tuple[str, ...] = ()
    times: int = 1
    source: str = ""

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.kind, self.axes, self.tensors * self.times, self.bytes * self.times)


def parse_collectives(text: str, mesh: Mesh) -> tuple[HloCollective, ...]:
    """The collectives of all computations of a module compiled for `mesh`, in the order of the text."""
    computations = dict(_computations(text))
    times = _executions(computations)
    return tuple(
        collective
        for name, lines in computations.items()
        for line in lines
        if (collective := _parse(line, mesh, times.get(name, 1))) is not None
    )


def module_traffic(text: str, mesh: Mesh) -> tuple[Traffic, ...]:
    """What a compiled module exchanges, by kind and axes."""
    return total(collective.traffic for collective in parse_collectives(text, mesh))


def _parse(line: str, mesh: Mesh, times: int) -> HloCollective | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    kind, operands = _KINDS[match["kind"]], match["operands"].count("%")
    # The result of a `-start` is a tuple of operands, results and, on some backends, contexts.
    shapes = [_bytes(shape["type"], shape["dims"]) for shape in _SHAPE.finditer(match["result"])]
    results = shapes[operands : 2 * operands] if len(shapes) >= 2 * operands else shapes
    groups = _device_groups(match["rest"], mesh)
    held = sum(results) * (len(groups[0]) if kind == REDUCE_SCATTER else 1)
    # The tuple form of an all-to-all has one operand for each peer: together they are one tensor.
    tensors = 1 if kind == ALL_TO_ALL else operands
    source = _SOURCE.search(match["rest"])
    axes = _axes_of_pairs(groups, mesh) if kind == PERMUTE else axes_of_groups(groups, mesh)
    return HloCollective(match["name"], kind, tensors, held, axes, times, source["name"] if source else "")


def _bytes(element: str, dims: str) -> int:
    bits = _BITS.get(element)
    if bits is None:
        digits = re.search(r"\d+", element)
        bits = max(8, int(digits[0])) if digits else 8
    return bits // 8 * prod(int(extent) for extent in dims.split(",") if extent)


# ---- how often a computation runs ----


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    """(name, lines) of each computation; the entry is called ""."""
    name, lines = "", list[str]()
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            name, lines = "" if header["entry"] else header["name"], []
        elif line.startswith("}"):
            yield name, lines
        else:
            lines.append(line)


def _executions(computations: dict[str, list[str]]) -> dict[str, int]:
    """How often each computation runs in one step, those of `computations` being in an order of callees first."""
    times = dict.fromkeys(computations, 0)
    times[""] = 1
    for name in reversed(computations):
        for line in computations[name]:
            trips = _TRIPS.search(line) if " while(" in line else None
            for called in _CALLED.finditer(line):
                for callee in re.findall(r"[\w.-]+", called["names"]):
                    if callee in times:
                        times[callee] += times[name] * (int(trips["trips"]) if trips else 1)
    return times


# ---- groups of devices and mesh axes ----

Groups = tuple[tuple[int, ...], ...]


def _device_groups(rest: str, mesh: Mesh) -> Groups:
    """The groups of a collective, or the (source, target) pairs of a permute; all devices where none are named."""
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
    """`mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}`: the axes, or the parts of axes, to run along.

    `'b':(1)2` is the part of size 2 of axis b that has one such part before it. The devices of the mesh are in
    row-major order unless `device_ids` gives another one.
    """
    head, _, chosen = text.partition("]")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", head)}
    extents: list[int] = []
    moved: list[int] = []
    parts = {name: (int(before or 1), int(size or sizes[name])) for name, before, size in _SUB_AXIS.findall(chosen)}
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
    """The axes along which the groups run, in mesh order; `UNKNOWN_AXES` when they are no whole axes.

    Devices are numbered in row-major order of the mesh axes, whatever their global ids.
    """
    varying = _varying(groups, mesh)
    kept = [k for k, name in enumerate(mesh.axis_names) if name not in varying]
    ids = np.arange(mesh.size).reshape(mesh.shape)
    moved = [mesh.axis_names.index(name) for name in varying]
    expected = ids.transpose([*kept, *moved]).reshape(-1, prod(mesh.axis_size(name) for name in varying))
    same = {frozenset(row) for row in expected.tolist()} == {frozenset(group) for group in groups}
    return varying if same else UNKNOWN_AXES


def _axes_of_pairs(pairs: Groups, mesh: Mesh) -> tuple[str, ...]:
    """The axes whose coordinate changes for some device of a permute."""
    return _varying(pairs, mesh)


def _varying(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    coordinates = np.indices(mesh.shape).reshape(len(mesh.axes), -1)
    moved = [any(len(set(row[list(group)])) > 1 for group in groups) for row in coordinates]
    return tuple(name for name, varies in zip(mesh.axis_names, moved, strict=True) if varies)

"""Read the collectives out of XLA's HLO text: what a compiled module really exchanges, to hold
against a plan.

    %all-reduce.3 = (f32[32,32], f32[32]) all-reduce(%dot.1, %reduce.2), channel_id=1,
        replica_groups=[1,4]<=[4], …

is one all-reduce of two tensors that gives 4224 bytes, over all four devices. XLA merges
collectives, so tensors are what compares with a plan. Asynchronous pairs count once, at their
`-start`. What stands in the body of a loop counts once for each trip where XLA states the number of
trips, and once otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER
from shardopt.cost.traffic import Traffic, total
from shardopt.mesh.mesh import Mesh
from shardopt.xla_text.device_groups import axes_of_groups, axes_of_pairs, device_groups

_KINDS = {
    "all-gather": ALL_GATHER,
    "all-reduce": ALL_REDUCE,
    "all-to-all": ALL_TO_ALL,
    "collective-permute": PERMUTE,
    "reduce-scatter": REDUCE_SCATTER,
}
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.*?) "
    rf"(?P<kind>{'|'.join(_KINDS)})(?:-start)?\((?P<operands>.*?)\), (?P<rest>.*)$"
)
_ANY = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = .*? (?P<op>[a-z][a-z\d-]*)\((?P<operands>[^()]*)\)(?:, "
    r"index=(?P<index>\d+))?"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|true_computation|false_computation|branch_computations)="
    r"(?P<names>%?[\w.-]+|\{[^}]*\})"
)
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(?P<trips>\d+)')
_SHAPE = re.compile(r"(?P<type>[a-z]\w*)\[(?P<dims>[\d,]*)\]")
_SOURCE = re.compile(r'op_name="(?P<name>[^"]*)"')
_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0}


@dataclass(frozen=True)
class HloCollective:
    """One instruction: the bytes of each tensor it combines (as `Traffic` counts them) in one
    execution, the mesh axes it runs along, how often it runs, and which operation of the source it
    stands for."""

    name: str
    kind: str
    sizes: tuple[int, ...]
    axes: tuple[str, ...] = ()
    times: int = 1
    source: str = ""

    @property
    def traffic(self) -> Traffic:
        return Traffic(
            self.kind, self.axes, len(self.sizes) * self.times, sum(self.sizes) * self.times
        )


def parse_collectives(text: str, mesh: Mesh) -> tuple[HloCollective, ...]:
    """The collectives of all computations of a module compiled for `mesh`, in the order of the
    text.

    An all-reduce of nothing but an all-reduce along other axes is one all-reduce along both, as
    XLA's all-reduce folder writes it on some backends; here it is, on all of them."""
    computations = dict(_computations(text))
    times = _executions(computations)
    collectives: list[HloCollective] = []
    for name, lines in computations.items():
        parsed = [
            item for line in lines if (item := _parse(line, mesh, times.get(name, 1))) is not None
        ]
        collectives += _folded(parsed, lines, mesh)
    return tuple(collectives)


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
    groups = device_groups(match["rest"], mesh)
    if kind == REDUCE_SCATTER:
        results = [size * len(groups[0]) for size in results]
    if kind == ALL_TO_ALL:
        # The tuple form has one operand for each peer: together they are one tensor.
        results = [sum(results)]
    axes = axes_of_pairs(groups, mesh) if kind == PERMUTE else axes_of_groups(groups, mesh)
    source = _SOURCE.search(match["rest"])
    return HloCollective(
        name=match["name"],
        kind=kind,
        sizes=tuple(results),
        axes=axes,
        times=times,
        source=source["name"] if source else "",
    )


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
    """How often each computation runs in one step, those of `computations` being in an order of
    callees first."""
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


# ---- all-reduces of all-reduces ----

# Instructions that hand the values of their operand on.
_TRANSPARENT = frozenset({"bitcast", "copy", "get-tuple-element", "reshape", "transpose"})
Place = tuple[str, int]  # an instruction and which of its tensors


def _folded(parsed: list[HloCollective], lines: list[str], mesh: Mesh) -> list[HloCollective]:
    """All-reduces along different axes that follow one another as one; each tensor is looked at on
    its own."""
    reduces = {item.name: item for item in parsed if item.kind == ALL_REDUCE}
    if len({item.axes for item in reduces.values()}) < 2:
        return parsed
    axes = {(name, k): item.axes for name, item in reduces.items() for k in range(len(item.sizes))}
    gone: set[Place] = set()
    for place, before in _chains(reduces, lines).items():
        if not set(axes[place]) & set(axes[before]):
            axes[place] = tuple(
                axis for axis in mesh.axis_names if axis in axes[place] + axes[before]
            )
            gone.add(before)
    return [
        part
        for item in parsed
        for part in (_parts(item, axes, gone) if item.name in reduces else [item])
    ]


def _parts(
    item: HloCollective, axes: dict[Place, tuple[str, ...]], gone: set[Place]
) -> list[HloCollective]:
    """The tensors of a combined all-reduce that are left, by the axes that they have now."""
    kept = [k for k in range(len(item.sizes)) if (item.name, k) not in gone]
    return [
        replace(
            item,
            axes=chosen,
            sizes=tuple(item.sizes[k] for k in kept if axes[item.name, k] == chosen),
        )
        for chosen in dict.fromkeys(axes[item.name, k] for k in kept)
    ]


def _chains(reduces: dict[str, HloCollective], lines: list[str]) -> dict[Place, Place]:
    """For each tensor of an all-reduce whose operand is an all-reduced tensor that nothing else
    reads: that one."""
    matches = [match for line in lines if (match := _ANY.match(line))]
    operands = {match["name"]: re.findall(r"%([\w.-]+)", match["operands"]) for match in matches}
    kinds = {match["name"]: match["op"] for match in matches}
    index = {match["name"]: int(match["index"] or 0) for match in matches}
    readers = Counter(operand for each in operands.values() for operand in each)
    chained: dict[Place, Place] = {}
    for name in (name for name in operands if name in reduces):
        for k, value in enumerate(operands[name]):
            tensor = 0
            # A tuple is read once for each of its tensors.
            while kinds.get(value) in _TRANSPARENT and readers[value] == 1:
                tensor = index[value] if kinds[value] == "get-tuple-element" else tensor
                value = operands[value][0]
            if value in reduces and (len(reduces[value].sizes) > 1 or readers[value] == 1):
                chained[name, k] = (value, tensor)
    return chained

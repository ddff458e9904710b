"""Read the collectives out of XLA's HLO text: what a compiled module really exchanges, to hold against a plan.

    %all-reduce.3 = (f32[32,32]{1,0}, f32[32]{0}) all-reduce(%dot.1, %reduce.2), channel_id=1, …

is one all-reduce of two tensors that gives 4224 bytes. XLA merges collectives, so tensors are what compares with a
plan. Asynchronous pairs count once, at their `-start`. A collective inside a loop body counts once.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER

_KINDS = {
    "all-gather": ALL_GATHER,
    "all-reduce": ALL_REDUCE,
    "all-to-all": ALL_TO_ALL,
    "collective-permute": PERMUTE,
    "reduce-scatter": REDUCE_SCATTER,
}
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.*?) "
    rf"(?P<kind>{'|'.join(_KINDS)})(?:-start)?\((?P<operands>.*?)\), "
)
_SHAPE = re.compile(r"(?P<type>[a-z]\w*)\[(?P<dims>[\d,]*)\]")
_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0}


@dataclass(frozen=True)
class HloCollective:
    """One instruction: how many tensors it combines, and the bytes of its results on one device."""

    name: str
    kind: str
    tensors: int
    result_bytes: int


def parse_collectives(text: str) -> tuple[HloCollective, ...]:
    """The collectives of all computations of a module, in the order of the text."""
    found = []
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            operands = match["operands"].count("%")
            # The result of a `-start` is a tuple of operands, results and, on some backends, contexts.
            shapes = [_bytes(shape["type"], shape["dims"]) for shape in _SHAPE.finditer(match["result"])]
            results = shapes[operands : 2 * operands] if len(shapes) >= 2 * operands else shapes
            kind = _KINDS[match["kind"]]
            # The tuple form of an all-to-all has one operand for each peer: together they are one tensor.
            tensors = 1 if kind == ALL_TO_ALL else operands
            found.append(HloCollective(match["name"], kind, tensors, sum(results)))
    return tuple(found)


def count_tensors(collectives: tuple[HloCollective, ...]) -> dict[str, int]:
    """Number of tensors exchanged by each kind, sorted by kind."""
    counts: Counter[str] = Counter()
    for collective in collectives:
        counts[collective.kind] += collective.tensors
    return dict(sorted(counts.items()))


def _bytes(element: str, dims: str) -> int:
    bits = _BITS.get(element)
    if bits is None:
        digits = re.search(r"\d+", element)
        bits = max(8, int(digits[0])) if digits else 8
    return bits // 8 * prod(int(extent) for extent in dims.split(",") if extent)

"""What is the same about two graphs whose tensors have other numbers: their structure, as a hash that lasts.

Two parts of graphs with equal digests have the same operations on tensors of the same types in the same order, joined
in the same way: a solution of one, with its tensors renamed, is a solution of the other. The digest is the same in
every process, so that it can be part of a key on disk.

    one, other = structure_of(graph), structure_of(another)
    if one.digest == other.digest:
        renaming = dict(zip(one.tensors, other.tensors))
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from shardopt.cost.graph import Op, OpGraph


@dataclass(frozen=True)
class Structure:
    """`tensors[n]` is the tensor with canonical number n: numbers follow the first occurrence in the operations, then
    in the inputs and outputs of the graph. `ops` are the operations in their order."""

    digest: bytes
    tensors: tuple[int, ...]
    ops: tuple[int, ...]

    @cached_property
    def number(self) -> Mapping[int, int]:
        """tensor -> canonical number."""
        return {tensor: number for number, tensor in enumerate(self.tensors)}

    @cached_property
    def position(self) -> Mapping[int, int]:
        """operation -> its position."""
        return {op: position for position, op in enumerate(self.ops)}


def structure_of(graph: OpGraph, ops: Iterable[int] | None = None) -> Structure:
    """The structure of the operations `ops`, by default of the whole graph with its inputs and outputs.

    Groups and blocks count as which operations share one, not by their numbers.
    """
    chosen = tuple(range(len(graph.ops))) if ops is None else tuple(sorted(ops))
    numbers: dict[int, int] = {}
    kinds, groups, blocks = _Numbers(), _Numbers(), _Numbers()
    rules: dict[int, str] = {}
    rows: list[str] = []
    for index in chosen:
        op = graph.ops[index]
        kind = kinds.of(_kind(op, rules))
        operands = [numbers.setdefault(tensor, len(numbers)) for tensor in op.operands]
        results = [numbers.setdefault(tensor, len(numbers)) for tensor in op.results]
        rows.append(f"{kind} {operands}{results}{groups.of(op.group)} {blocks.of((op.group, op.block))}")
    ends: list[list[int]] = []
    if ops is None:
        ends = [[numbers.setdefault(t, len(numbers)) for t in end] for end in (graph.inputs, graph.outputs)]
    tensors = tuple(numbers)
    position = {op: place for place, op in enumerate(chosen)}
    loops = [[position.get(op, -1) for op in range(start, stop)] for start, stop in graph.loops]
    spans = sorted((min(kept), max(kept)) for loop in loops if (kept := [place for place in loop if place >= 0]))
    carried = sorted(numbers[tensor] for tensor in graph.carried if tensor in numbers)
    digest = sha256()
    for part in (*kinds.seen, *rows, *(_type(graph, tensor) for tensor in tensors), *map(sorted, ends), spans, carried):
        digest.update(f"{part}\n".encode())
    return Structure(digest.digest(), tensors, chosen)


class _Numbers:
    """Numbers of values by their first occurrence."""

    def __init__(self) -> None:
        self.seen: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self.seen.setdefault(value, len(self.seen))


def _kind(op: Op, rules: dict[int, str]) -> tuple[Hashable, ...]:
    """What an operation is, without what it works on. Few rules stand in a graph, each in many operations."""
    rule = rules.get(id(op.rule))
    if rule is None:
        rule = rules[id(op.rule)] = _rule(op)
    windows = str(op.windows) if op.windows else ""
    return op.name, rule, op.reducer, op.flops, op.transcendentals, op.repeat, op.trips, op.zero, windows


def _rule(op: Op) -> str:
    rule = op.rule
    if rule is None:
        return ""
    sets = (rule.reduction, rule.need_replication, rule.permutation, rule.blocked)
    return f"{rule.sizes}{rule.operands}{rule.results}{[sorted(factors) for factors in sets]}"


def _type(graph: OpGraph, tensor: int) -> str:
    found = graph.tensors[tensor]
    return f"{found.shape}{found.dtype}"

"""What is the same about two graphs whose tensors have other numbers: their structure, as a hash
that lasts.

Two parts of graphs with equal digests have the same operations on tensors of the same types, joined
in the same way: a solution of one, with its tensors and operations renamed, is a solution of the
other. The digest is the same in every process, so that it can be part of a key on disk.

    one, other = structure_of(graph), structure_of(another)
    if one.digest == other.digest:
        renaming = dict(zip(one.tensors, other.tensors)), dict(zip(one.ops, other.ops))
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from operator import attrgetter

from shardopt.graph.op_graph import Op, OpGraph, Tensor

_ELSEWHERE = ("operands", "results", "rule", "group", "block", "waits")
# Whatever else is known about an operation is part of its kind.
_OF_KIND = attrgetter(*(f.name for f in fields(Op) if f.name not in _ELSEWHERE))


@dataclass(frozen=True)
class Structure:
    """`tensors[n]` and `ops[n]` are the tensor and the operation with canonical number n."""

    digest: bytes
    tensors: tuple[int, ...]
    ops: tuple[int, ...]

    @cached_property
    def number(self) -> Mapping[int, int]:
        """tensor -> canonical number."""
        return {tensor: number for number, tensor in enumerate(self.tensors)}

    @cached_property
    def position(self) -> Mapping[int, int]:
        """operation -> canonical number."""
        return {op: position for position, op in enumerate(self.ops)}


def structure_of(graph: OpGraph, ops: Iterable[int] | None = None) -> Structure:
    """The structure of the operations `ops`, by default of the whole graph with its inputs and
    outputs.

    Groups and blocks count as which operations share one, not by their numbers. Within a group,
    operations are taken in the order in which they follow from each other, whatever the order of
    the program: a model sorts the updates of its weights by their names, and `layer_10` comes
    before `layer_9`."""
    chosen = range(len(graph.ops)) if ops is None else sorted(ops)
    order = _canonical(graph, chosen)
    numbers: dict[int, int] = {}
    kinds, groups, blocks = _Numbers(), _Numbers(), _Numbers()
    rules: dict[int, str] = {}
    rows: list[str] = []
    for index in order:
        op = graph.ops[index]
        kind = kinds.of(_kind(op, rules))
        operands = [numbers.setdefault(tensor, len(numbers)) for tensor in op.operands]
        results = [numbers.setdefault(tensor, len(numbers)) for tensor in op.results]
        waits = [numbers[tensor] for tensor in op.waits if tensor in numbers]
        rows.append(
            f"{kind} {operands}{results}{groups.of(op.group)} {blocks.of((op.group, op.block))}"
            + f" {waits}" * bool(waits)
        )
    ends: list[list[int]] = []
    if ops is None:
        ends = [
            [numbers.setdefault(t, len(numbers)) for t in end]
            for end in (graph.inputs, graph.outputs)
        ]
    tensors = tuple(numbers)
    position = {op: place for place, op in enumerate(order)}
    loops = [
        [position[op] for op in range(start, stop) if op in position] for start, stop in graph.loops
    ]
    spans = sorted((min(places), max(places)) for places in loops if places)
    carried = sorted(numbers[tensor] for tensor in graph.carried if tensor in numbers)
    types = dict[Tensor, str]()
    parts = (
        *kinds.seen,
        *rows,
        *(_type(graph.tensors[tensor], types) for tensor in tensors),
        *map(sorted, ends),
        spans,
        carried,
    )
    text = "".join([f"{part}\n" for part in parts])
    return Structure(sha256(text.encode()).digest(), tensors, order)


def _canonical(graph: OpGraph, chosen: Sequence[int]) -> tuple[int, ...]:
    """The operations sorted by group, and in the group with the most FLOPs as they stand there.

    That is the forward or backward of the part, which the model writes layer by layer. From its
    tensors, in their order, follow the others: whoever reads one comes next, behind what makes its
    other operands."""
    if graph.loops:  # the operations of a loop have to stay together
        return tuple(chosen)
    inside = set(chosen)
    work: dict[int, float] = {}
    for index in chosen:
        op = graph.ops[index]
        work[op.group] = work.get(op.group, 0.0) + op.flops * op.repeat
    leading = max(work, key=lambda group: (work[group], -group), default=0)
    walk = _Walk(graph, inside)
    for index in chosen:
        if graph.ops[index].group == leading:
            walk.visit(index)
    walk.follow()
    for index in chosen:  # what does not touch the others at all
        if index not in walk.order:
            walk.visit(index)
            walk.follow()
    rank = {index: number for number, index in enumerate(walk.order)}
    first: dict[int, int] = {}
    for index in chosen:
        first.setdefault(graph.ops[index].group, index)
    return tuple(sorted(chosen, key=lambda index: (first[graph.ops[index].group], rank[index])))


class _Walk:
    """Operations in the order in which they follow from each other."""

    def __init__(self, graph: OpGraph, inside: set[int]) -> None:
        self.graph = graph
        self.producer = {t: k for k in inside for t in graph.ops[k].results}
        self.readers: dict[int, list[int]] = {}
        for index in sorted(inside):
            for tensor in dict.fromkeys(graph.ops[index].operands):
                self.readers.setdefault(tensor, []).append(index)
        self.order: dict[int, None] = {}
        self.tensors: dict[int, None] = {}
        self.followed = 0

    def visit(self, index: int) -> None:
        """`index`, behind the operations that it needs."""
        stack = [index]
        while stack:
            top = stack[-1]
            op = self.graph.ops[top]
            needed = (self.producer.get(tensor, -1) for tensor in op.operands)
            missing = (
                [] if top in self.order else [k for k in needed if k >= 0 and k not in self.order]
            )
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if top not in self.order:
                self.order[top] = None
                self.tensors.update(dict.fromkeys((*op.operands, *op.results)))

    def follow(self) -> None:
        """Everything that reads what has been visited, and so on."""
        while self.followed < len(self.tensors):
            for tensor in list(self.tensors)[self.followed :]:
                for reader in self.readers.get(tensor, ()):
                    if reader not in self.order:
                        self.visit(reader)
                self.followed += 1


class _Numbers:
    """Numbers of values by their first occurrence."""

    def __init__(self) -> None:
        self.seen: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self.seen.setdefault(value, len(self.seen))


def _kind(op: Op, rules: dict[int, str]) -> tuple[Hashable, ...]:
    """What an operation is, without what it works on. Few rules stand in a graph, each in many
    operations."""
    rule = rules.get(id(op.rule))
    if rule is None:
        rule = rules[id(op.rule)] = _rule(op)
    return rule, *_OF_KIND(op)


def _rule(op: Op) -> str:
    rule = op.rule
    if rule is None:
        return ""
    sets = (rule.reduction, rule.need_replication, rule.permutation, rule.blocked)
    return f"{rule.sizes}{rule.operands}{rule.results}{[sorted(factors) for factors in sets]}"


def _type(tensor: Tensor, types: dict[Tensor, str]) -> str:
    """Few types stand in a graph, each of many tensors."""
    text = types.get(tensor)
    if text is None:
        text = types[tensor] = f"{tensor.shape}{tensor.dtype}"
    return text

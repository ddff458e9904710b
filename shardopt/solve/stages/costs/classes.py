"""The operations of a stage by classes of those that look alike, and the small problem in which a
class decides once.

Layers repeat within a stage. Colour refinement (`shardopt.solve.assignment.search.symmetry`) of the
graph itself, before any strategy is derived, finds operations that are alike up to a distance. One
of each class stands for all: its strategies cost as often as the class has members, and an edge
between two classes as often as members are joined. The work for one mesh then depends on the size
of a layer, not on the number of layers, and everything else is done once for all meshes. A small
stage has classes of one member each, so that its problem is the full one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardopt.graph.op_graph import FactorRule, OpGraph, Tensor
from shardopt.solve.assignment.search.symmetry import mixed, numbered
from shardopt.solve.sharding.kernels.kernel_bytes import Accesses
from shardopt.solve.sharding.strategies.linear import Linear
from shardopt.solve.sharding.strategies.tables import Demand, demand_of
from shardopt.solve.stages.costs.stage_part import StagePart

_U64 = np.uint64

# Classes of a stage at most, unless its operations have more kinds: presolve takes 80 microseconds
# for each, on each mesh. A block of a transformer with its backward pass and its update has 300 to
# 700.
MOST_CLASSES = 500


@dataclass(frozen=True, eq=False)
class PartView:
    """What is taken for granted about a part: for each operation which values may be unreduced, and
    in how many kernels it touches each of its tensors; `free` tensors, which every reader gets in
    the sharding that it wants; `unpaid` nodes, which cost nothing; and `fused` tensors, which are
    written and read only where they are exchanged."""

    linear: tuple[Linear, ...]
    accesses: tuple[Accesses, ...]
    free: Set[int]
    unpaid: Set[int] = frozenset()
    fused: Set[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Reads:
    """What operations read, an entry for each operand that is resharded for its reader: int64 `[n]`
    each.

    Node `target[k]` reads, as its operand `operand[k]`, result `result[k]` of node `source[k]` (0
    for an input). `times[k]` counts the reshardings in a step. Reads of equal `copies[k]` may share
    them."""

    source: np.ndarray
    result: np.ndarray
    target: np.ndarray
    operand: np.ndarray
    times: np.ndarray
    copies: np.ndarray


class Copies(NamedTuple):
    """Result `source[1]` of class `source[0]`, which is a `value`, comes to (class, operand)
    `readers`, so often in a step."""

    source: tuple[int, int]
    readers: tuple[tuple[int, int], ...]
    times: int
    value: Tensor
    fused: bool


@dataclass(frozen=True, eq=False)
class Classes:
    """Node n of a part is operation n, or input n - (number of operations); `of_node[n]` is its
    class.

    `members[c]` is the first node of class c, `sizes[c]` how many there are. `inputs` are the
    tensors of input nodes."""

    part: StagePart
    view: PartView
    inputs: tuple[int, ...]
    of_node: np.ndarray
    reads: Reads

    @cached_property
    def members(self) -> np.ndarray:
        return np.unique(self.of_node, return_index=True)[1]

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.of_node)

    @cached_property
    def joined(self) -> np.ndarray:
        """The distinct (source class, result, target class, operand, times) of reads, a row each,
        and in a last column how many reads are like that: int64 `[m, 6]`."""
        reads = self.reads
        columns = (
            self.of_node[reads.source],
            reads.result,
            self.of_node[reads.target],
            reads.operand,
            reads.times,
        )
        rows, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        return np.concatenate([rows, counts[:, None]], axis=1)

    @cached_property
    def demands(self) -> Mapping[int, Demand]:
        """What every class of operations asks for on any mesh."""
        graph, view = self.part.graph, self.view
        return {
            c: demand_of(graph.ops[node], graph.tensors, view.linear[node], view.accesses[node])
            for c, node in enumerate(self.members.tolist())
            if node < len(graph.ops)
        }

    @cached_property
    def copies(self) -> Mapping[Copies, int]:
        """Who shares copies of what, and how many that do are alike."""
        reads, of_node = self.reads, self.of_node
        columns = of_node[reads.source], reads.result, of_node[reads.target], reads.operand
        rows = np.stack([reads.copies, *columns, reads.times, reads.target], axis=1)
        sharing: dict[int, list[tuple[int, ...]]] = {}
        for copy, *row in rows.tolist():
            sharing.setdefault(copy, []).append(tuple(row))
        counts, graph = Counter[Copies](), self.part.graph
        for some in sharing.values():
            source, k, _, operand, times, node = some[0]
            readers = tuple(dict.fromkeys([(row[2], row[3]) for row in some]))
            tensor = graph.ops[node].operands[operand]
            value, fused = graph.tensors[tensor], tensor in self.view.fused
            counts[Copies((source, k), readers, times, value, fused)] += 1
        return counts

    @cached_property
    def further_uses(self) -> tuple[tuple[int, int, int], ...]:
        """(class, operand, operand) of operations that read a value more than once: the latter is
        the first that they read it as."""
        ops = self.part.graph.ops
        operands = (
            (c, ops[node].operands)
            for c, node in enumerate(self.members.tolist())
            if node < len(ops)
        )
        return tuple(
            (c, position, tensors.index(tensor))
            for c, tensors in operands
            if len(set(tensors)) < len(tensors)
            for position, tensor in enumerate(tensors)
            if tensors.index(tensor) < position
        )

    @cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """For each tensor the node that decides about it, and which of its results it is."""
        return places(self.part.graph, self.inputs)

    @cached_property
    def equal(self) -> tuple[tuple[int, int, int, int], ...]:
        """Distinct (class, result, class, result) whose shardings are tied."""
        place = self.place
        pairs = ((place[a], place[b]) for a, b in self.part.tied if a in place and b in place)
        ties = {
            (int(self.of_node[m]), i, int(self.of_node[n]), j): None for (m, i), (n, j) in pairs
        }
        return tuple(ties)


def places(graph: OpGraph, inputs: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For each tensor the node that decides about it, and which of its results it is."""
    place = {
        tensor: (node, k)
        for node, op in enumerate(graph.ops)
        for k, tensor in enumerate(op.results)
    }
    place.update((tensor, (len(graph.ops) + number, 0)) for number, tensor in enumerate(inputs))
    return place


def find_classes(
    part: StagePart, view: PartView | None = None, most: int = MOST_CLASSES
) -> Classes:
    """The classes of a part, at most `most`, as far as operations of different kinds allow."""
    singles = single_classes(part, view)
    return merged_classes(singles, node_kinds(part, singles.view, singles.inputs), most)


def merged_classes(singles: Classes, kinds: np.ndarray, most: int = MOST_CLASSES) -> Classes:
    """The same of a part with each node as a class of its own, and the kinds of its nodes."""
    ties = _ties(singles.part, places(singles.part.graph, singles.inputs))
    return replace(singles, of_node=_refine(kinds, singles.reads, ties, most))


def single_classes(part: StagePart, view: PartView | None = None) -> Classes:
    """Each node as a class of its own."""
    if view is None:
        view = PartView(
            part.linear, part.kernels.accesses, part.free, fused=part.kernels.fusion.fused
        )
    graph = part.graph
    read = dict.fromkeys(tensor for op in graph.ops for tensor in op.operands)
    from_outside = set(graph.inputs)
    inputs = tuple(t for t in dict.fromkeys((*graph.inputs, *read)) if t in from_outside)
    reads = _reads(graph, places(graph, inputs), view)
    return Classes(part, view, inputs, np.arange(len(graph.ops) + len(inputs)), reads)


def _reads(graph: OpGraph, place: dict[int, tuple[int, int]], view: PartView) -> Reads:
    producers, rows = graph.producers(), []
    copies: dict[tuple[int, tuple[int, int], int], int] = {}
    for node, op in enumerate(graph.ops):
        for position, tensor in enumerate(op.operands):
            if tensor not in view.free:
                times = op.repeat
                if op.trips != 1:
                    trips = graph.trips_of(node, tensor, producers[tensor])
                    times = op.repeat // (op.trips or 1) * trips
                copy = copies.setdefault((tensor, op.scope, times), len(copies))
                rows.append((*place[tensor], node, position, times, copy))
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return Reads(*(np.ascontiguousarray(column) for column in table.T))


def _ties(part: StagePart, place: dict[int, tuple[int, int]]) -> np.ndarray:
    rows = [(*place[a], *place[b]) for a, b in part.tied if a in place and b in place]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def node_kinds(part: StagePart, view: PartView, inputs: Sequence[int]) -> np.ndarray:
    """Equal numbers for nodes that have equal strategies and stand in one fragment."""
    graph, number = part.graph, dict[object, int]()
    rules: dict[FactorRule | None, int] = {}
    of_rule = {
        id(op.rule): rules.setdefault(op.rule, len(rules))
        for op in {id(op.rule): op for op in graph.ops}.values()
    }
    types = dict[Tensor, int]()
    of_tensor = [types.setdefault(tensor, len(types)) for tensor in graph.tensors]
    kinds = []
    for node, (op, *each) in enumerate(zip(graph.ops, view.linear, view.accesses, strict=True)):
        # x * x and x * y have different strategies: an operand used twice is resharded once.
        first_uses = tuple(map(op.operands.index, op.operands))
        tensors = tuple([of_tensor[tensor] for tensor in (*op.operands, *op.results)])
        plain = (
            op.name,
            of_rule[id(op.rule)],
            op.reducer,
            op.flops,
            op.transcendentals,
            op.repeat,
            op.trips,
            op.zero,
            op.windows,
            op.island,
            op.attention,
        )
        key = (plain, op.group, first_uses, *each, tensors, node in view.unpaid)
        kinds.append(number.setdefault(key, len(number)))
    for node, tensor in enumerate(inputs, start=len(graph.ops)):
        key = (of_tensor[tensor], tensor in part.arrivals, node in view.unpaid)
        kinds.append(number.setdefault(key, len(number)))
    return np.array(kinds, dtype=np.int64)


def _refine(kinds: np.ndarray, reads: Reads, ties: np.ndarray, most: int) -> np.ndarray:
    """The classes after as many rounds as keep at most `most` of them, at least one: int64
    `[nodes]`."""
    # Which result is read as which operand must tell edges apart, and in which direction they are
    # followed: two operations that swap operands are not alike.
    label = reads.result * 64 + reads.operand
    out, into = mixed(label.astype(_U64)), mixed(label.astype(_U64) ^ _U64(0x5555555555555555))
    tie_out, tie_into = (
        mixed((ties[:, k] + shift).astype(_U64)) for k, shift in ((1, 1 << 20), (3, 1 << 21))
    )
    colours, rounds = numbered(mixed(kinds.astype(_U64))), 0
    while True:
        mixed_colours = mixed(colours.astype(_U64))
        around = np.zeros(len(mixed_colours), dtype=_U64)
        np.add.at(around, reads.source, mixed(out ^ mixed_colours[reads.target]))
        np.add.at(around, reads.target, mixed(into ^ mixed_colours[reads.source]))
        np.add.at(around, ties[:, 0], mixed(tie_out ^ mixed_colours[ties[:, 2]]))
        np.add.at(around, ties[:, 2], mixed(tie_into ^ mixed_colours[ties[:, 0]]))
        finer = numbered(mixed(mixed_colours) + around)
        # Numbers of colours never fall from round to round, so equal maxima mean that nothing was
        # split.
        if finer.max(initial=-1) == colours.max(initial=-1) or (
            rounds and finer.max(initial=-1) >= most
        ):
            return colours
        colours, rounds = finer, rounds + 1

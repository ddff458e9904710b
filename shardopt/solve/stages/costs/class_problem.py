"""The sharding problem of a stage's classes on one mesh.

Costs of nodes and edges are those of `shardopt.solve.sharding.intra_op.problem`, times the number
of members. A solution gives every operation the strategy of its class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardopt.graph.op_graph import Tensor
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution
from shardopt.solve.assignment.sharing.arcs import SharedEdges
from shardopt.solve.assignment.sharing.price_splitting import solve_briefly
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.solve.sharding.strategies.tables import OpStrategies, StrategyTables
from shardopt.solve.stages.costs.classes import Classes

# Table entries that the solver may touch for one problem, about a fifth of a second; half of it is
# spent when layers are as large as those of a transformer on a mesh of two axes.
WORK = 100_000_000


class _Copies(NamedTuple):
    """Result `source[1]` of class `source[0]`, which is a `value`, comes to (class, operand)
    `readers`, so often in a step."""

    source: tuple[int, int]
    readers: tuple[tuple[int, int], ...]
    times: int
    value: Tensor
    fused: bool


@dataclass(frozen=True, eq=False)
class ClassProblem:
    classes: Classes
    tables: StrategyTables

    @cached_property
    def ops(self) -> dict[int, OpStrategies]:
        """The strategies of every class of operations."""
        classes, graph = self.classes, self.classes.part.graph
        return {
            c: self.tables.of(
                graph.ops[node],
                graph.tensors,
                classes.view.linear[node],
                classes.view.accesses[node],
            )
            for c, node in enumerate(classes.members.tolist())
            if node < len(graph.ops)
        }

    @cached_property
    def columns(self) -> dict[int, Column]:
        """The shardings of every class of inputs."""
        graph, inputs = self.classes.part.graph, self.classes.inputs
        return {
            c: self.tables.choices(graph.tensors[inputs[node - len(graph.ops)]].shape)
            for c, node in enumerate(self.classes.members.tolist())
            if node >= len(graph.ops)
        }

    def result(self, c: int, k: int) -> Column:
        return self.ops[c].results[k] if c in self.ops else self.columns[c]

    def sharing(self, held: Iterable[tuple[int, int]] = (), byte_seconds: float = 0.0) -> Sharing:
        """The problem in which operations of a fragment share what brings them a value, with
        `byte_seconds` more for every byte that a device holds of `held`: tensors, and how many
        times."""
        edges, groups = self._ties(), list[SharedEdges]()
        for copies, count in self._copies.items():
            (source, k), readers = copies.source, copies.readers
            # A class that stands for a chain reads what it makes: it cannot share as others do, and
            # pays for an equal part, so that all together pay no more than all there is.
            columns = [self.ops[node].operands[position] for node, position in readers]
            made, times = self.result(source, k), copies.times * count
            others = [each for each, (node, _) in enumerate(readers) if node != source]
            for (node, _), column in zip(readers, columns, strict=True):
                if node == source:
                    table = self.tables.resharding(copies.value, made, column, times, copies.fused)
                    if table is not None:
                        edges.append(Edge(source, source, table / len(readers)))
            if not others:
                continue
            sources, targets = (made,) * len(others), tuple(columns[each] for each in others)
            arcs = self.tables.shared_reshardings(
                copies.value, sources, targets, times, copies.fused
            )
            if len(others) < len(readers):
                arcs = arcs.of_readers(range(len(others)), len(others) / len(readers))
            ends = (source,) * len(others), tuple(readers[each][0] for each in others)
            numbers = tuple(range(len(edges), len(edges) + len(others)))
            groups.append(SharedEdges(arcs, *ends, numbers))
            edges += map(Edge, *ends, arcs.tables(arcs.usable.astype(float)))
        return Sharing(Problem(self._costs_of(held, byte_seconds), tuple(edges)), tuple(groups))

    @cached_property
    def _costs(self) -> tuple[np.ndarray, ...]:
        """What nodes cost, all of each class."""
        graph, sizes = self.classes.part.graph, self.classes.sizes
        costs = []
        for c, node in enumerate(self.classes.members.tolist()):
            if c in self.ops:
                seconds, columns = self.ops[c].seconds, self.ops[c].results
                numbers: Sequence[int] = graph.ops[node].results
            else:
                numbers, columns = (self.classes.inputs[node - len(graph.ops)],), (self.columns[c],)
                seconds = self.tables.input_seconds(graph.tensors[numbers[0]], columns[0])
            for number, column in zip(numbers, columns, strict=True):
                if number in self.classes.part.on_host:
                    times = self.classes.part.moves_of[number]
                    moved = self.tables.host_seconds(graph.tensors[number], column)
                    seconds = seconds + times * moved
            costs.append(seconds * (0.0 if node in self.classes.view.unpaid else sizes[c]))
        return tuple(costs)

    def _is_second(self, c: int, position: int) -> bool:
        """Whether the operations of a class read an operand twice in the same way (x * x): it is
        resharded once."""
        tensors = self.classes.part.graph.ops[int(self.classes.members[c])].operands
        first, columns = tensors.index(tensors[position]), self.ops[c].operands
        return first < position and columns[first] is columns[position]

    @property
    def _copies(self) -> Counter[_Copies]:
        """Who shares copies of what, and how many that do are alike."""
        reads, of_node = self.classes.reads, self.classes.of_node
        columns = of_node[reads.source], reads.result, of_node[reads.target], reads.operand
        rows = np.stack([reads.copies, *columns, reads.times, reads.target], axis=1)
        sharing: dict[int, list[tuple[int, ...]]] = {}
        for copy, *row in rows.tolist():
            sharing.setdefault(copy, []).append(tuple(row))
        counts, graph = Counter[_Copies](), self.classes.part.graph
        for some in sharing.values():
            source, k, _, operand, times, node = some[0]
            readers = dict.fromkeys(
                (target, position)
                for _, _, target, position, _, _ in some
                if not self._is_second(target, position)
            )
            tensor = graph.ops[node].operands[operand]
            what = graph.tensors[tensor], tensor in self.classes.view.fused
            counts[_Copies((source, k), tuple(readers), times, *what)] += 1
        return counts

    def _ties(self) -> list[Edge]:
        tables = (
            (a, b, self.tables.equality(self.result(a, i), self.result(b, j)))
            for a, i, b, j in self.classes.equal
        )
        return [Edge(a, b, table) for a, b, table in tables if table.any()]

    def _costs_of(
        self, held: Iterable[tuple[int, int]], byte_seconds: float
    ) -> tuple[np.ndarray, ...]:
        costs, tensors = list(self._costs), self.classes.part.graph.tensors
        for tensor, count in held if byte_seconds else ():
            node, k = self.classes.place[tensor]
            c = int(self.classes.of_node[node])
            size = self.tables.local_bytes(tensors[tensor], self.result(c, k))
            costs[c] = costs[c] + byte_seconds * count * size
        return tuple(costs)

    def solve(
        self,
        gap_tolerance: float,
        start: Sequence[int] | None = None,
        held: Iterable[tuple[int, int]] = (),
        byte_seconds: float = 0.0,
    ) -> Solution:
        """An assignment of `sharing`. The first strategy of every class, which runs it in full
        everywhere, is as good a beginning as any."""
        sharing = self.sharing(held, byte_seconds)
        return solve_briefly(
            sharing,
            SearchLimits(gap_tolerance=gap_tolerance, work=WORK),
            start or (0,) * sharing.problem.num_nodes,
            self.tables.store,
        )

    def spread(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice of every operation, then of every input."""
        return tuple(np.array(choice, dtype=np.int64)[self.classes.of_node].tolist())

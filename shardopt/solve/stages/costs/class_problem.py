"""The sharding problem of a stage's classes on one mesh.

Costs of nodes and edges are those of `shardopt.solve.sharding.intra_op.problem`, times the number
of members. A solution gives every operation the strategy of its class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution
from shardopt.solve.assignment.sharing.arcs import SharedEdges
from shardopt.solve.assignment.sharing.price_splitting import solve_briefly
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.solve.sharding.strategies.tables import OpStrategies, StrategyTables
from shardopt.solve.stages.costs.classes import Classes, Copies

# Table entries that the solver may touch for one problem: a second or two. Few need more than a
# tenth of it. One that ends early is searched in dearer ways: with a quarter of this, an
# encoder-decoder with Adafactor on a mesh of two axes took 2.1 for 1.2 seconds, and was 7 % from
# its optimum.
WORK = 400_000_000


@dataclass(frozen=True, eq=False)
class ClassProblem:
    classes: Classes
    tables: StrategyTables

    @cached_property
    def ops(self) -> dict[int, OpStrategies]:
        """The strategies of every class of operations."""
        return {c: self.tables.meeting(demand) for c, demand in self.classes.demands.items()}

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
        for copies, count in self._copies().items():
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

    def _copies(self) -> Mapping[Copies, int]:
        """Who shares copies of what, and how many that do are alike. What operations read twice in
        the same way (x * x) is resharded once."""
        again = {
            (c, position)
            for c, position, first in self.classes.further_uses
            if self.ops[c].operands[position] is self.ops[c].operands[first]
        }
        if not again:
            return self.classes.copies
        counts = Counter[Copies]()
        for copies, count in self.classes.copies.items():
            readers = tuple([each for each in copies.readers if each not in again])
            counts[copies._replace(readers=readers)] += count
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

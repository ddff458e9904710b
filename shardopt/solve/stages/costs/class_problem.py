"""The sharding problem of a stage's classes on one mesh.

Costs of nodes and edges are those of `shardopt.solve.sharding.intra_op.problem`, times the number
of members. A solution gives every operation the strategy of its class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.solve.sharding.strategies.tables import OpStrategies, StrategyTables
from shardopt.solve.stages.costs.classes import Classes

# Table entries that the solver may touch for one problem, about a fifth of a second; half of it is
# spent when layers are as large as those of a transformer on a mesh of two axes.
WORK = 100_000_000


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

    @cached_property
    def problem(self) -> Problem:
        graph, sizes = self.classes.part.graph, self.classes.sizes
        costs = []
        for c, node in enumerate(self.classes.members.tolist()):
            if c in self.ops:
                seconds = self.ops[c].seconds
            else:
                number = self.classes.inputs[node - len(graph.ops)]
                tensor = graph.tensors[number]
                seconds = self.tables.input_seconds(tensor, self.columns[c])
                if number in self.classes.part.on_host:
                    times = self.classes.part.moves_of[number]
                    seconds = seconds + times * self.tables.host_seconds(tensor, self.columns[c])
            costs.append(seconds * (0.0 if node in self.classes.view.unpaid else sizes[c]))
        return Problem(tuple(costs), (*self._edges, *self._ties()))

    @cached_property
    def _edges(self) -> list[Edge]:
        """What reads cost."""
        graph, classes = self.classes.part.graph, self.classes
        edges = []
        for source, k, target, position, times, readers, count in classes.joined.tolist():
            op = graph.ops[int(classes.members[target])]
            operand = self.ops[target].operands[position]
            first = op.operands.index(op.operands[position])
            if first < position and self.ops[target].operands[first] is operand:
                continue  # an operand used twice in the same way (x * x) is resharded once
            tensor = graph.tensors[op.operands[position]]
            fused = op.operands[position] in classes.view.fused
            table = self.tables.resharding(tensor, self.result(source, k), operand, times, fused)
            if table is not None:
                edges.append(Edge(source, target, table * (count / readers)))
        return edges

    def _ties(self) -> list[Edge]:
        tables = (
            (a, b, self.tables.equality(self.result(a, i), self.result(b, j)))
            for a, i, b, j in self.classes.equal
        )
        return [Edge(a, b, table) for a, b, table in tables if table.any()]

    def with_memory(self, held: Iterable[tuple[int, int]], byte_seconds: float) -> Problem:
        """The problem with `byte_seconds` more for every byte that a device holds of `held`:
        tensors, and how many times."""
        costs, tensors = list(self.problem.costs), self.classes.part.graph.tensors
        for tensor, count in held:
            node, k = self.classes.place[tensor]
            c = int(self.classes.of_node[node])
            size = self.tables.local_bytes(tensors[tensor], self.result(c, k))
            costs[c] = costs[c] + byte_seconds * count * size
        return Problem(tuple(costs), self.problem.edges)

    def solve(
        self,
        gap_tolerance: float,
        only_bound: bool = False,
        held: Iterable[tuple[int, int]] = (),
        byte_seconds: float = 0.0,
    ) -> Solution:
        """The first strategy of every class, which runs it in full everywhere, is as good a
        beginning as any. With `byte_seconds` the problem is that of `with_memory`."""
        problem = self.with_memory(held, byte_seconds) if byte_seconds else self.problem
        return improve(
            problem,
            (0,) * problem.num_nodes,
            SearchLimits(gap_tolerance=gap_tolerance, work=WORK),
            store=self.tables.store,
            only_bound=only_bound,
        )

    def spread(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice of every operation, then of every input."""
        return tuple(np.array(choice, dtype=np.int64)[self.classes.of_node].tolist())

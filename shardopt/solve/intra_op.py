"""The intra-operator problem of a graph on one mesh: which strategy each operation and each input tensor takes.

The formulation is Alpa's (arXiv 2201.12023, section 4.2) over strategies from sharding rules: a node pays for its
compute and its own collectives, an edge for resharding between what the producer makes and what the consumer wants.
Inputs (weights, optimizer state, accumulators, boundary values) are nodes that choose among all even shardings.

    tables = IntraOpTables(graph, mesh, cluster)       # once for each (graph, mesh)
    problem = tables.problem(range(100, 300))          # any set of its operations, without deriving tables again
    plan = problem.decode(problem.solve())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardopt.cost.cluster import Cluster
from shardopt.cost.errors import UserError
from shardopt.cost.graph import OpGraph
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.intra_op_memory import Lifetime, last_readers, lifetimes, live_bytes
from shardopt.solve.intra_op_plan import IntraOpPlan, find_communication
from shardopt.solve.problem import Edge, Problem, Solution, Usage, evaluate
from shardopt.solve.sharding_ilp import solve
from shardopt.solve.strategies import is_made_anywhere, is_opaque
from shardopt.solve.strategies_tables import Column, OpStrategies, StrategyTables

Tied = Iterable[tuple[int, int]]


def build_problem(
    graph: OpGraph,
    mesh: Mesh,
    cluster: Cluster,
    *,
    fixed: Mapping[int, Sharding] | None = None,
    whole: Iterable[int] = (),
    tied: Tied = (),
    memory_limit_bytes: int | None = None,
) -> IntraOpProblem:
    """The problem of the whole graph; see `IntraOpTables.problem`."""
    tables = IntraOpTables(graph, mesh, cluster)
    return tables.problem(fixed=fixed, whole=whole, tied=tied, memory_limit_bytes=memory_limit_bytes)


class IntraOpTables:
    """A graph with the strategies of all its operations on one mesh; problems of any part of it are cut from here."""

    def __init__(self, graph: OpGraph, mesh: Mesh, cluster: Cluster) -> None:
        self.graph = graph
        self.strategies = StrategyTables(mesh, cluster)
        self.ops: tuple[OpStrategies, ...] = tuple(self.strategies.of(op, graph.tensors) for op in graph.ops)

    @property
    def mesh(self) -> Mesh:
        return self.strategies.mesh

    @cached_property
    def producers(self) -> tuple[int, ...]:
        return self.graph.producers()

    @cached_property
    def last_readers(self) -> tuple[int, ...]:
        return last_readers(self.graph)

    @cached_property
    def made_anywhere(self) -> frozenset[int]:
        """Tensors that each reader gets in the sharding it wants: no edge ties it to the others. What regions capture
        is excluded, as it has to be one value."""
        graph = self.graph
        made = {
            op.results[0] for op in graph.ops if is_made_anywhere(op, tuple(graph.tensors[t] for t in op.operands))
        }
        return frozenset(made.difference(*(op.operands for op in graph.ops if is_opaque(op))))

    def column(self, tensor: int) -> Column:
        """The shardings a tensor may have: those of its operation, or all when it is an input."""
        producer = self.producers[tensor]
        if producer < 0:
            return self.strategies.choices(self.graph.tensors[tensor].shape)
        return self.ops[producer].results[self.graph.ops[producer].results.index(tensor)]

    def problem(
        self,
        ops: Iterable[int] | None = None,
        *,
        fixed: Mapping[int, Sharding] | None = None,
        whole: Iterable[int] = (),
        tied: Tied = (),
        memory_limit_bytes: int | None = None,
    ) -> IntraOpProblem:
        """The problem of the operations `ops` (all by default), which are taken in program order.

        `fixed` gives tensors their sharding; `whole` are operations that every device runs in full. `tied` pairs must
        end with equal shardings; the second of a pair lives in the memory of the first (a donated argument and its
        result, an accumulator before and after). Tensors and operations outside of the part are ignored.
        `memory_limit_bytes` bounds the bytes a device holds at any time.

        Raises UserError for a fixed sharding that no strategy of the operation can make.
        """
        builder = _Builder(self, tuple(range(len(self.graph.ops))) if ops is None else tuple(sorted(ops)))
        builder.add_nodes(with_all_inputs=ops is None)
        builder.add_edges()
        tied = tuple((a, b) for a, b in tied if a != b and a in builder.node_of and b in builder.node_of)
        builder.tie(tied)
        for tensor, sharding in (fixed or {}).items():
            if tensor in builder.node_of:
                builder.fix(tensor, sharding)
        builder.keep_whole(set(whole))
        return builder.finish(tied, memory_limit_bytes)


@dataclass(frozen=True, eq=False)
class IntraOpProblem:
    """The arrays for the solver, and what they mean: node n < len(ops) is an operation, the others are `inputs`."""

    tables: IntraOpTables
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    columns: Mapping[int, Column]
    lifetimes: tuple[Lifetime, ...]
    problem: Problem

    def solve(self, time_limit_seconds: float | None = None) -> Solution:
        """Least cost within memory. Most stages fit without looking at memory, which is far cheaper to solve."""
        relaxed = solve(self.problem.without_memory(), time_limit_seconds=time_limit_seconds)
        if not self.problem.has_memory or not relaxed.choice or evaluate(self.problem, relaxed.choice).feasible:
            return relaxed
        return solve(self.problem, time_limit_seconds=time_limit_seconds)

    def decode(self, solution: Solution) -> IntraOpPlan:
        """The plan of a solution. Raises UserError when there is none."""
        if not solution.choice:
            raise UserError(f"no sharding found on mesh {self.tables.mesh}: {solution.statistics.get('reason')}")
        strategies = {
            op: self.tables.ops[op].strategies[choice] for op, choice in zip(self.ops, solution.choice, strict=False)
        }
        shardings = {
            tensor: self.columns[tensor].shardings[choice]
            for tensor, choice in zip(self.inputs, solution.choice[len(self.ops) :], strict=True)
        }
        for op, strategy in strategies.items():
            shardings.update(zip(self.tables.graph.ops[op].results, strategy.results, strict=True))
        graph, mesh, cluster = self.tables.graph, self.tables.mesh, self.tables.strategies.cluster
        made = self.tables.made_anywhere
        return IntraOpPlan(
            graph,
            mesh,
            shardings,
            strategies,
            made,
            find_communication(graph, mesh, cluster, strategies, shardings, made),
            live_bytes(graph, mesh, self.lifetimes, shardings, len(self.ops)),
        )


@dataclass(eq=False)
class _Builder:
    tables: IntraOpTables
    ops: tuple[int, ...]
    inputs: list[int] = field(default_factory=list)
    costs: list[np.ndarray] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    node_of: dict[int, int] = field(default_factory=dict)
    columns: dict[int, Column] = field(default_factory=dict)

    def add_nodes(self, *, with_all_inputs: bool) -> None:
        graph = self.tables.graph
        for node, index in enumerate(self.ops):
            self.costs.append(self.tables.ops[index].seconds)
            for tensor, column in zip(graph.ops[index].results, self.tables.ops[index].results, strict=True):
                self.node_of[tensor], self.columns[tensor] = node, column
        wanted = list(graph.inputs) if with_all_inputs else []
        wanted += [tensor for index in self.ops for tensor in graph.ops[index].operands]
        for tensor in dict.fromkeys(wanted):
            if tensor not in self.node_of:
                self._add_input(tensor, self.tables.strategies.choices(graph.tensors[tensor].shape))

    def _add_input(self, tensor: int, column: Column) -> None:
        self.node_of[tensor], self.columns[tensor] = len(self.costs), column
        self.inputs.append(tensor)
        self.costs.append(np.zeros(len(column.shardings)))

    def add_edges(self) -> None:
        graph = self.tables.graph
        for node, index in enumerate(self.ops):
            op, strategies = graph.ops[index], self.tables.ops[index]
            # An operand used twice in the same way (x * x) is resharded once.
            for tensor, column in dict.fromkeys(zip(op.operands, strategies.operands, strict=True)):
                if tensor in self.tables.made_anywhere:
                    continue
                cost = self.tables.strategies.resharding(graph.tensors[tensor], self.columns[tensor], column, op.repeat)
                if cost is not None:
                    self.edges.append(Edge(self.node_of[tensor], node, cost))

    def tie(self, tied: Sequence[tuple[int, int]]) -> None:
        for first, second in tied:
            cost = self.tables.strategies.equality(self.columns[first], self.columns[second])
            if not np.isfinite(cost).all():
                self.edges.append(Edge(self.node_of[first], self.node_of[second], cost))

    def fix(self, tensor: int, sharding: Sharding) -> None:
        column, node = self.columns[tensor], self.node_of[tensor]
        allowed = np.array([choice == sharding for choice in column.shardings])
        cost = np.where(allowed, self.costs[node], np.inf)
        if not np.isfinite(cost).any():
            raise UserError(self._cannot_fix(tensor, sharding))
        self.costs[node] = cost

    def keep_whole(self, whole: Set[int]) -> None:
        for node, index in enumerate(self.ops):
            if index in whole:
                self.costs[node] = np.where(np.arange(len(self.costs[node])) == 0, self.costs[node], np.inf)

    def _cannot_fix(self, tensor: int, sharding: Sharding) -> str:
        possible = ", ".join(map(str, self.columns[tensor].distinct[:8]))
        node = self.node_of[tensor]
        if node >= len(self.ops):
            what = f"an input of shape {self.tables.graph.tensors[tensor].shape}"
        else:
            op = self.tables.graph.ops[self.ops[node]]
            what = f"the result of '{op.name}' at {op.location or 'an unknown location'}"
        return f"sharding {sharding} was asked for {what}, expected one of {possible}"

    def finish(self, tied: Sequence[tuple[int, int]], limit: int | None) -> IntraOpProblem:
        aliases = frozenset(second for _, second in tied)
        lives = lifetimes(self.tables.graph, self.ops, self.inputs, aliases, self.tables.last_readers)
        usages = None if limit is None else self._usages(lives)
        problem = Problem(tuple(self.costs), tuple(self.edges), usages, limit, len(self.ops))
        return IntraOpProblem(self.tables, self.ops, tuple(self.inputs), self.columns, lives, problem)

    def _usages(self, lives: Sequence[Lifetime]) -> tuple[tuple[Usage, ...], ...]:
        found: list[list[Usage]] = [[] for _ in self.costs]
        for live in lives:
            tensor = self.tables.graph.tensors[live.tensor]
            size = self.tables.strategies.local_bytes(tensor, self.columns[live.tensor])
            found[self.node_of[live.tensor]].append(Usage(live.start, live.stop, size))
        return tuple(map(tuple, found))

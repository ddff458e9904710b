"""Nodes, edges and shared edges of an intra-operator problem, from the strategies of its
operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.problem import Edge, Usage
from shardopt.solve.assignment.sharing.arcs import SharedEdges
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.solve.sharding.intra_op.problem import IntraOpTables

# Shardings named in the error about one that is impossible.
_MAX_LISTED = 8


class ImpossibleSharding(UserError):
    """A sharding was asked for that no strategy gives; `op` makes the value, or it is an input."""

    def __init__(self, message: str, op: int | None) -> None:
        super().__init__(message)
        self.op = op


@dataclass(frozen=True, eq=False)
class SharedReads:
    """What the shared edges of a group stand for: reader r is operation `ops[r]`, which reads
    `tensors[r]`; its classes are `columns[r].distinct`, those of its source
    `sources[r].distinct`."""

    ops: tuple[int, ...]
    tensors: tuple[int, ...]
    sources: tuple[Column, ...]
    columns: tuple[Column, ...]


@dataclass(eq=False)
class ProblemBuilder:
    """Nodes, edges and limits of the problem of some operations, added up step by step."""

    tables: IntraOpTables
    ops: tuple[int, ...]
    cheap_to_clone: frozenset[int]
    inputs: list[int] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    costs: list[np.ndarray] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    groups: list[SharedEdges] = field(default_factory=list)
    shared_reads: list[SharedReads] = field(default_factory=list)
    node_of: dict[int, int] = field(default_factory=dict)
    columns: dict[int, Column] = field(default_factory=dict)

    def add_nodes(self, inputs: Iterable[int], moves: Mapping[int, int]) -> None:
        """One node an operation, then one for each of `inputs` and of the other tensors that are
        read. `moves` says how often some of them travel between devices and hosts."""
        graph = self.tables.graph
        for node, index in enumerate(self.ops):
            strategies, seconds = self.tables.strategies, self.tables.ops[index].seconds
            for tensor, column in zip(
                graph.ops[index].results, self.tables.ops[index].results, strict=True
            ):
                self.node_of[tensor], self.columns[tensor] = node, column
                if tensor in moves:
                    value = graph.tensors[tensor]
                    seconds = seconds + moves[tensor] * strategies.host_seconds(value, column)
            self.costs.append(seconds)
        read = (tensor for index in self.ops for tensor in graph.ops[index].operands)
        for tensor in dict.fromkeys((*inputs, *read)):
            if tensor not in self.node_of:
                column = self.tables.column(tensor)
                self.node_of[tensor], self.columns[tensor] = len(self.costs), column
                self.inputs.append(tensor)
                strategies, value = self.tables.strategies, graph.tensors[tensor]
                seconds = strategies.input_seconds(value, column)
                if tensor in moves:
                    seconds = seconds + moves[tensor] * strategies.host_seconds(value, column)
                self.costs.append(seconds)

    def add_edges(self) -> None:
        """An edge for each operand, and which of them share steps."""
        graph, producers, fusion = self.tables.graph, self.tables.producers, self.tables.fusion
        readers: dict[tuple[int, bool, tuple[int, int], int], list[tuple[int, Column, int]]] = {}
        for node, index in enumerate(self.ops):
            op, strategies = graph.ops[index], self.tables.ops[index]
            # An operand used twice in the same way (x * x) is resharded once.
            for tensor, column in dict.fromkeys(zip(op.operands, strategies.operands, strict=True)):
                if tensor in self.cheap_to_clone:
                    continue
                trips = graph.trips_of(index, tensor, producers[tensor])
                # What comes from outside of a loop is resharded once, before the loop.
                repeat = op.repeat // (op.trips or 1) * trips
                fused = tensor in fusion.fused
                source = self.columns[tensor]
                cost = self.tables.strategies.resharding(
                    graph.tensors[tensor], source, column, repeat, fused
                )
                if cost is not None:
                    reads = readers.setdefault((self._origin(tensor), fused, op.scope, repeat), [])
                    reads.append((tensor, column, len(self.edges)))
                    self.edges.append(Edge(self.node_of[tensor], node, cost))
        for (_, fused, _, repeat), reads in readers.items():
            if len(reads) > 1:
                self._share(reads, repeat, fused)

    def _origin(self, tensor: int) -> int:
        """What markers hand on as `tensor`, in whatever sharding."""
        handed_on = self.tables.graph.handed_on
        while tensor in handed_on and handed_on[tensor] in self.node_of:
            tensor = handed_on[tensor]
        return tensor

    def _share(self, reads: Sequence[tuple[int, Column, int]], repeat: int, fused: bool) -> None:
        tensors, columns, edges = zip(*reads, strict=True)
        sources = tuple(self.columns[tensor] for tensor in tensors)
        value = self.tables.graph.tensors[tensors[0]]
        arcs = self.tables.strategies.shared_reshardings(value, sources, columns, repeat, fused)
        if arcs.is_shared:
            ends = [self.edges[edge] for edge in edges]
            self.groups.append(
                SharedEdges(arcs, tuple(e.u for e in ends), tuple(e.v for e in ends), edges)
            )
            ops = tuple(self.ops[end.v] for end in ends)
            self.shared_reads.append(SharedReads(ops, tensors, sources, columns))

    def tie(self, tied: Iterable[tuple[int, int]]) -> None:
        for first, second in tied:
            if first in self.node_of and second in self.node_of:
                self.aliases.setdefault(second, first)
                cost = self.tables.strategies.equality(self.columns[first], self.columns[second])
                if cost.any():
                    self.edges.append(Edge(self.node_of[first], self.node_of[second], cost))

    def limit(self, allowed: Mapping[int, tuple[Sharding, ...]]) -> None:
        """Leave tensors some of their shardings."""
        for tensor, shardings in allowed.items():
            if tensor in self.node_of:
                node, column = self.node_of[tensor], self.columns[tensor]
                chosen = np.array([sharding in shardings for sharding in column.distinct])[
                    column.index
                ]
                # Forbidden and not removed, so that strategies keep their numbers.
                self.costs[node] = np.where(chosen, self.costs[node], np.inf)
                if not np.isfinite(self.costs[node]).any():
                    raise self._cannot_have(tensor, shardings)

    def _cannot_have(self, tensor: int, shardings: Sequence[Sharding]) -> ImpossibleSharding:
        possible = ", ".join(map(str, self.columns[tensor].distinct[:_MAX_LISTED]))
        demanded = " or ".join(map(str, shardings[:_MAX_LISTED]))
        shape, node = self.tables.graph.tensors[tensor].shape, self.node_of[tensor]
        what = f"an input of shape {shape}"
        index = self.ops[node] if node < len(self.ops) else None
        if index is not None:
            what = f"the result of '{self.tables.graph.ops[index].name}' of shape {shape}"
        return ImpossibleSharding(
            f"sharding {demanded} was asked for {what}, expected one of {possible}", index
        )

    def allow(self, allowed: Mapping[int, Sequence[int]]) -> None:
        """Leave operations some of their strategies."""
        for node, index in enumerate(self.ops):
            if index in allowed:
                costs, kept = self.costs[node], list(allowed[index])
                self.costs[node] = np.full_like(costs, np.inf)
                self.costs[node][kept] = costs[kept]

    def usages(self, lives: Sequence[Lifetime]) -> tuple[tuple[Usage, ...], ...]:
        usages: list[list[Usage]] = [[] for _ in self.costs]
        for live in (live for live in lives if live.start < live.stop):
            tensor = self.tables.graph.tensors[live.tensor]
            size = self.tables.strategies.local_bytes(tensor, self.columns[live.tensor])
            usages[self.node_of[live.tensor]].append(
                Usage(live.start, live.stop, live.count * size)
            )
        return tuple(map(tuple, usages))

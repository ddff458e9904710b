"""The mutable graph of a problem being reduced, and the log that carries solutions back.

Every operation here is exact: an assignment of the remaining nodes, replayed through the log, is an
assignment of the original problem with the same objective (up to rounding) and the same memory, and
an optimum is preserved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from shardopt.solve.assignment.presolve.memory_profile import UsageProfile
from shardopt.solve.assignment.problem import Problem
from shardopt.solve.assignment.table_store import TableStore


class Infeasible(Exception):
    """No assignment exists; the message is one sentence that says why."""


@dataclass(frozen=True, eq=False, slots=True)
class RestoreRule:
    """`choice[node] = table[choice[parents[0]], …]`: how a removed node follows from nodes that are
    still there.

    When strategies of a node were deleted, its parent is the node itself. `stand_in` then names,
    for each old strategy, the new one that is never worse (-1 where the strategy was
    impossible)."""

    node: int
    parents: tuple[int, ...]
    table: np.ndarray
    stand_in: np.ndarray | None = None


def replay(log: Sequence[RestoreRule], choice: dict[int, int]) -> dict[int, int]:
    """Undo the reductions, last first: from strategies of the remaining nodes to those of all
    original nodes."""
    choice = dict(choice)
    for rule in reversed(log):
        choice[rule.node] = int(rule.table[tuple(choice[node] for node in rule.parents)])
    return choice


def project(log: Sequence[RestoreRule], choice: Sequence[int]) -> dict[int, int] | None:
    """Apply the reductions to an assignment: no worse strategies of the remaining nodes; None if it
    is not allowed."""
    left = dict(enumerate(choice))
    for rule in log:
        if rule.stand_in is None:
            del left[rule.node]
            continue
        left[rule.node] = int(rule.stand_in[left[rule.node]])
        if left[rule.node] < 0:
            return None
    return left


class FactorGraph:
    """Nodes keep their original numbers. `tables[u][v]` is `[k_u, k_v]`; both directions are
    stored.

    Invariant after construction: node costs are finite. `changed_edges` and `changed_nodes` are
    work lists in order of first change (OrderedDict: popping the front of a plain dict rescans what
    was popped before)."""

    def __init__(
        self, problem: Problem, deadline: float | None = None, store: TableStore | None = None
    ) -> None:
        self.deadline = deadline
        self.store = TableStore() if store is None else store
        self.store.begin()
        self.costs: list[np.ndarray] = list(problem.costs)
        self.tables: list[dict[int, np.ndarray]] = [{} for _ in problem.costs]
        self.alive: list[bool] = [True] * problem.num_nodes
        self.memory = UsageProfile(problem) if problem.has_memory else None
        self.constant = 0.0
        self.log: list[RestoreRule] = []
        self.changed_edges: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.changed_nodes: OrderedDict[int, None] = OrderedDict.fromkeys(range(problem.num_nodes))
        self._looked_at: dict[int, tuple[np.ndarray, tuple[np.ndarray, ...]]] = {}
        for node, cost in enumerate(self.costs):
            if not len(cost):
                raise Infeasible(f"node {node} has no strategies")
        # Equal edges mostly share one array, which is looked up once.
        tables: dict[int, np.ndarray] = {}
        for edge in problem.edges:
            if id(edge.cost) not in tables:
                tables[id(edge.cost)] = self.store.intern(edge.cost)
            self._add_edge(edge.u, edge.v, tables[id(edge.cost)])
        for node, cost in enumerate(self.costs):
            if not cost.max() < np.inf:
                self.restrict(node, cost < np.inf, "every strategy has infinite cost")

    @property
    def late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    @property
    def nodes(self) -> list[int]:
        return [node for node, alive in enumerate(self.alive) if alive]

    def uses_memory(self, node: int) -> bool:
        return self.memory is not None and self.memory.uses(node)

    def restrict(
        self, node: int, keep: np.ndarray, reason: str, instead: np.ndarray | None = None
    ) -> None:
        """Delete the strategies outside the mask `keep`. Raises Infeasible with `reason` if none
        would be left.

        `instead` names a kept strategy for each; without it the deleted ones are impossible.
        """
        if not keep.any():
            raise Infeasible(f"node {node} has no strategy left: {reason}")
        strategies = self.store.intern(np.flatnonzero(keep))
        self.costs[node] = self.costs[node][strategies]
        if self.memory is not None:
            self.memory.take(node, strategies)
        for other, table in list(self.tables[node].items()):
            self._set(node, other, self.store.take_rows(table, strategies))
        position = np.where(keep, np.cumsum(keep) - 1, -1)
        self.log.append(
            RestoreRule(
                node, (node,), strategies, position if instead is None else position[instead]
            )
        )
        self.changed_nodes[node] = None

    def remember(self, node: int, tables: tuple[np.ndarray, ...]) -> None:
        """Nothing is dominated at a node with its costs and these tables."""
        self._looked_at[node] = self.costs[node], tables

    def has_changed(self, node: int, tables: tuple[np.ndarray, ...]) -> bool:
        """Whether something may be dominated at a node with its costs and these tables; always
        where memory counts."""
        cost, before = self._looked_at.get(node, (None, ()))
        same = cost is self.costs[node] and len(before) == len(tables)
        return self.uses_memory(node) or not (
            same and all(a is b for a, b in zip(before, tables, strict=True))
        )

    def link(self, u: int, v: int, table: np.ndarray) -> None:
        """Add an edge, summing it with the one that may be there."""
        table = self.store.intern(table)
        if v in self.tables[u]:
            table = self.store.add(self.tables[u][v], table)
        self._set(u, v, table)

    def unlink(self, u: int, v: int) -> None:
        del self.tables[u][v], self.tables[v][u]
        self.changed_edges.pop((min(u, v), max(u, v)), None)
        self.changed_nodes[u] = self.changed_nodes[v] = None

    def add_cost(self, node: int, cost: np.ndarray) -> None:
        self.costs[node] = self.costs[node] + cost
        self.changed_nodes[node] = None

    def contract(self, node: int, into: int, strategy_of: np.ndarray) -> None:
        """Merge `node` into a neighbour that determines it: its strategy is `strategy_of[strategy
        of into]`."""
        strategy_of = self.store.intern(strategy_of)
        along = self.tables[into][node][np.arange(len(strategy_of)), strategy_of]
        self.unlink(into, node)
        self.add_cost(into, along + self.costs[node][strategy_of])
        for other, table in list(self.tables[node].items()):
            self.unlink(node, other)
            self.link(into, other, self.store.take_rows(table, strategy_of))
        if self.memory is not None:
            self.memory.merge(node, into, strategy_of)
        self.remove(RestoreRule(node, (into,), strategy_of))

    def remove(self, rule: RestoreRule) -> None:
        """Forget a node without edges; `rule` says which strategy it takes."""
        self.alive[rule.node] = False
        self.changed_nodes.pop(rule.node, None)
        self.log.append(rule)

    def _add_edge(self, u: int, v: int, table: np.ndarray) -> None:
        if u == v:
            self.costs[u] = self.costs[u] + np.diagonal(table)
        else:
            self.link(u, v, table)

    def _set(self, u: int, v: int, table: np.ndarray) -> None:
        self.tables[u][v] = table
        self.tables[v][u] = self.store.transpose(table)
        self.changed_edges[min(u, v), max(u, v)] = None
        self.changed_nodes[u] = self.changed_nodes[v] = None

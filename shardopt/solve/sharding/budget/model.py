"""The intra-operator problem with all that a memory budget can change: copies of operands, values
recomputed.

Behind the nodes of the plain problem stand two kinds of further ones, each of which follows the
node of one tensor:

* for a value that can be recomputed (`rematerialization`): (sharding, kept or not). Kept, it
  takes its bytes in the gap between its readers; else the seconds of the chain, and the sources
  must lie as the chain wants.
* for an operand of one operation: what its copies take while the operation runs, which follows from
  the shardings of both (`copy_states`).

Copies that outlive their first reader, kept sources and scratch space are not in the problem, so
that it stays a relaxation; `IntraOpPlan.live_bytes` counts everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.problem import Edge, Problem, Solution, Usage
from shardopt.solve.sharding.budget.copy_states import CopyStates, copy_states
from shardopt.solve.sharding.budget.rematerialization import (
    Candidate,
    RematRecipe,
    recipe,
    rematerialized,
)
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies

# An operand of one operation: (operation, tensor).
Operand = tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Choice:
    """The node of a candidate: strategies 2k and 2k + 1 are sharding k kept, and recomputed by
    `recipes[k]`."""

    candidate: Candidate
    shardings: tuple[Sharding, ...]
    recipes: tuple[RematRecipe | None, ...]


class BudgetModel:
    """Problems of `base` under any limit, with the copies asked for."""

    def __init__(self, base: IntraOpProblem, candidates: Iterable[Candidate]) -> None:
        self.base, self.tables = base, base.tables
        self.position = {op: position for position, op in enumerate(base.order)}
        choices = (self._choice(candidate) for candidate in candidates)
        self.choices = tuple(choice for choice in choices if any(choice.recipes))
        self.first_choice = len(base.problem.costs)
        self._copies: dict[Operand, CopyStates] = {}
        self._edges_of: tuple[Problem, dict[int, list[Edge]]] | None = None

    def priced(self, problem: Problem) -> BudgetModel:
        """The same model for other prices of shared steps."""
        other = copy(self)
        other.base, other._edges_of = replace(self.base, problem=problem), None
        return other

    def problem(self, limit: int, copies: Iterable[Operand]) -> Problem:
        """The problem within `limit` bytes that counts the given copies of operands."""
        base = self.base.problem
        costs, edges = list(base.costs), list(base.edges)
        usages = self._usages()
        for choice in self.choices:
            costs.append(self._seconds(choice))
            usages.append([self._held(choice)])
            edges += self._choice_edges(choice, len(costs) - 1)
        for op, tensor in copies:
            cost, usage, copy_edges = self._copy(op, tensor, len(costs))
            costs.append(cost)
            usages.append([usage])
            edges += copy_edges
        return Problem(
            tuple(costs), tuple(edges), tuple(map(tuple, usages)), limit, len(self.base.order)
        )

    def kept(self, shardings: Sequence[int]) -> list[int]:
        """For each candidate the strategy that keeps it, given strategies of the plain nodes."""
        strategies = []
        for choice in self.choices:
            tensor = choice.candidate.tensor
            sharding = self.base.columns[tensor].shardings[shardings[self.base.node_of[tensor]]]
            strategies.append(2 * choice.shardings.index(sharding))
        return strategies

    def copied(self, shardings: Sequence[int], copies: Iterable[Operand]) -> list[int]:
        """For each operand which copies it has, given strategies of the plain nodes."""
        node_of, ops = self.base.node_of, self.tables.graph.ops
        return [
            self._copy_states(op, tensor).state(
                shardings[node_of[ops[op].results[0]]], shardings[node_of[tensor]]
            )
            for op, tensor in copies
        ]

    def edges_of(self, problem: Problem, node: int) -> Sequence[Edge]:
        """The edges to the node of a candidate, all of which end there."""
        if self._edges_of is None or self._edges_of[0] is not problem:
            by_node: dict[int, list[Edge]] = {}
            for edge in problem.edges:
                if edge.v >= self.first_choice:
                    by_node.setdefault(edge.v, []).append(edge)
            self._edges_of = problem, by_node
        return self._edges_of[1].get(node, ())

    def decode(self, solution: Solution, fresh: FreshCopies = frozenset()) -> IntraOpPlan:
        return self.base.decode(solution, self._rematerialized(solution.choice), fresh)

    def _rematerialized(self, choice: Sequence[int]) -> tuple[Rematerialized, ...]:
        remats = []
        for node, item in enumerate(self.choices, self.first_choice):
            sharding, is_remat = divmod(choice[node], 2)
            chosen = item.recipes[sharding]
            if is_remat and chosen is not None:
                remats.append(rematerialized(item.candidate, chosen))
        return tuple(remats)

    def _usages(self) -> list[list[Usage]]:
        gaps = {choice.candidate.tensor: choice.candidate.gap for choice in self.choices}
        usages: list[list[Usage]] = [[] for _ in self.base.problem.costs]
        for live in self.base.lifetimes:
            size = live.count * self._bytes(live.tensor)
            # In the gap the node of the candidate has the bytes, as it decides whether the value is
            # there.
            start, stop = gaps.get(live.tensor, (live.stop, live.stop))
            pieces = (live.start, min(start, live.stop)), (max(stop, live.start), live.stop)
            usages[self.base.node_of[live.tensor]] += [
                Usage(a, b, size) for a, b in pieces if a < b
            ]
        for node, op in enumerate(self.base.ops):
            before = self._before_scatter(op)
            if before.any():
                at = self.position[op]
                usages[node].append(Usage(at, at + 1, before))
        return usages

    def _bytes(self, tensor: int) -> np.ndarray:
        return self.tables.strategies.local_bytes(
            self.tables.graph.tensors[tensor], self.base.columns[tensor]
        )

    def _before_scatter(self, op: int) -> np.ndarray:
        """Bytes of the whole result beside the scattered one, under each strategy."""
        tables = self.tables
        results, strategies = tables.graph.ops[op].results, tables.ops[op].strategies
        total = np.zeros(len(strategies), dtype=np.int64)
        for number, tensor in enumerate(results):
            column = tables.strategies.column(
                tuple(strategy.unscattered[number] for strategy in strategies)
            )
            before = tables.strategies.local_bytes(tables.graph.tensors[tensor], column)
            after = tables.strategies.local_bytes(
                tables.graph.tensors[tensor], tables.ops[op].results[number]
            )
            total += np.where(before > after, before, 0)
        return total

    # ---- rematerialized values ----

    def _choice(self, candidate: Candidate) -> _Choice:
        shardings = self.base.columns[candidate.tensor].distinct
        return _Choice(
            candidate, shardings, tuple(recipe(self.base, candidate, s) for s in shardings)
        )

    def _seconds(self, choice: _Choice) -> np.ndarray:
        repeat = self.tables.graph.ops[choice.candidate.chain[-1]].repeat
        seconds = [
            np.inf if chosen is None else chosen.seconds * repeat for chosen in choice.recipes
        ]
        return np.array([value for remat in seconds for value in (0.0, remat)])

    def _held(self, choice: _Choice) -> Usage:
        tensor = self.tables.graph.tensors[choice.candidate.tensor]
        size = self.tables.strategies.local_bytes(
            tensor, self.tables.strategies.column(choice.shardings)
        )
        return Usage(*choice.candidate.gap, np.stack([size, np.zeros_like(size)], axis=1).ravel())

    def _choice_edges(self, choice: _Choice, node: int) -> list[Edge]:
        tensor = choice.candidate.tensor
        allowed = _equal(self.base.columns[tensor].shardings, choice.shardings)
        edges = [
            Edge(
                self.base.node_of[tensor],
                node,
                np.where(np.repeat(allowed, 2, axis=1), 0.0, np.inf),
            )
        ]
        for source in choice.candidate.sources:
            if source in self.base.node_of and source not in self.base.cheap_to_clone:
                edges.append(
                    Edge(self.base.node_of[source], node, self._source_cost(choice, source))
                )
        return edges

    def _source_cost(self, choice: _Choice, source: int) -> np.ndarray:
        """`[k, 2 m]`: inf where the chain would have to communicate to read the source."""
        column = self.base.columns[source]
        cost = np.zeros((len(column.shardings), 2 * len(choice.recipes)))
        for number, chosen in enumerate(choice.recipes):
            if chosen is not None:
                target = self.tables.strategies.column((chosen.sources[source],))
                seconds = self.tables.strategies.resharding(
                    self.tables.graph.tensors[source], column, target, 1
                )
                if seconds is not None:
                    cost[:, 2 * number + 1] = np.where(seconds[:, 0] > 0, np.inf, 0.0)
        return cost

    # ---- copies of operands ----

    def _copy_states(self, op: int, tensor: int) -> CopyStates:
        if (op, tensor) not in self._copies:
            self._copies[op, tensor] = copy_states(self.base, op, tensor)
        return self._copies[op, tensor]

    def _copy(self, op: int, tensor: int, node: int) -> tuple[np.ndarray, Usage, list[Edge]]:
        states, at = self._copy_states(op, tensor), self.position[op]
        reader, maker = (
            self.base.node_of[value] for value in (self.tables.graph.ops[op].results[0], tensor)
        )
        edges = [
            Edge(reader, node, np.where(states.of_reader, 0.0, np.inf)),
            Edge(maker, node, np.where(states.of_tensor, 0.0, np.inf)),
        ]
        return np.zeros(len(states.states)), Usage(at, at + 1, states.bytes), edges


def _equal(first: Sequence[Sharding], second: Sequence[Sharding]) -> np.ndarray:
    """bool `[len(first), len(second)]`."""
    number = {sharding: n for n, sharding in enumerate(dict.fromkeys((*first, *second)))}
    rows, columns = (np.array([number[sharding] for sharding in side]) for side in (first, second))
    return rows[:, None] == columns[None, :]

"""The intra-operator solver: presolve, split into components, and the cheapest exact method for each.

Objective and constraints follow Alpa's intra-operator ILP (arXiv 2201.12023, §4.2) with memory over time; the
formulation and the reductions do not. Without a time limit the answer is proven; with one, the status says what is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from time import monotonic

from shardopt.solve.bucket_elimination import eliminate_all, elimination_order
from shardopt.solve.enumeration import enumerate_all, is_tiny
from shardopt.solve.marginal_ilp import solve_marginal
from shardopt.solve.presolve import Presolved, presolve
from shardopt.solve.problem import Edge, Problem, Solution, Status, evaluate, relative_gap


def solve(problem: Problem, *, time_limit_seconds: float | None = None) -> Solution:
    """Assign every node its strategy at least total cost within the memory limit.

    Infeasibility is an answer: `statistics["reason"]` names the node or the binding limit, and for memory
    `usage_lower_bound_bytes` stands beside `memory_limit_bytes`. The time limit (seconds) covers the integer programs;
    presolve always runs to its end. Equal inputs give equal choices as long as the limit does not strike.
    """
    run = _Run(problem, None if time_limit_seconds is None else monotonic() + time_limit_seconds)
    relaxed = run.without_memory() if problem.has_memory else None
    if relaxed is not None and (relaxed.status == "infeasible" or evaluate(problem, relaxed.choice).feasible):
        return relaxed
    return run.complete(relaxed)


@dataclass(eq=False)
class _Run:
    """One call of `solve`: its problem, its deadline (monotonic seconds) and what happened so far."""

    problem: Problem
    deadline: float | None
    counts: dict[str, int] = field(default_factory=dict)
    presolve_seconds: float = 0.0

    def without_memory(self) -> Solution | None:
        """The optimum without memory, if no integer program is needed for it: often it fits, else it is a bound."""
        reduced = self._presolve(self.problem.without_memory())
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced)
        parts: list[Solution] = []
        components = _components(reduced.problem)
        for _, part in components:
            solver = self._direct_method(part)
            if solver is None:
                return None
            parts.append(solver(part))
        return self._join(reduced, components, parts)

    def complete(self, relaxed: Solution | None) -> Solution:
        reduced = self._presolve(self.problem)
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced)
        parts: list[Solution] = []
        components = _components(reduced.problem)
        for _, part in components:
            solver = self._direct_method(part) or self._integer_program
            parts.append(solver(part))
        return self._join(reduced, components, parts, relaxed)

    def _presolve(self, problem: Problem) -> Presolved:
        start = monotonic()
        reduced = presolve(problem)
        self.presolve_seconds += monotonic() - start
        return reduced

    def _direct_method(self, part: Problem) -> Callable[[Problem], Solution] | None:
        if is_tiny(part):
            return lambda part: self._proven("enumerated", part, enumerate_all(part))
        order = None if part.has_memory else elimination_order(part)
        if order is None:
            return None
        return lambda part: self._proven("eliminated", part, eliminate_all(part, order))

    def _proven(self, method: str, part: Problem, choice: tuple[int, ...] | None) -> Solution:
        self._count(method)
        if choice is None:
            return Solution((), inf, inf, 0.0, "infeasible")
        objective = evaluate(part, choice).objective
        return Solution(choice, objective, objective, 0.0, "optimal")

    def _integer_program(self, part: Problem) -> Solution:
        self._count("integer_programs")
        left = None if self.deadline is None else max(self.deadline - monotonic(), 0.0)
        solution = solve_marginal(part, time_limit_seconds=left)
        for name in ("columns", "rounds", "memory_rows", "cover_rows"):
            self._count(name, int(str(solution.statistics[name])))
        return solution

    def _count(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def _join(
        self,
        reduced: Presolved,
        components: list[tuple[tuple[int, ...], Problem]],
        parts: list[Solution],
        relaxed: Solution | None = None,
    ) -> Solution:
        """Put the components' solutions together and judge the whole on the original problem."""
        status = _worst([part.status for part in parts])
        if status == "infeasible":
            return self._infeasible(self._no_assignment(relaxed), reduced, relaxed)
        bound = reduced.constant + sum(part.bound for part in parts)
        if relaxed is not None:
            bound = max(bound, relaxed.bound)
        statistics = self._statistics(reduced)
        if status == "timeout":
            statistics["reason"] = "the time limit struck before any assignment was found"
            return Solution((), inf, bound, inf, status, statistics)
        choice = {
            node: strategy
            for (nodes, _), part in zip(components, parts, strict=True)
            for node, strategy in zip(nodes, part.choice, strict=True)
        }
        full = reduced.restore([choice[node] for node in range(len(choice))])
        objective = evaluate(self.problem, full).objective
        # Summed in another order, a proven bound may lie an ulp beside the objective it equals.
        bound = objective if status == "optimal" else min(bound, objective)
        return Solution(full, objective, bound, relative_gap(objective, bound), status, statistics)

    def _no_assignment(self, relaxed: Solution | None) -> str:
        limit = self.problem.memory_limit
        if relaxed is not None:
            return f"memory: every assignment exceeds the limit of {limit} bytes at some time"
        if self.problem.has_memory:
            return f"no assignment avoids the forbidden pairs within the memory limit of {limit} bytes"
        return "every assignment uses a forbidden pair"

    def _infeasible(self, reason: str, reduced: Presolved, relaxed: Solution | None = None) -> Solution:
        statistics = self._statistics(reduced) | {"reason": reason}
        if self.problem.memory_limit is not None:
            least = reduced.smallest_peak
            if relaxed is not None:  # assignments exist, so the limit is what excludes them
                least = max(least, self.problem.memory_limit + 1)
            statistics |= {"usage_lower_bound_bytes": least, "memory_limit_bytes": self.problem.memory_limit}
        return Solution((), inf, inf, 0.0, "infeasible", statistics)

    def _statistics(self, reduced: Presolved) -> dict[str, object]:
        residual = reduced.problem
        return {
            "nodes": self.problem.num_nodes,
            "edges": len(self.problem.edges),
            "residual_nodes": 0 if residual is None else residual.num_nodes,
            "residual_edges": 0 if residual is None else len(residual.edges),
            **self.counts,
            "presolve_seconds": self.presolve_seconds,
        }


def _worst(statuses: list[Status]) -> Status:
    order: tuple[Status, ...] = ("optimal", "feasible", "timeout", "infeasible")
    return max(statuses, key=order.index, default="optimal")


def _components(problem: Problem) -> list[tuple[tuple[int, ...], Problem]]:
    """Independent parts with their node numbers, by smallest node. All nodes with memory belong together."""
    parent = list(range(problem.num_nodes))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    with_memory = [node for node, segments in enumerate(problem.usages or ()) if segments]
    pairs = [(edge.u, edge.v) for edge in problem.edges]
    pairs += pairwise(with_memory)
    for u, v in pairs:
        low, high = sorted((find(u), find(v)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for node in range(problem.num_nodes):
        members.setdefault(find(node), []).append(node)
    edges: dict[int, list[Edge]] = {root: [] for root in members}
    for edge in problem.edges:
        edges[find(edge.u)].append(edge)
    return [(tuple(nodes), _part(problem, nodes, edges[root])) for root, nodes in members.items()]


def _part(problem: Problem, nodes: list[int], edges: list[Edge]) -> Problem:
    index = {node: position for position, node in enumerate(nodes)}
    costs = tuple(problem.costs[node] for node in nodes)
    inner = tuple(Edge(index[edge.u], index[edge.v], edge.cost) for edge in edges)
    if problem.usages is None:
        return Problem(costs, inner)
    usages = tuple(problem.usages[node] for node in nodes)
    if not any(usages):
        return Problem(costs, inner)
    return Problem(costs, inner, usages, problem.memory_limit, problem.num_times)

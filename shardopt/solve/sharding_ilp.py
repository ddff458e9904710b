"""The intra-operator solver: presolve, split into components, and the cheapest exact method for each.

Objective and constraints follow Alpa's intra-operator ILP (arXiv 2201.12023, §4.2) with memory over time; the
formulation and the reductions do not. Without a time limit the answer is proven; with one, the status says what is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from shardopt.solve.bucket_elimination import eliminate_all, elimination_order
from shardopt.solve.components import split_components
from shardopt.solve.enumeration import enumerate_all, is_tiny
from shardopt.solve.marginal_ilp import OPTIMAL_GAP, solve_marginal
from shardopt.solve.memory_multipliers import search_prices
from shardopt.solve.presolve import Presolved, presolve
from shardopt.solve.problem import Problem, Solution, Statistic, Status, evaluate, relative_gap

# Share of the remaining time for the integer program before prices take over: it either proves a problem soon or,
# with many nodes that use memory, finds nothing for minutes.
_INTEGER_PROGRAM_SHARE = 0.5


def solve(problem: Problem, *, time_limit_seconds: float | None = None, gap_tolerance: float = 0.0) -> Solution:
    """Assign every node its strategy at least total cost within the memory limit.

    With a `gap_tolerance` the search stops at a solution proven that close, relatively; its status is "feasible"
    unless it happens to be optimal.

    Infeasibility is an answer: `statistics["reason"]` names the node or the binding limit, and for memory
    `usage_lower_bound_bytes` stands beside `memory_limit_bytes`. The time limit (seconds) covers integer programs
    and prices; presolve always runs to its end. Equal inputs give equal choices as long as the limit does not strike.
    """
    run = _Run(problem, None if time_limit_seconds is None else monotonic() + time_limit_seconds, gap_tolerance)
    relaxed = run.without_memory() if problem.has_memory else None
    if relaxed is not None and (relaxed.status == "infeasible" or evaluate(problem, relaxed.choice).feasible):
        return relaxed
    return run.complete(relaxed)


@dataclass(eq=False)
class _Run:
    """One call of `solve`: its problem, its deadline (monotonic seconds) and what happened so far."""

    problem: Problem
    deadline: float | None
    gap_tolerance: float
    counts: dict[str, int] = field(default_factory=dict)
    presolve_seconds: float = 0.0

    def without_memory(self) -> Solution | None:
        """The optimum without memory, if no integer program is needed for it: often it fits, else it is a bound."""
        reduced = self._presolve(self.problem.without_memory())
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced)
        components = split_components(reduced.problem)
        parts = self._solve_directly([part for _, part in components])
        return None if parts is None else self._join(reduced, components, parts)

    def complete(self, relaxed: Solution | None) -> Solution:
        reduced = self._presolve(self.problem)
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced, relaxed)
        components = split_components(reduced.problem)
        parts = []
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

    def _solve_directly(self, parts: list[Problem]) -> list[Solution] | None:
        """Solve all parts without integer programs; None, before any work, if one of them needs that."""
        methods = [method for part in parts if (method := self._direct_method(part)) is not None]
        if len(methods) < len(parts):
            return None
        return [method(part) for method, part in zip(methods, parts, strict=True)]

    def _integer_program(self, part: Problem) -> Solution:
        self._count("integer_programs")
        left = None if self.deadline is None else max(self.deadline - monotonic(), 0.0)
        share = left if left is None or not part.has_memory else _INTEGER_PROGRAM_SHARE * left
        solution = solve_marginal(part, time_limit_seconds=share, gap_tolerance=self.gap_tolerance)
        for name in ("columns", "rounds", "memory_rows", "cover_rows"):
            self._count(name, int(solution.statistics[name]))
        unfinished = solution.status in ("feasible", "timeout") and solution.gap > self.gap_tolerance
        return self._improve_by_prices(part, solution) if unfinished and part.has_memory else solution

    def _improve_by_prices(self, part: Problem, solution: Solution) -> Solution:
        """Spend what is left of the time on multipliers for memory; keep the better assignment and the better bound."""
        found = search_prices(part, self._relaxed_choice, deadline=self.deadline, gap_tolerance=self.gap_tolerance)
        self._count("price_solves", found.solves)
        best = min((solution.objective, solution.choice), (found.objective, found.choice), key=lambda pair: pair[0])
        objective, choice = best
        bound = min(max(solution.bound, found.bound), objective)
        gap = relative_gap(objective, bound)
        status: Status = "timeout" if not choice else "optimal" if gap <= OPTIMAL_GAP else "feasible"
        return Solution(choice, objective, bound, gap, status, solution.statistics)

    def _relaxed_choice(self, part: Problem) -> tuple[int, ...] | None:
        """An optimum of a problem without memory, or None if that would take an integer program."""
        run = _Run(part, self.deadline, self.gap_tolerance)
        relaxed = run.without_memory()
        return None if relaxed is None else relaxed.choice

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
                if not reason.startswith("memory"):
                    limit = self.problem.memory_limit
                    statistics["reason"] = f"memory: within the limit of {limit} bytes, {reason}"
            statistics |= {"usage_lower_bound_bytes": least, "memory_limit_bytes": self.problem.memory_limit}
        return Solution((), inf, inf, 0.0, "infeasible", statistics)

    def _statistics(self, reduced: Presolved) -> dict[str, Statistic]:
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

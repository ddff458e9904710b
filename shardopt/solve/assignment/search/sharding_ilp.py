"""The intra-operator solver: presolve, split into components, solve each by the method that suits
its size.

Objective and constraints follow Alpa's intra-operator ILP (arXiv 2201.12023, §4.2) with memory over
time; the formulation and the reductions do not. Every answer carries a proven bound, and the status
says what it proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.presolve.presolve import Presolved, presolve
from shardopt.solve.assignment.problem import (
    Problem,
    Solution,
    Statistic,
    Status,
    evaluate,
    relative_gap,
)
from shardopt.solve.assignment.search.component_solver import ComponentSolver, Progress, pairs_of
from shardopt.solve.assignment.search.components import split_components
from shardopt.solve.assignment.table_store import TableStore

__all__ = ["Progress", "improve", "solve", "solve_directly"]

# Kept of a time limit to put the answer together: a share of it, and of what presolve took, which
# feels the same load.
_RESERVE, _PRESOLVE_RESERVE = 0.04, 0.4


def solve(
    problem: Problem,
    limits: SearchLimits = NO_LIMITS,
    *,
    start: Sequence[int] | None = None,
    progress: Progress | None = None,
    store: TableStore | None = None,
    does_not_fit: bool = False,
) -> Solution:
    """Assign every node its strategy at least total cost within the memory limit.

    With a gap tolerance the search stops at a solution proven that close, relatively; its status
    is "feasible" unless it happens to be optimal. `start` is an assignment to begin with: if it is
    allowed, the answer is no worse.

    Infeasibility is an answer: `statistics["reason"]` names the node or the binding limit, and for
    memory `usage_lower_bound_bytes` stands beside `memory_limit_bytes`. Without limits small and
    middle components are proven, and large ones get a fixed budget of `work`, in table entries.
    With a time limit (seconds), the budget follows from it unless it is given;
    `statistics["time_limit_struck"]` is 1 when the clock ended the search rather than the budget.
    Unless it struck, equal arguments give equal choices.

    `store` is shared by problems with many equal tables, to presolve them faster. Who knows that
    the optimum without memory exceeds the limit says `does_not_fit`, and it is not sought. Raises
    ValueError for a `start` of the wrong shape."""
    run = _Run(problem, limits, start, progress, store=store)
    relaxed = run.without_memory() if problem.has_memory and not does_not_fit else None
    if relaxed is not None and _is_answer(problem, relaxed):
        return relaxed
    return run.complete(relaxed)


def solve_directly(
    problem: Problem, limits: SearchLimits = NO_LIMITS, *, store: TableStore | None = None
) -> Solution | None:
    """The optimum where presolve leaves only what enumeration or dynamic programming solve, and it
    fits the memory; else None."""
    solution = _Run(problem, limits, None, None, store=store).without_memory()
    return solution if solution is not None and _is_answer(problem, solution) else None


def improve(
    problem: Problem,
    choice: Sequence[int],
    limits: SearchLimits = NO_LIMITS,
    *,
    progress: Progress | None = None,
    store: TableStore | None = None,
    only_bound: bool = False,
) -> Solution:
    """Search from `choice` for a better assignment, without integer programs: quick and local, with
    a bound.

    The answer is never worse than `choice` if that is allowed. Budgets and statuses are those of
    `solve`. `store` is shared by problems with many equal tables, to presolve them faster. With
    `only_bound` the search ends when little is left that might raise the bound."""
    run = _Run(
        problem, limits, choice, progress, only_local=True, store=store, only_bound=only_bound
    )
    return run.complete(None)


@dataclass(eq=False)
class _Run:
    """One call of `solve`: its problem, its limits and what happened so far."""

    problem: Problem
    limits: SearchLimits
    start: Sequence[int] | None
    progress: Progress | None
    only_local: bool = False
    store: TableStore | None = None
    only_bound: bool = False
    presolve_seconds: float = 0.0
    start_cost: float = inf

    def __post_init__(self) -> None:
        limit = self.limits.seconds
        deadline = None if limit is None else monotonic() + (1 - _RESERVE) * limit
        self.components = ComponentSolver(
            deadline,
            self.limits.gap_tolerance,
            self.only_local,
            self.only_bound,
            counts_programs=self.limits.work is not None,
        )
        if self.start is not None:
            evaluation = evaluate(self.problem, self.start)
            self.start_cost = evaluation.objective if evaluation.feasible else inf

    def without_memory(self) -> Solution | None:
        """The optimum without memory, if direct methods find it: often it fits, else it is a
        bound."""
        reduced = self._presolve(self.problem.without_memory())
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced)
        components = split_components(reduced.problem)
        methods = []
        for _, part in components:
            if (method := self.components.direct_method(part)) is None:
                return None
            methods.append(method)
        return self._join(reduced, components, [method() for method in methods])

    def complete(self, relaxed: Solution | None) -> Solution:
        reduced = self._presolve(self.problem)
        if reduced.problem is None:
            return self._infeasible(reduced.reason, reduced, relaxed)
        if self.components.deadline is not None:
            self.components.deadline -= _PRESOLVE_RESERVE * self.presolve_seconds
        components = split_components(reduced.problem)
        start = (
            reduced.project(self.start)
            if self.start is not None and self.start_cost < inf
            else None
        )
        # Large components last: what comes before them is known when their progress is told.
        order = sorted(range(len(components)), key=lambda index: pairs_of(components[index][1]))
        all_pairs = max(sum(pairs_of(part) for _, part in components), 1)
        parts: dict[int, Solution] = {}
        for index in order:
            nodes, part = components[index]
            begin = None if start is None else tuple(start[node] for node in nodes)
            progress = (
                self._part_progress(reduced, list(parts.values())) if index == order[-1] else None
            )
            # By size: a sweep over a component touches all of its pairs.
            work = int(self.limits.budget * pairs_of(part) / all_pairs)
            parts[index] = self.components.solve(part, start=begin, work=work, progress=progress)
        return self._join(
            reduced, components, [parts[index] for index in range(len(components))], relaxed
        )

    def _part_progress(self, reduced: Presolved, others: list[Solution]) -> Progress | None:
        """The progress of the last component as that of the whole."""
        progress = self.progress
        if progress is None:
            return None
        objective = reduced.constant + sum(part.objective for part in others)
        bound = reduced.constant + sum(part.bound for part in others)
        return lambda cost, least: progress(objective + cost, bound + least)

    def _presolve(self, problem: Problem) -> Presolved:
        begin = monotonic()
        reduced = presolve(problem, self.components.deadline, self.store)
        self.presolve_seconds += monotonic() - begin
        return reduced

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
        if status == "timeout" and self.start_cost == inf:
            budget = "time limit" if statistics.get("time_limit_struck") else "budget of work"
            statistics["reason"] = f"the {budget} was spent before any assignment was found"
            return Solution(
                choice=(), objective=inf, bound=bound, gap=inf, status=status, statistics=statistics
            )
        full, objective = self._full_choice(reduced, components, parts)
        # Summed in another order, a proven bound may lie an ulp beside the objective it equals.
        bound = objective if status == "optimal" else min(bound, objective)
        gap = relative_gap(objective, bound)
        if status != "optimal":
            status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
        return Solution(full, objective, bound, gap, status, statistics)

    def _full_choice(
        self,
        reduced: Presolved,
        components: list[tuple[tuple[int, ...], Problem]],
        parts: list[Solution],
    ) -> tuple[tuple[int, ...], float]:
        """The parts' choices together, or the start if it is cheaper or a part has none; with its
        objective."""
        objective = inf
        full: tuple[int, ...] = ()
        if all(part.choice for part in parts):
            choice = {
                node: strategy
                for (nodes, _), part in zip(components, parts, strict=True)
                for node, strategy in zip(nodes, part.choice, strict=True)
            }
            full = reduced.restore([choice[node] for node in range(len(choice))])
            objective = evaluate(self.problem, full).objective
        if self.start is not None and self.start_cost < objective:
            return tuple(int(strategy) for strategy in self.start), self.start_cost
        return full, objective

    def _no_assignment(self, relaxed: Solution | None) -> str:
        limit = self.problem.memory_limit
        if relaxed is not None:
            return f"memory: every assignment exceeds the limit of {limit} bytes at some time"
        if self.problem.has_memory:
            return (
                f"no assignment avoids the forbidden pairs within the memory limit of {limit} bytes"
            )
        return "every assignment uses a forbidden pair"

    def _infeasible(
        self, reason: str, reduced: Presolved, relaxed: Solution | None = None
    ) -> Solution:
        statistics = self._statistics(reduced) | {"reason": reason}
        if self.problem.memory_limit is not None:
            least = reduced.smallest_peak
            if relaxed is not None:  # assignments exist, so the limit is what excludes them
                least = max(least, self.problem.memory_limit + 1)
                if not reason.startswith("memory"):
                    limit = self.problem.memory_limit
                    statistics["reason"] = f"memory: within the limit of {limit} bytes, {reason}"
            statistics |= {
                "usage_lower_bound_bytes": least,
                "memory_limit_bytes": self.problem.memory_limit,
            }
        return Solution(
            choice=(), objective=inf, bound=inf, gap=0.0, status="infeasible", statistics=statistics
        )

    def _statistics(self, reduced: Presolved) -> dict[str, Statistic]:
        residual = reduced.problem
        return {
            "nodes": self.problem.num_nodes,
            "edges": len(self.problem.edges),
            "residual_nodes": 0 if residual is None else residual.num_nodes,
            "residual_edges": 0 if residual is None else len(residual.edges),
            **self.components.counts,
            "presolve_seconds": self.presolve_seconds,
        }


def _is_answer(problem: Problem, relaxed: Solution) -> bool:
    """Whether the optimum without memory is that within it: where it fits, and where there is none,
    as what is infeasible without a limit is so with one."""
    return relaxed.status == "infeasible" or evaluate(problem, relaxed.choice).feasible


def _worst(statuses: list[Status]) -> Status:
    order: tuple[Status, ...] = ("optimal", "feasible", "timeout", "infeasible")
    return max(statuses, key=order.index, default="optimal")

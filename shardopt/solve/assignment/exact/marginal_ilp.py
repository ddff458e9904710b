"""Integer program for what presolve leaves: marginal linearisation, memory rows only where they are
violated.

A memory limit holds at every time, but a handful of the thousands of rows decide. So: solve the LP,
add the most violated times, spread out, and repeat; then the same with binary x, until an optimum
keeps the limit at all times."""

from __future__ import annotations

from itertools import islice
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.exact.marginal_model import Answer, Cuts, MarginalModel
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import (
    Problem,
    Solution,
    Statistic,
    Status,
    relative_gap,
)

# Few times ever bind: 9 to 18 rows were enough for problems of 20,000 to 40,000 times.
_ROWS_PER_ROUND = 25
_TIMES_BETWEEN_ROWS = 20  # neighbouring times have almost the same row

# A gap this small is rounding in the solver's objective; a larger one is reported as "feasible".
OPTIMAL_GAP = 1e-7


def solve_marginal(
    problem: Problem,
    limits: SearchLimits = NO_LIMITS,
    *,
    start: tuple[int, ...] | None = None,
) -> Solution:
    """Solve a problem whose nodes all have strategies, to optimality, to the relative gap
    tolerance, or until the limits.

    `start` is an assignment that keeps the limit; the answer is no worse. The statistics say what
    `work` it took, and whether the clock ended it (`late`): else the answer is deterministic."""
    return solve_model(MarginalModel(problem), limits, start)


def solve_model(
    model: MarginalModel,
    limits: SearchLimits,
    start: tuple[int, ...] | None,
    *,
    only_relaxed: bool = False,
    cutoff: float = inf,
) -> Solution:
    """As `solve_marginal`, for any model of it. With `only_relaxed` x stays fractional, and its
    largest columns are the assignment. What costs more than `cutoff` is not sought: without
    an assignment the status is "timeout" then, as there may be dearer ones."""
    search = _Search(model, limits, only_relaxed, cutoff)
    if start is not None:
        search.offer(start)
    return search.run()


class _Search:
    """The state of the rounds: cuts so far, the best assignment that keeps the limit, the best
    proven bound."""

    def __init__(
        self, model: MarginalModel, limits: SearchLimits, only_relaxed: bool, cutoff: float
    ) -> None:
        self.turns = (False,) if only_relaxed else (False, True)
        self.problem = model.problem
        self.gap_tolerance = limits.gap_tolerance
        self.model, self.cutoff = model, cutoff
        self.deadline = None if limits.seconds is None else monotonic() + limits.seconds
        self.most_work, self.work = limits.work, 0
        self.late = False
        self.cuts = Cuts(self._few_times())
        self.bound = self.model.constant  # each node and edge at its cheapest
        self.choice: tuple[int, ...] = ()
        self.objective = inf
        self.rounds = 0

    def run(self) -> Solution:
        # Rows of memory are found on linear programs, which are far cheaper; what a fractional x
        # keeps and a chosen one does not is added in the second turn.
        for integer in self.turns:
            while True:
                answer = self._solve(integer)
                if answer.status == "infeasible" and self._most == inf:
                    return self._solution("infeasible")
                if answer.x is not None:
                    self.offer(self._rounded(answer.x))
                if self._gap() <= max(OPTIMAL_GAP, self.gap_tolerance):
                    return self._solution("optimal" if self._gap() <= OPTIMAL_GAP else "feasible")
                if answer.status == "limit" or answer.x is None:
                    return self._solution("feasible" if self.choice else "timeout")
                if not self._add_cuts(answer.x, integer):
                    break
        # Solved to optimality within every limit, yet rounding left a gap worth telling.
        return self._solution("feasible" if self.choice else "timeout")

    def _solve(self, integer: bool) -> Answer:
        """Where a model can leave columns out, first among what costs little more than is proven:
        all that is left out costs more than that."""
        for room in self.model.rooms if integer else ():
            cutoff = self.bound + room * abs(self.bound)
            if cutoff >= self._most:
                break
            answer = self._answer(integer, cutoff)
            if answer.status == "limit" or answer.bound <= cutoff:
                return answer
            if answer.x is not None:
                self.offer(self._rounded(answer.x))
        return self._answer(integer, self._most)

    @property
    def _most(self) -> float:
        """What costs more need not be found."""
        return min(self.objective, self.cutoff)

    def _answer(self, integer: bool, cutoff: float) -> Answer:
        self.rounds += 1
        left = None if self.deadline is None else self.deadline - monotonic()
        self.late |= left is not None and left <= 0
        work = None if self.most_work is None else self.most_work - self.work
        if self.late or (work is not None and work <= 0):
            return Answer("limit", None, -inf)
        limits = SearchLimits(left, self.gap_tolerance, work)
        answer = self.model.solve(self.cuts, integer, limits, cutoff)
        self.late |= answer.late
        self.work += answer.work
        self.bound = max(self.bound, min(answer.bound, cutoff) if integer else answer.bound)
        return answer

    def _few_times(self) -> tuple[int, ...]:
        """All that matter, where they are no more than one round adds."""
        times = tuple(islice(self.model.find_binding_times(), _ROWS_PER_ROUND + 1))
        return times if len(times) <= _ROWS_PER_ROUND else ()

    def _gap(self) -> float:
        return relative_gap(self.objective, self.bound)

    def _chosen(self, x: np.ndarray) -> np.ndarray:
        """The largest column of each node."""
        starts = self.model.offsets[:-1]
        pieces = np.split(x, starts[1:])
        return starts + np.array([int(piece.argmax()) for piece in pieces])

    def _rounded(self, x: np.ndarray) -> tuple[int, ...]:
        return tuple((self._chosen(x) - self.model.offsets[:-1]).tolist())

    def offer(self, choice: tuple[int, ...]) -> None:
        """Keep the assignment if it is allowed and better."""
        objective, _, feasible = self.model.evaluate(choice)
        if feasible and objective < self.objective:
            self.choice, self.objective = choice, objective

    def _add_cuts(self, x: np.ndarray, integer: bool) -> bool:
        """Cut off x where it exceeds the limit; False if it does nowhere.

        A chosen x is checked exactly, in bytes. When its row is already there, it slipped through
        the solver's tolerance, and a cover (these strategies not all together) excludes it instead.
        """
        if self.problem.memory_limit is None:
            return False
        if not integer:
            times = self._spread(self.model.usage(x) - self.problem.memory_limit * (1 + 1e-6))
            self.cuts = Cuts(self.cuts.times + times, self.cuts.covers)
            return bool(times)
        columns = self._chosen(x)
        chosen = np.zeros(self.model.num_x, dtype=np.int64)
        chosen[columns] = 1
        excess = self.model.usage(chosen) - self.problem.memory_limit
        times = self._spread(excess)
        covers: tuple[tuple[int, ...], ...] = ()
        if not times and excess.max(initial=0) > 0:
            covers = (self.model.cover(int(excess.argmax()), columns),)
        self.cuts = Cuts(self.cuts.times + times, self.cuts.covers + covers)
        return bool(times or covers)

    def _spread(self, excess: np.ndarray) -> tuple[int, ...]:
        """The times with the largest positive excess that are not rows yet, some distance apart."""
        candidates = np.flatnonzero(excess > 0)
        candidates = candidates[np.argsort(-excess[candidates], kind="stable")]
        rows = set(self.cuts.times)
        times: list[int] = []
        for time in candidates.tolist():
            if len(times) == _ROWS_PER_ROUND:
                break
            if time not in rows and all(
                abs(time - other) >= _TIMES_BETWEEN_ROWS for other in times
            ):
                times.append(time)
        return tuple(times)

    def _solution(self, status: Status) -> Solution:
        statistics: dict[str, Statistic] = {
            "columns": self.model.num_columns,
            "rows": self.model.num_rows,
            "memory_rows": len(self.cuts.times),
            "cover_rows": len(self.cuts.covers),
            "rounds": self.rounds,
            "late": int(self.late),
            "work": self.work,
        }
        if status == "infeasible":
            return Solution(
                choice=(), objective=inf, bound=inf, gap=0.0, status=status, statistics=statistics
            )
        bound = min(self.bound, self.objective)
        return Solution(
            choice=self.choice,
            objective=self.objective,
            bound=bound,
            gap=self._gap(),
            status=status,
            statistics=statistics,
        )

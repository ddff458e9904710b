"""Large residual problems: prices and messages for a bound, forests for assignments, in turns,
within a budget of work.

1. Messages settle without prices. If their assignment keeps the limit, memory is no matter.
2. Prices ascend; now and then an assignment is made from the best prices so far and improved a
   little.
3. Starts from disturbed prices, each improved a little: they differ where one improvement alone
   would be stuck.
4. The best assignment is improved on neighbourhoods for the rest of the budget, with small shakes
   in between.

Work is counted in table entries touched, so that equal problems with equal budgets give equal
answers on any machine. A deadline (seconds) only ever cuts the sequence short. Importing this
module loads numba."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.large.flat_problem import flatten
from shardopt.solve.assignment.large.forest_search import ForestSearch
from shardopt.solve.assignment.large.price_ascent import PriceAscent
from shardopt.solve.assignment.problem import (
    Problem,
    Solution,
    evaluate,
    relative_gap,
    trivial_bound,
)

OPTIMAL_GAP = 1e-7  # a gap this small is rounding

_SEED = 1
_SETTLING, _SETTLING_SHARE = 60, 0.1  # sweeps without prices, and their share of the budget
_ASCENT_SHARE, _STARTS_SHARE = 0.50, 0.35  # of the budget; the rest is improvement
_PROBES = 8  # assignments made during the ascent
_STARTS = 10  # assignments made from disturbed prices
_POLISH_SHARE = 0.3  # of what a start may cost
_DISTURBANCE = 0.2  # of the logarithm of a price
_MOST_SWEEPS = 20_000  # a budget worth this many sweeps of all nodes is as much as helps
_FIRST_HEAT, _HOTTER, _COOLER = 1e-2, 1.3, 0.9  # of the mean cost of a node
_SHAKE, _SETTLE = 0.02, 2.0  # work of one shake and of the improvement after it, in sweeps
_CHUNK = 100_000_000  # work between looks at the clock: less than a second
_FIRST_PRICE = 1e-3  # holding one capacity throughout costs this share of the bound


def solve_large(
    problem: Problem,
    *,
    work: int,
    deadline: float | None = None,
    gap_tolerance: float = 0.0,
    start: tuple[int, ...] | None = None,
    progress: Callable[[float, float], None] | None = None,
    only_bound: bool = False,
) -> Solution:
    """Solve a presolved problem as well as `work` allows.

    It must have neither self nor parallel edges, and each strategy an allowed partner on every edge
    of its node. The answer is never worse than `start`, if that keeps the limit. `deadline` is in
    seconds of `monotonic`. With `only_bound` it ends when only assignments would become better."""
    run = _Run(problem, work, deadline, gap_tolerance, progress)
    if start is not None:
        run.search.offer(np.array(start, dtype=np.int64))
    if not run.late:
        run.settle()
    phases: tuple[Callable[[], None], ...] = (run.ascend, run.start_again, run.improve)
    if only_bound:
        # Without memory no prices move, and sweeps beyond those that settle raise the bound little.
        phases = (run.ascend,) if len(run.flat.capacity) else ()
    for phase in phases:
        if not run.done:
            phase()
    return run.solution()


class _Run:
    def __init__(
        self,
        problem: Problem,
        work: int,
        deadline: float | None,
        gap_tolerance: float,
        progress: Callable[[float, float], None] | None,
    ) -> None:
        self.problem, self.deadline, self.progress = problem, deadline, progress
        self.gap_tolerance = max(gap_tolerance, OPTIMAL_GAP)
        self.flat = flatten(problem)
        self.budget = min(work, _MOST_SWEEPS * self.flat.sweep_work)
        self.ascent, self.search = PriceAscent(self.flat), ForestSearch(self.flat, _SEED)
        self.ascent.bound = trivial_bound(problem)
        self.random = np.random.default_rng(_SEED)
        self.steps = self.starts = 0
        self.begin, self.hurried = monotonic(), False

    @property
    def late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    @property
    def spent(self) -> int:
        return self.ascent.work + self.search.work

    @property
    def closed(self) -> bool:
        return relative_gap(self.search.objective, self.ascent.bound) <= self.gap_tolerance

    @property
    def done(self) -> bool:
        return self.late or self.closed or self.spent >= self.budget

    def behind(self, share: float) -> bool:
        """Whether a share of the time has gone before that share of the work is done: then the next
        phase begins."""
        if self.deadline is None or monotonic() < self.begin + share * (self.deadline - self.begin):
            return False
        self.hurried = True
        return True

    def settle(self) -> None:
        for _ in range(_SETTLING):
            self.ascent.settle(1)
            if self.late or self.spent > _SETTLING_SHARE * self.budget:
                break
        self.ascent.decide()
        self._make(self.ascent.best_prices, 0)

    def ascend(self) -> None:
        begin = self.spent
        limit = int(_ASCENT_SHARE * self.budget)
        probe_every = max(limit // _PROBES, 1)
        # The first assignment early: its cost is the target that prices step towards.
        next_probe = begin + probe_every // _PROBES
        while (
            self.spent < limit
            and not self.done
            and not self.ascent.converged
            and not self.behind(_ASCENT_SHARE)
        ):
            self.ascent.advance(self.search.objective)
            self.steps += 1
            if self.spent >= next_probe:
                self.ascent.recall()
                self._make(self.ascent.best_prices, int(probe_every * _POLISH_SHARE))
                next_probe = self.spent + probe_every

    def start_again(self) -> None:
        """From prices disturbed by a smooth random factor over time; the messages stay those of the
        best bound."""
        limit = int((_ASCENT_SHARE + _STARTS_SHARE) * self.budget)
        each = max(int(_STARTS_SHARE * self.budget) // _STARTS, 1)
        share = _ASCENT_SHARE + _STARTS_SHARE
        while (
            self.spent < limit
            and not self.done
            and len(self.flat.capacity)
            and not self.behind(share)
        ):
            knots = self.random.normal(0.0, _DISTURBANCE, 2 + len(self.flat.capacity) // 64)
            factor = np.interp(
                np.linspace(0, len(knots) - 1, len(self.flat.capacity)),
                np.arange(len(knots)),
                knots,
            )
            prices = self.ascent.best_prices * np.exp(factor)
            self.ascent.recall(prices)
            self._make(prices, int(each * _POLISH_SHARE))

    def improve(self) -> None:
        """Shake a few neighbourhoods of the best assignment and improve again, ever harder until
        that stops paying."""
        flat, search = self.flat, self.search
        heat = _FIRST_HEAT * abs(search.objective) / max(flat.num_nodes, 1)
        shake, settle = max(int(_SHAKE * flat.sweep_work), 1), int(_SETTLE * flat.sweep_work)
        if search.choice is not None:
            search.polish(search.choice.copy(), self.ascent.best_prices, min(_CHUNK, settle))
        while not self.done and search.choice is not None:
            before = search.objective
            trial = search.polish(search.choice.copy(), self.ascent.best_prices, shake, heat)
            search.polish(trial, self.ascent.best_prices, min(settle, self.budget - self.spent))
            # What came back as cheap as before was shaken too little; what did not, too much.
            heat *= _HOTTER if search.cost(trial) <= before else _COOLER
            if search.objective < before:
                self._tell()

    def _make(self, prices: np.ndarray, polish: int) -> None:
        """An assignment from the messages' choice, improved with `polish` work."""
        self.starts += 1
        scale = _FIRST_PRICE * abs(self.ascent.bound) / max(float(self.flat.capacity.sum()), 1.0)
        choice = self.search.start_from(self.ascent.choice, prices, scale)
        end = self.search.work + polish
        while choice is not None and self.search.work < end and not self.late:
            choice = self.search.polish(choice, prices, min(_CHUNK, end - self.search.work))
        self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.search.objective, self.ascent.bound)

    def solution(self) -> Solution:
        late = int((self.late or self.hurried) and not self.closed)
        statistics = {
            "ascent_steps": self.steps,
            "starts": self.starts,
            "work": self.spent,
            "late": late,
        }
        bound = self.ascent.bound
        if self.search.choice is None:
            return Solution(
                choice=(),
                objective=inf,
                bound=bound,
                gap=inf,
                status="timeout",
                statistics=statistics,
            )
        choice = tuple(self.search.choice.tolist())
        objective = evaluate(self.problem, choice).objective
        bound = min(bound, objective)
        gap = relative_gap(objective, bound)
        return Solution(
            choice,
            objective,
            bound,
            gap,
            "optimal" if gap <= OPTIMAL_GAP else "feasible",
            statistics,
        )

"""Rounds of price splitting: solve for shares, move them, and keep the best bound and
assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf

import numpy as np

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, Statistic, relative_gap
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.shared_model import is_small, solve_exactly

# A problem of pairs, an assignment to begin with, and limits.
Solve = Callable[[Problem, Sequence[int] | None, SearchLimits], Solution]

# Rounds are over when so many of them left more than this share of the gap.
_PATIENCE, _PROGRESS = 4, 0.9
# Assignments sought near one, as long as each is better by this share.
_SEEKS, _SOUGHT = 6, 1e-5
# A start so close to the bound is better than what is found with some of the strategies, or with
# equal layers tied: for a GPT of 22B parameters the latter costs 3 to 12 % more.
_NEAR = 0.01
# Tables of shares that differ: shares that would need more are not tried.
_MAX_TABLE_BYTES = 1 << 30


@dataclass(eq=False)
class PriceRounds:
    """Rounds of one problem. `shares` are those of the best bound. Near the choices of `sought` and
    at the prices of `settled` nothing is left to be found. `from_near` is how to solve from a start
    that is close to the bound, if not as from others."""

    sharing: Sharing
    solve: Solve
    limits: SearchLimits
    begin: float
    work_share: float
    choice: tuple[int, ...] = ()
    objective: float = inf
    bound: float = -inf
    shares: list[np.ndarray] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    struck: bool = False
    late: bool = False
    programs: int = 0
    sought: set[tuple[int, ...]] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    from_near: Solve | None = None

    def run(self, shares: list[np.ndarray], most_rounds: int) -> None:
        """Rounds from these shares, until the gap is closed or little is gained."""
        self.shares = self.shares or shares
        next_shares: list[np.ndarray] | None = shares
        for _ in range(most_rounds):
            # Without a round there is no bound, however late it is.
            if next_shares is None or (self.gaps and self.is_over):
                break
            next_shares = self._round(self.affordable(next_shares))
        self.forget()

    def offer(self, solution: Solution) -> list[np.ndarray]:
        """Keep the assignment if it is the best; the arcs that it uses."""
        self.struck |= _is_struck(solution)
        return self.offer_choice(solution.choice)

    def offer_choice(self, choice: tuple[int, ...]) -> list[np.ndarray]:
        used = self.sharing.used(choice)
        objective = self.sharing.seconds(choice, used)
        if objective < self.objective:
            self.choice, self.objective = choice, objective
        return used

    def prove_rest(self) -> None:
        """Best assignment and bound of an integer program of the whole, where a gap is left and the
        problem is small."""
        if self.is_close or self.late or not is_small(self.sharing):
            return
        limits = replace(self.limits.since(self.begin), work=self.limits.work)
        solution = solve_exactly(self.sharing, limits, self.choice or None)
        self.programs += 1
        self.bound = max(self.bound, solution.bound)
        if solution.choice:
            self.offer_choice(solution.choice)
        self.struck |= _is_struck(solution)

    def seek(self, choice: tuple[int, ...]) -> None:
        """Better assignments near one, as long as they are: who joins the users of an arc pays as
        much as they do, who opens another pays all of it."""
        for _ in range(_SEEKS):
            before = self.objective
            near = self.sharing.joining_shares(self.sharing.used(choice))
            prices = _digest(near)
            # Where a solve came within its gap, one from elsewhere would end there, too.
            if self.is_over or prices in self.settled:
                return
            if self.sharing.table_bytes(near) > _MAX_TABLE_BYTES:
                return
            solution = self.solved(self.sharing.priced(near), choice)
            self.forget()
            if not solution.choice:
                return
            if solution.gap <= self._gap_of_solves:
                self.settled.add(prices)
            self.offer(solution)
            if self.objective > (1 - _SOUGHT) * before:
                return
            choice = solution.choice

    def solved(self, problem: Problem, start: Sequence[int] | None) -> Solution:
        work = int(self.work_share * self.limits.budget)
        limits = replace(self.limits, work=work, gap_tolerance=self._gap_of_solves)
        limits = limits.since(self.begin)
        solve = self.from_near if self.from_near and self._is_near(start) else self.solve
        solution = solve(problem, start, limits)
        # Between rounds as within a solve.
        self.late |= limits.seconds == 0.0 or _is_struck(solution)
        self.struck |= self.late
        return solution

    def judged(self, first: Solution, statistics: dict[str, Statistic]) -> Solution:
        """The best assignment with the best bound."""
        bound = min(self.bound, self.objective)
        gap = relative_gap(self.objective, bound)
        statistics["price_rounds"] = len(self.gaps)
        statistics["shared_integer_programs"] = self.programs
        if self.struck:
            statistics["time_limit_struck"] = 1
        return replace(
            first,
            choice=self.choice,
            objective=self.objective,
            bound=bound,
            gap=gap,
            status="optimal" if gap <= OPTIMAL_GAP else "feasible",
            statistics=statistics,
        )

    @property
    def tolerance(self) -> float:
        return max(self.limits.gap_tolerance, OPTIMAL_GAP)

    def _is_near(self, start: Sequence[int] | None) -> bool:
        return start is not None and (1 - _NEAR) * self.sharing.seconds(start) <= self.bound

    @property
    def _gap_of_solves(self) -> float:
        # The other half is for the prices.
        return self.limits.gap_tolerance / 2

    @property
    def deadline(self) -> float | None:
        """In seconds of `monotonic`."""
        seconds = self.limits.seconds
        return None if seconds is None else self.begin + seconds

    @property
    def is_over(self) -> bool:
        gaps = self.gaps
        return self.late or self.is_close or stalls(gaps)

    @property
    def is_close(self) -> bool:
        gap = relative_gap(self.objective, self.bound)
        return gap <= self.tolerance

    def forget(self) -> None:
        """The tables of prices are not needed again."""
        for batch in self.sharing.batches:
            batch.arcs.forget()

    def affordable(self, shares: list[np.ndarray]) -> list[np.ndarray]:
        """The shares, or equal ones, which need no more tables than the problem has."""
        if self.sharing.table_bytes(shares) <= _MAX_TABLE_BYTES:
            return shares
        return self.sharing.equal_shares()

    def _round(self, shares: list[np.ndarray]) -> list[np.ndarray] | None:
        """Solve for these shares; the next ones, or None where no step raises the bound."""
        sharing = self.sharing
        solution = self.solved(sharing.priced(shares), self.choice)
        if not solution.choice:  # a clock struck before there was any
            return None
        if solution.bound > self.bound:
            self.bound, self.shares = solution.bound, shares
        used = self.offer(solution)
        if not (self.is_close or self.late):
            self._look_near(solution.choice, used)
        self.gaps.append(relative_gap(self.objective, self.bound))
        self.forget()
        return moved_shares(sharing, shares, used, self.objective - solution.bound)

    def _look_near(self, choice: tuple[int, ...], used: list[np.ndarray]) -> None:
        """An assignment that joins the users of arcs, sought once near each."""
        near = self.sharing.joining_shares(used)
        if choice in self.sought or self.sharing.table_bytes(near) > _MAX_TABLE_BYTES:
            return
        self.sought.add(choice)
        closer = self.solved(self.sharing.priced(near), choice)
        if closer.choice:
            self.offer(closer)


def stalls(gaps: Sequence[float]) -> bool:
    """Whether the last rounds gained little."""
    return len(gaps) > _PATIENCE and gaps[-1] > _PROGRESS * gaps[-1 - _PATIENCE]


def moved_shares(
    sharing: Sharing, shares: Sequence[np.ndarray], used: Sequence[np.ndarray], slack: float
) -> list[np.ndarray] | None:
    """The shares after a step towards a better bound; None where none is to be had from this
    assignment, as its users pay for all that they use. `used` is the use of the assignment of least
    cost for `shares`, and `slack` how far its cost is below the least true cost known."""
    slopes, length = [], 0.0
    for batch, each in zip(sharing.batches, used, strict=True):
        usable = batch.arcs.usable
        mean = each.sum(axis=1, keepdims=True) / np.maximum(usable.sum(axis=0), 1)
        slopes.append(np.where(usable, each - mean, 0.0))
        length += float(((slopes[-1] ** 2).sum(axis=1) @ batch.arcs.seconds).sum())
    if length == 0.0:
        return None
    step = max(slack, 0.0) / length
    moved = [
        _project(each + step * slope, batch.arcs.usable)
        for batch, each, slope in zip(sharing.batches, shares, slopes, strict=True)
    ]
    return None if all(map(np.array_equal, moved, shares)) else moved


def _digest(prices: Sequence[np.ndarray]) -> bytes:
    digest = blake2b(digest_size=16)
    for each in prices:
        digest.update(np.ascontiguousarray(each).data)
    return digest.digest()


def _is_struck(solution: Solution) -> bool:
    return bool(solution.statistics.get("time_limit_struck"))


def _project(shares: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """The nearest shares that add up to 1 for each arc, of those who can use it: `[G, R, A]`.

    Projection onto the simplex by sorting (Held, Wolfe and Crowder, Validation of subgradient
    optimization, 1974)."""
    masked = np.where(usable, shares, -inf)
    ordered = -np.sort(-masked, axis=1)
    finite = np.where(np.isfinite(ordered), ordered, 0.0)
    excess = (np.cumsum(finite, axis=1) - 1.0) / np.arange(1, shares.shape[1] + 1)[:, None]
    kept = np.maximum((ordered > excess).sum(axis=1, keepdims=True), 1)
    level = np.take_along_axis(excess, kept - 1, axis=1)
    return np.where(usable, np.maximum(shares - level, 0.0), 0.0)

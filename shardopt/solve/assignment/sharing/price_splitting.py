"""Least cost of a problem with shared edges: prices that the readers of a value split.

Lagrangian decomposition. For given shares the problem is one of pairs; its bound is one for the
true costs, and its solution an assignment whose true cost is known. Where a reader uses an arc that
others pay for, its share grows, and it shrinks where the reader is charged for what it does not
use: a supergradient step of Polyak's length (Minimization of unsmooth functionals, 1969), each arc
weighted by its cost, and a projection back to shares that add up to 1. The first shares are those
that make the best assignment known cost what it truly does, so one more solve often proves it.

An assignment for shares that are far off lets each reader use arcs for a small part of their price.
So better assignments are sought near it with other prices, which no bound follows from: who joins
the users of an arc pays as much as they do, who opens another pays all of it.

Where layers repeat and one round does not close the gap, their nodes are tied. The rounds of the
small problem cost a tenth, and end with an assignment and with shares from which few rounds of the
whole are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP
from shardopt.solve.assignment.problem import Problem, Solution, Statistic, relative_gap
from shardopt.solve.assignment.search.limits import SearchLimits
from shardopt.solve.assignment.search.repeated_layers import is_large
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.search.symmetry import tie_repeated
from shardopt.solve.assignment.sharing.shared_edges import Sharing, TiedSharing

# A problem of pairs, an assignment to begin with, and limits.
Solve = Callable[[Problem, Sequence[int] | None, SearchLimits], Solution]

# Of the models tried, the hardest small one takes 13 rounds; of large ones, tied, the gap goes on
# falling for up to 30.
_ROUNDS, _TIED_ROUNDS = 32, 40
# Behind tied rounds: what is left of the gap then is that of the solves.
_FREED_ROUNDS = 2
# Rounds are over when so many of them left more than this share of the gap.
_PATIENCE, _PROGRESS = 6, 0.9
# Work of each solve, as a share of the whole budget.
_SHARE, _TIED_SHARE = 1 / 32, 1 / 128
# Tables of shares that differ: shares that would need more are not tried.
_MAX_TABLE_BYTES = 1 << 30


def solve_shared(
    sharing: Sharing,
    solve: Solve,
    limits: SearchLimits,
    start: Sequence[int] | None = None,
) -> Solution:
    """Least true cost, memory aside. `solve` may be as good as it likes: its bounds are kept. A
    limit of seconds is one for the first solve, in which each reader pays all of its way, and once
    more for all others.

    Objective, bound, gap and status are those of the true costs. The statistics are those of the
    first solve with its objective (`pair_objective`) and the number of `price_rounds`
    (`tied_price_rounds`, with layers tied); `time_limit_struck` is 1 when a clock ended one of the
    solves."""
    first = solve(sharing.problem, start, limits)
    if not sharing.groups or not first.choice:
        return first
    tied = tie_repeated(sharing.problem) if is_large(sharing.problem) else None
    ascent = _Ascent(sharing, solve, limits, monotonic(), _SHARE)
    shares = sharing.fair_shares(ascent.offer(first))
    ascent.run(shares, _ROUNDS if tied is None else 1)
    statistics = dict(first.statistics) | {"pair_objective": first.objective}
    if tied is not None and not ascent.is_over:
        small = sharing.tied(tied.colours)
        lower = _tied_ascent(small, limits, ascent.begin)
        if lower is not None:
            ascent.offer_choice(small.spread(lower.choice))
            ascent.run(small.spread_shares(lower.shares, sharing), _FREED_ROUNDS)
            statistics["tied_price_rounds"] = len(lower.gaps)
    return ascent.judged(first, statistics)


def _tied_ascent(small: TiedSharing, limits: SearchLimits, begin: float) -> _Ascent | None:
    """The rounds of the tied problem; None where it has no assignment."""

    def local(problem: Problem, start: Sequence[int] | None, limits: SearchLimits) -> Solution:
        # The first strategy of every node, which runs it in full everywhere, is as good a beginning
        # as any.
        return improve(problem, start or (0,) * problem.num_nodes, limits)

    ascent = _Ascent(small.sharing, local, limits, begin, _TIED_SHARE)
    first = ascent.solved(small.sharing.problem, None)
    if not first.choice:
        return None
    ascent.run(small.sharing.fair_shares(ascent.offer(first)), _TIED_ROUNDS)
    return ascent


@dataclass(eq=False)
class _Ascent:
    """Rounds of one problem. `shares` are those of the best bound."""

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

    def run(self, shares: list[np.ndarray], most_rounds: int) -> None:
        """Rounds from these shares, until the gap is closed or little is gained."""
        self.shares = self.shares or shares
        next_shares: list[np.ndarray] | None = shares
        for _ in range(most_rounds):
            # Without a round there is no bound, however late it is.
            if next_shares is None or (self.gaps and self.is_over):
                break
            next_shares = self._round(self._affordable(next_shares))
        for batch in self.sharing.batches:
            batch.arcs.forget()

    def offer(self, solution: Solution) -> list[np.ndarray]:
        """Keep the assignment if it is the best; the arcs that it uses."""
        self.struck |= _is_struck(solution)
        return self.offer_choice(solution.choice)

    def offer_choice(self, choice: tuple[int, ...]) -> list[np.ndarray]:
        objective = self.sharing.seconds(choice)
        if objective < self.objective:
            self.choice, self.objective = choice, objective
        return self.sharing.used(choice)

    def solved(self, problem: Problem, start: Sequence[int] | None) -> Solution:
        # Half of the gap for the solve, half for the prices.
        work, gap = int(self.work_share * self.limits.budget), self.limits.gap_tolerance / 2
        limits = replace(self.limits, work=work, gap_tolerance=gap).since(self.begin)
        solution = self.solve(problem, start, limits)
        # Between rounds as within a solve.
        self.late |= limits.seconds == 0.0 or _is_struck(solution)
        self.struck |= self.late
        return solution

    def judged(self, first: Solution, statistics: dict[str, Statistic]) -> Solution:
        """The best assignment with the best bound."""
        bound = min(self.bound, self.objective)
        gap = relative_gap(self.objective, bound)
        statistics["price_rounds"] = len(self.gaps)
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
    def is_over(self) -> bool:
        gaps = self.gaps
        stalls = len(gaps) > _PATIENCE and gaps[-1] > _PROGRESS * gaps[-1 - _PATIENCE]
        return self.late or self._is_close or stalls

    @property
    def _is_close(self) -> bool:
        gap = relative_gap(self.objective, self.bound)
        return gap <= max(self.limits.gap_tolerance, OPTIMAL_GAP)

    def _affordable(self, shares: list[np.ndarray]) -> list[np.ndarray]:
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
        near = sharing.joining_shares(used)
        if not (self._is_close or self.late) and sharing.table_bytes(near) <= _MAX_TABLE_BYTES:
            closer = self.solved(sharing.priced(near), solution.choice)
            if closer.choice:
                self.offer(closer)
        self.gaps.append(relative_gap(self.objective, self.bound))
        for batch in sharing.batches:
            batch.arcs.forget()
        return moved_shares(sharing, shares, used, self.objective - solution.bound)


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

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

A round takes the time of a solve. For large problems it is messages and shares that move together
(`share_ascent`), in rounds that take a hundredth of that: those of the problem with equal layers
tied, whose shares are spread, then those of the whole. Beside them, on a core of their own,
assignments are sought for the shares found, with equal layers tied, then near the best with every
node free."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.assignment.large.compilation import compiled_by
from shardopt.solve.assignment.problem import Problem, Solution
from shardopt.solve.assignment.search.limits import SearchLimits
from shardopt.solve.assignment.search.repeated_layers import is_large
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.search.symmetry import tie_repeated
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.shared_edges import Sharing, TiedSharing

if TYPE_CHECKING:
    from shardopt.solve.assignment.sharing.share_ascent import ShareAscent

# Of the models tried, the hardest small one takes 13 rounds.
_ROUNDS = 32
# Work of each solve, as a share of the whole budget.
_SHARE, _TIED_SHARE = 1 / 32, 1 / 128
# Rounds of messages and shares: at first, where little is shared and few are enough; with layers
# tied; and of the whole. No more than this share of the budget.
_GLANCE, _TIED_ROUNDS, _WHOLE_ROUNDS, _ROUNDS_SHARE = 8, 400, 160, 1 / 8


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
    first solve with its objective (`pair_objective`), the number of `price_rounds`, and for large
    problems those of messages and shares (`tied_share_rounds`, `share_rounds`);
    `time_limit_struck` is 1 when a clock ended one of them."""
    first = solve(sharing.problem, start, limits)
    if not sharing.groups or not first.choice:
        return first
    rounds = PriceRounds(sharing, solve, limits, monotonic(), _SHARE)
    shares = sharing.fair_shares(rounds.offer(first))
    statistics = dict(first.statistics) | {"pair_objective": first.objective}
    if is_large(sharing.problem) and _compiled(rounds):
        large = _Large(rounds)
        large.run()
        statistics |= {
            "share_rounds": large.glanced + large.whole.rounds,
            "tied_share_rounds": large.tied_rounds,
        }
    else:
        rounds.run(shares, _ROUNDS)
    return rounds.judged(first, statistics)


def _compiled(rounds: PriceRounds) -> bool:
    return find_spec("numba") is not None and compiled_by(rounds.deadline)


class _Large:
    """The search of a large problem: `rounds` keep its best bound and assignment."""

    def __init__(self, rounds: PriceRounds) -> None:
        self.rounds, self.sharing = rounds, rounds.sharing
        self.tied_rounds = 0
        self.whole: ShareAscent = self._ascent(self.sharing, self.sharing.equal_shares())
        self.glanced = 0

    def run(self) -> None:
        sharing = self.sharing
        self._climb(self.whole, _GLANCE)
        if self.rounds.is_over:
            return
        tied = tie_repeated(sharing.problem)
        if tied is None:
            self._climb_and_seek(self.whole.shares)
            return
        small = sharing.tied(tied.colours)
        shares = small.spread_shares(self._tied_shares(small), sharing)
        self.glanced, self.whole = self.whole.rounds, self._ascent(sharing, shares)
        self._climb_and_seek(shares)

    def _climb_and_seek(self, shares: list[np.ndarray]) -> None:
        """Bounds on one core, assignments on another; then bounds that know these."""
        with ThreadPoolExecutor(1) as other_core:
            # What is sought must not depend on how far the bound has come meanwhile.
            climbing = other_core.submit(self._advance, self.whole, _WHOLE_ROUNDS // 2)
            self._seek(shares)
            self._keep(self.whole, climbing.result())
        if not self.rounds.is_over:
            self.whole.target = self.rounds.objective
            self._climb(self.whole, _WHOLE_ROUNDS // 2)

    def _seek(self, shares: list[np.ndarray]) -> None:
        """Assignments near that of least cost for the shares, and near the best."""
        rounds = self.rounds
        best = rounds.choice
        solution = rounds.solved(self.sharing.priced(rounds.affordable(shares)), best)
        if solution.choice:
            rounds.offer(solution)
            rounds.seek(solution.choice)
        rounds.seek(best)

    def _tied_shares(self, small: TiedSharing) -> list[np.ndarray]:
        """The best shares of the tied problem; its best assignment is offered."""
        rounds = self.rounds
        ascent = self._ascent(small.sharing, small.sharing.equal_shares())
        rounds.struck |= self._advance(ascent, _TIED_ROUNDS)
        self.tied_rounds = ascent.rounds
        lower = PriceRounds(small.sharing, _improved, rounds.limits, rounds.begin, _TIED_SHARE)
        shares = ascent.shares
        solution = lower.solved(small.sharing.priced(lower.affordable(shares)), None)
        for choice in (ascent.decide(), solution.choice):
            if choice:
                lower.offer_choice(choice)
                lower.seek(choice)
        if lower.choice:
            rounds.offer_choice(small.spread(lower.choice))
        return shares

    def _ascent(self, sharing: Sharing, shares: list[np.ndarray]) -> ShareAscent:
        from shardopt.solve.assignment.sharing.share_ascent import ShareAscent

        return ShareAscent(sharing, shares, self.rounds.objective)

    def _climb(self, ascent: ShareAscent, most_rounds: int) -> None:
        self._keep(ascent, self._advance(ascent, most_rounds))

    def _advance(self, ascent: ShareAscent, most_rounds: int) -> bool:
        """Whether a clock ended the rounds."""
        rounds = self.rounds
        most = min(most_rounds, int(_ROUNDS_SHARE * rounds.limits.budget) // ascent.round_work)
        return ascent.run(most, rounds.tolerance / 2, rounds.deadline)

    def _keep(self, ascent: ShareAscent, late: bool) -> None:
        self.rounds.struck |= late
        self.rounds.bound = max(self.rounds.bound, ascent.bound)


def _improved(problem: Problem, start: Sequence[int] | None, limits: SearchLimits) -> Solution:
    # The first strategy of every node, which runs it in full everywhere, is as good a beginning as
    # any.
    return improve(problem, start or (0,) * problem.num_nodes, limits)

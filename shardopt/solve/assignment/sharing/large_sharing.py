"""Least cost of a large problem with shared edges.

Rounds of solves (`price_splitting`) would take minutes. Instead messages and shares move together
(`share_ascent`), in rounds that take a hundredth of a solve, and the search ends as soon as bound
and assignment are close enough:

1. Where layers repeat, the problem with equal layers tied gives the first assignment, and a few
   rounds of the whole a bound: enough where little is shared.
2. Rounds of the tied problem. Assignments are sought for its shares; the shares are spread, and
   rounds of the whole begin from there.
3. The problem in which each reader pays for itself is solved with every node free, and assignments
   are sought for the shares and near the best. Beside that rounds go on, on a core of their own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, Statistic, evaluate
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.search.symmetry import TiedProblem, tie_repeated
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.share_ascent import ShareAscent
from shardopt.solve.assignment.sharing.shared_edges import Sharing, TiedSharing

# Work of each solve, as a share of the whole budget.
_SHARE, _TIED_SHARE, _FIRST_SHARE = 1 / 32, 1 / 128, 0.05
# Rounds of messages and shares: at first, with layers tied, and of the whole, twice. No more than
# this share of the budget.
_GLANCE, _TIED_ROUNDS, _WHOLE_ROUNDS, _ROUNDS_SHARE = 8, 400, 80, 1 / 8


def solve_large_shared(
    sharing: Sharing, solve: Solve, limits: SearchLimits, start: Sequence[int] | None
) -> Solution:
    """As `price_splitting.solve_shared`; the statistics have the rounds of messages and shares
    (`share_rounds`, `tied_share_rounds`)."""
    search = _Search(sharing, solve, limits)
    if start is not None:
        search.rounds.offer_choice(tuple(start))
    tied = tie_repeated(sharing.problem)
    if tied is not None:
        first = search.first(tied)
        if first is not None and search.tied(sharing.tied(tied.colours)):
            return search.judged(first)
    first = solve(sharing.problem, search.rounds.choice or start, limits)
    if not first.choice:
        return first
    search.free(first)
    return search.judged(first)


class _Search:
    """`rounds` keep the best bound and assignment; `statistics` are those of the rounds of
    messages and shares. `shares` are the best known."""

    def __init__(self, sharing: Sharing, solve: Solve, limits: SearchLimits) -> None:
        self.sharing = sharing
        self.rounds = PriceRounds(sharing, solve, limits, monotonic(), _SHARE)
        self.statistics: dict[str, Statistic] = {"share_rounds": 0, "tied_share_rounds": 0}
        self.shares = sharing.equal_shares()
        self.whole: ShareAscent | None = None

    def first(self, tied: TiedProblem) -> Solution | None:
        """The solution of the tied problem in which each reader pays for itself."""
        rounds = self.rounds
        limits = rounds.limits.since(rounds.begin)
        work = int(_FIRST_SHARE * limits.budget)
        solution = _improved(tied.problem, None, replace(limits, work=work))
        if not solution.choice:
            return None
        choice = tied.spread(solution.choice)
        rounds.offer(replace(solution, choice=choice))
        objective = evaluate(self.sharing.problem, choice).objective
        sizes = {"nodes": len(choice), "edges": len(self.sharing.problem.edges)}
        sizes |= {"tied_nodes": tied.problem.num_nodes, "tied_rounds": tied.rounds}
        return replace(solution, objective=objective, statistics=dict(solution.statistics) | sizes)

    def tied(self, small: TiedSharing) -> bool:
        """Bounds of the whole at first and from the shares of the tied problem; whether these
        suffice."""
        rounds = self.rounds
        self.whole = ShareAscent(self.sharing, self.shares, rounds.objective)
        self._climb(self.whole, _GLANCE)
        if rounds.is_over:
            return True
        self.shares = small.spread_shares(self._tied_shares(small), self.sharing)
        self.whole.restart(self.shares, rounds.objective)
        if not rounds.is_over:
            self._climb(self.whole, _WHOLE_ROUNDS)
        return rounds.is_over

    def free(self, first: Solution) -> None:
        """Bounds on one core, assignments on another; then bounds that know these."""
        rounds = self.rounds
        rounds.begin = monotonic()
        rounds.offer(first)
        whole = self.whole or ShareAscent(self.sharing, self.shares, rounds.objective)
        whole.target = rounds.objective
        with ThreadPoolExecutor(1) as other_core:
            # What is sought must not depend on how far the bound has come meanwhile.
            climbing = other_core.submit(self._advance, whole, _WHOLE_ROUNDS)
            self._seek()
            self._keep(whole, climbing.result())

    def judged(self, first: Solution) -> Solution:
        pairs = {"pair_objective": first.objective}
        return self.rounds.judged(first, dict(first.statistics) | pairs | self.statistics)

    def _seek(self) -> None:
        """Assignments near that of least cost for the shares, and near the best."""
        rounds = self.rounds
        best = rounds.choice
        solution = rounds.solved(self.sharing.priced(rounds.affordable(self.shares)), best)
        if solution.choice:
            rounds.offer(solution)
            rounds.seek(solution.choice)
        rounds.seek(best)

    def _tied_shares(self, small: TiedSharing) -> list[np.ndarray]:
        """The best shares of the tied problem; its best assignment is offered."""
        rounds, sharing = self.rounds, small.sharing
        ascent = ShareAscent(sharing, sharing.equal_shares(), rounds.objective)
        rounds.struck |= self._advance(ascent, _TIED_ROUNDS)
        self.statistics["tied_share_rounds"] = ascent.rounds
        lower = PriceRounds(sharing, _improved, rounds.limits, rounds.begin, _TIED_SHARE)
        shares = ascent.shares
        solution = lower.solved(sharing.priced(lower.affordable(shares)), None)
        for choice in (ascent.decide(), solution.choice):
            if choice:
                lower.offer_choice(choice)
                lower.seek(choice)
        if lower.objective < inf:
            rounds.offer_choice(small.spread(lower.choice))
        return shares

    def _climb(self, ascent: ShareAscent, most_rounds: int) -> None:
        self._keep(ascent, self._advance(ascent, most_rounds))

    def _advance(self, ascent: ShareAscent, most_rounds: int) -> bool:
        """Whether a clock ended the rounds."""
        rounds = self.rounds
        most = min(most_rounds, int(_ROUNDS_SHARE * rounds.limits.budget) // ascent.round_work)
        return ascent.run(most, rounds.tolerance / 2, rounds.deadline)

    def _keep(self, ascent: ShareAscent, late: bool) -> None:
        self.statistics["share_rounds"] = int(str(self.statistics["share_rounds"])) + ascent.rounds
        ascent.rounds = 0
        self.rounds.struck |= late
        self.rounds.bound = max(self.rounds.bound, ascent.bound)


def _improved(problem: Problem, start: Sequence[int] | None, limits: SearchLimits) -> Solution:
    # The first strategy of every node, which runs it in full everywhere, is as good a beginning as
    # any.
    return improve(problem, start or (0,) * problem.num_nodes, limits)

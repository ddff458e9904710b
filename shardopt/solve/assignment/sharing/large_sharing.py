"""Least cost of a problem with many shared edges.

Rounds of solves (`price_splitting`) would take minutes. Instead messages and shares move together
(`share_ascent`), in rounds that take a hundredth of a solve, and the search ends as soon as bound
and assignment are close enough:

1. Where layers repeat, messages and shares of the problem with equal layers tied give a bound of
   it, and shares near which assignments are sought; where these are far from the bound, also near
   that in which each reader pays for itself.
2. The messages are spread over the whole at these shares, and a few sweeps give a bound of that:
   enough in most cases. Rounds of the whole follow where it is not.
3. With every node free, assignments are sought near what the messages decide and near that of least
   cost for the shares, in turns; what is close to the bound is improved as it is. Beside that
   rounds go on, on a core of their own. Where nothing repeats, the problem in which each reader
   pays for itself gives the first assignment.
4. A gap that is left is closed by an integer program unless the problem is too large."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, Statistic, evaluate, relative_gap
from shardopt.solve.assignment.search.sharding_ilp import improve, solve
from shardopt.solve.assignment.search.symmetry import TiedProblem, tie_repeated
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.share_ascent import ShareAscent, SpreadMessages
from shardopt.solve.assignment.sharing.shared_edges import Sharing, TiedSharing
from shardopt.solve.assignment.table_store import TableStore

# Work of each solve, as a share of the whole budget. Where layers are tied more costs less: bounds
# come close enough before other starts are tried.
_SHARE, _TIED_SHARE, _FIRST_SHARE = 1 / 32, 1 / 8, 0.05
# Rounds of messages and shares: with layers tied, and of the whole, twice. No more than this share
# of the budget.
_TIED_ROUNDS, _WHOLE_ROUNDS, _ROUNDS_SHARE = 400, 80, 1 / 8
# How close bounds should come, in parts of the gap: rounds of the tied problem cost little, and the
# better its shares, the better the assignments near them.
_TIED_CLOSE, _CLOSE = 1 / 8, 1 / 2
# Turns with every node free, as long as each is better by this share. Of thirteen programs the
# second made the one better whose gap was above this, and none of the others.
_TURNS, _BETTER, _WIDE = 2, 1e-3, 0.01


def solve_large_shared(
    sharing: Sharing, solve: Solve, limits: SearchLimits, start: Sequence[int] | None
) -> Solution:
    """As `price_splitting.solve_shared`; the statistics have the rounds of messages and shares
    (`share_rounds`, `tied_share_rounds`), and those of a first solve only where there was one."""
    search = _Search(sharing, solve, limits)
    if start is not None:
        search.rounds.offer_choice(tuple(start))
    tied = tie_repeated(sharing.problem)
    if tied is None or not search.tied(tied):
        search.first = solve(sharing.problem, search.rounds.choice or start, limits)
        if not search.first.choice:
            return search.first
        search.rounds.offer(search.first)
    search.free()
    search.rounds.prove_rest()
    return search.judged()


def bound_large_shared(
    sharing: Sharing, limits: SearchLimits, start: Sequence[int]
) -> tuple[float, tuple[int, ...]]:
    """As `price_splitting.bound_shared`: the first two steps."""
    search = _Search(sharing, _improved, limits)
    search.rounds.offer_choice(tuple(start))
    tied = tie_repeated(sharing.problem)
    if tied is not None:
        search.tied(tied)
    return search.rounds.bound, search.rounds.choice


class _Search:
    """`rounds` keep the best bound and assignment; `statistics` are those of the rounds of
    messages and shares, in `whole` for every node free. `first` is the solution in which each
    reader pays for itself, where that was sought."""

    def __init__(self, sharing: Sharing, solve: Solve, limits: SearchLimits) -> None:
        self.sharing = sharing
        self.store = TableStore()
        from_near = partial(_from_start, store=self.store)
        self.rounds = PriceRounds(sharing, solve, limits, monotonic(), _SHARE, from_near=from_near)
        self.statistics: dict[str, Statistic] = {"share_rounds": 0, "tied_share_rounds": 0}
        self.first: Solution | None = None
        self.whole: ShareAscent | None = None

    def tied(self, tied: TiedProblem) -> bool:
        """Assignments and a bound of the whole from the tied problem; whether there are any."""
        rounds = self.rounds
        if rounds.objective == inf and not self._offer_first(tied):
            return False
        small = self.sharing.tied(tied.colours)
        few = self._few(tied, small)
        spread = SpreadMessages(few, small, rounds.objective)
        spread.settle(_CLOSE * rounds.tolerance)
        rounds.bound = max(rounds.bound, spread.bound)
        if not rounds.is_over:
            self.whole = spread.freed()
            self._climb(self.whole, _WHOLE_ROUNDS, 1.0)
        return True

    def free(self) -> None:
        """Bounds on one core, assignments on another, in turns as long as these get better."""
        rounds = self.rounds
        for _ in range(_TURNS):
            if rounds.is_over:
                return
            before, whole = rounds.objective, self._whole()
            whole.target = before
            # What is sought must not depend on how far the bound has come meanwhile.
            decided, shares = whole.decide(), whole.shares
            with ThreadPoolExecutor(1) as other_core:
                climbing = other_core.submit(self._advance, whole, _WHOLE_ROUNDS, _CLOSE)
                self._seek(decided, shares)
                self._keep(whole, climbing.result())
            gap = relative_gap(rounds.objective, rounds.bound)
            if gap <= _WIDE or rounds.objective > (1 - _BETTER) * before:
                return

    def judged(self) -> Solution:
        """The best assignment, with the least that one was seen to cost where each reader pays for
        itself."""
        problem, choice, first = self.sharing.problem, self.rounds.choice, self.first
        alone = evaluate(problem, choice).objective
        if first is None:
            sizes = {"nodes": problem.num_nodes, "edges": len(problem.edges)}
            first = Solution(choice, alone, -inf, inf, "feasible", sizes)
        pairs = {"pair_objective": min(alone, first.objective)}
        return self.rounds.judged(first, dict(first.statistics) | pairs | self.statistics)

    def _whole(self) -> ShareAscent:
        if self.whole is None:
            self.whole = ShareAscent(
                self.sharing, self.sharing.equal_shares(), self.rounds.objective
            )
            self.whole.settle(_CLOSE * self.rounds.tolerance)
        return self.whole

    def _offer_first(self, tied: TiedProblem) -> bool:
        """Solve the tied problem in which each reader pays for itself; whether it has a
        solution."""
        rounds, problem = self.rounds, self.sharing.problem
        limits = rounds.limits.since(rounds.begin)
        work = int(_FIRST_SHARE * limits.budget)
        solution = _improved(tied.problem, None, replace(limits, work=work), self.store)
        if not solution.choice:
            return False
        choice = tied.spread(solution.choice)
        rounds.offer(replace(solution, choice=choice))
        sizes = {"nodes": len(choice), "edges": len(problem.edges)}
        sizes |= {"tied_nodes": tied.problem.num_nodes, "tied_rounds": tied.rounds}
        self.first = replace(
            solution,
            objective=evaluate(problem, choice).objective,
            statistics=dict(solution.statistics) | sizes,
        )
        return True

    def _seek(self, decided: tuple[int, ...], shares: list[np.ndarray]) -> None:
        """Assignments near one that messages have decided, and near that of least cost for the
        shares."""
        rounds = self.rounds
        rounds.offer_choice(decided)
        rounds.seek(decided)
        if rounds.is_over:
            return
        priced = self.sharing.priced(rounds.affordable(shares))
        solution = rounds.solved(priced, rounds.choice)
        if solution.choice:
            rounds.offer(solution)
            rounds.seek(solution.choice)

    def _few(self, tied: TiedProblem, small: TiedSharing) -> ShareAscent:
        """Messages and shares of the tied problem; assignments near them are offered until one is
        close enough to the bound."""
        rounds, sharing = self.rounds, small.sharing
        ascent = ShareAscent(sharing, sharing.equal_shares(), rounds.objective)
        ascent.aim()
        rounds.struck |= self._advance(ascent, _TIED_ROUNDS, _TIED_CLOSE)
        self.statistics["tied_share_rounds"] = ascent.rounds
        run, decided = partial(_improved, store=self.store), ascent.decide()
        limits = replace(rounds.limits, gap_tolerance=_TIED_CLOSE * rounds.tolerance)
        args = sharing, run, limits, rounds.begin, _TIED_SHARE
        lower = PriceRounds(*args, bound=ascent.bound)
        # The bound of the whole lies below: that takes its part of the gap.
        enough = ascent.bound / (1 - _CLOSE * rounds.tolerance)
        lower.offer_choice(tied.project(rounds.choice))
        lower.offer_choice(decided)
        if lower.objective > enough:
            priced = sharing.priced(lower.affordable(ascent.shares))
            solution = lower.solved(priced, decided)
            if solution.choice:
                lower.offer_choice(solution.choice)
            # Farther away, better ones are found sooner with every node free.
            if lower.objective <= enough:
                lower.seek(solution.choice)
                lower.seek(decided)
        if lower.objective < inf:
            rounds.offer_choice(small.spread(lower.choice))
        if lower.objective > enough and self.first is None:
            self._offer_first(tied)
        return ascent

    def _climb(self, ascent: ShareAscent, most_rounds: int, close: float) -> None:
        self._keep(ascent, self._advance(ascent, most_rounds, close))

    def _advance(self, ascent: ShareAscent, most_rounds: int, close: float) -> bool:
        """Whether a clock ended the rounds."""
        rounds = self.rounds
        most = min(most_rounds, int(_ROUNDS_SHARE * rounds.limits.budget) // ascent.round_work)
        return ascent.run(most, close * rounds.tolerance, rounds.deadline)

    def _keep(self, ascent: ShareAscent, late: bool) -> None:
        self.statistics["share_rounds"] = int(str(self.statistics["share_rounds"])) + ascent.rounds
        ascent.rounds = 0
        self.rounds.struck |= late
        self.rounds.bound = max(self.rounds.bound, ascent.bound)


def _improved(
    problem: Problem,
    start: Sequence[int] | None,
    limits: SearchLimits,
    store: TableStore | None = None,
) -> Solution:
    # The first strategy of every node, which runs it in full everywhere, is as good a beginning as
    # any.
    return improve(problem, start or (0,) * problem.num_nodes, limits, store=store)


def _from_start(
    problem: Problem, start: Sequence[int] | None, limits: SearchLimits, store: TableStore
) -> Solution:
    return solve(problem, limits, start=start, store=store)

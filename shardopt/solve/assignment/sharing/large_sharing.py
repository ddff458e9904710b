"""Least cost of a problem with many shared edges.

Rounds of solves (`price_splitting`) would take minutes. Instead messages and shares move together
(`share_ascent`), in rounds that take a hundredth of a solve, and the search ends as soon as bound
and assignment are close enough:

1. Where layers repeat, the problem with equal layers tied gives the first assignment, a bound of
   its own, and shares near which better assignments are sought.
2. Messages and shares of the tied problem are spread over the whole, and a few sweeps give a bound
   of that: enough in most cases. Rounds of the whole follow where it is not.
3. The problem in which each reader pays for itself is solved with every node free, and assignments
   are sought for the shares and near the best. Beside that rounds go on, on a core of their own.
4. A gap that is left is closed by an integer program unless the problem is too large."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution, Statistic, evaluate, relative_gap
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.search.symmetry import TiedProblem, tie_repeated
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.share_ascent import ShareAscent
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
    search.rounds.prove_rest()
    return search.judged(first)


def bound_large_shared(
    sharing: Sharing, limits: SearchLimits, start: Sequence[int]
) -> tuple[float, tuple[int, ...]]:
    """As `price_splitting.bound_shared`: the first two steps."""
    search = _Search(sharing, _improved, limits)
    search.rounds.offer_choice(tuple(start))
    tied = tie_repeated(sharing.problem)
    if tied is not None and search.first(tied) is not None:
        search.tied(sharing.tied(tied.colours))
    return search.rounds.bound, search.rounds.choice


class _Search:
    """`rounds` keep the best bound and assignment; `statistics` are those of the rounds of
    messages and shares. `shares` are the best known."""

    def __init__(self, sharing: Sharing, solve: Solve, limits: SearchLimits) -> None:
        self.sharing = sharing
        self.rounds = PriceRounds(sharing, solve, limits, monotonic(), _SHARE)
        self.statistics: dict[str, Statistic] = {"share_rounds": 0, "tied_share_rounds": 0}
        self.shares = sharing.equal_shares()
        self.whole: ShareAscent | None = None
        self.store = TableStore()

    def first(self, tied: TiedProblem) -> Solution | None:
        """The solution of the tied problem in which each reader pays for itself."""
        rounds = self.rounds
        limits = rounds.limits.since(rounds.begin)
        work = int(_FIRST_SHARE * limits.budget)
        solution = _improved(tied.problem, None, replace(limits, work=work), self.store)
        if not solution.choice:
            return None
        choice = tied.spread(solution.choice)
        rounds.offer(replace(solution, choice=choice))
        objective = evaluate(self.sharing.problem, choice).objective
        sizes = {"nodes": len(choice), "edges": len(self.sharing.problem.edges)}
        sizes |= {"tied_nodes": tied.problem.num_nodes, "tied_rounds": tied.rounds}
        return replace(solution, objective=objective, statistics=dict(solution.statistics) | sizes)

    def tied(self, small: TiedSharing) -> bool:
        """Assignments and a bound of the whole from the tied problem; whether these suffice."""
        rounds = self.rounds
        few = self._few(small)
        self.whole = ShareAscent.spread(few, small, rounds.objective)
        self._climb(self.whole, 0, _CLOSE)
        if not rounds.is_over:
            self._climb(self.whole, _WHOLE_ROUNDS, 1.0)
        self.shares = self.whole.shares
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
            climbing = other_core.submit(self._advance, whole, _WHOLE_ROUNDS, _CLOSE)
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

    def _few(self, small: TiedSharing) -> ShareAscent:
        """Messages and shares of the tied problem; the best assignment near them is offered, unless
        one is known that is close enough to the bound."""
        rounds, sharing = self.rounds, small.sharing
        ascent = ShareAscent(sharing, sharing.equal_shares(), rounds.objective)
        rounds.struck |= self._advance(ascent, _TIED_ROUNDS, _TIED_CLOSE)
        self.statistics["tied_share_rounds"] = ascent.rounds
        # The bound of the whole lies below: that takes its part of the gap.
        bound = (1 - _CLOSE * rounds.tolerance) * ascent.bound
        if relative_gap(rounds.objective, bound) <= rounds.tolerance:
            return ascent
        run = partial(_improved, store=self.store)
        lower = PriceRounds(sharing, run, rounds.limits, rounds.begin, _TIED_SHARE, bound=bound)
        solution = lower.solved(sharing.priced(lower.affordable(ascent.shares)), None)
        lower.offer_choice(ascent.decide())
        if solution.choice:
            lower.offer_choice(solution.choice)
            lower.seek(solution.choice)
        if lower.objective < inf:
            rounds.offer_choice(small.spread(lower.choice))
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

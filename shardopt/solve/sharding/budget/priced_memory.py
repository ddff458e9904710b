"""Plans within a limit by prices of memory: a Lagrangian relaxation of the limit at every time.

A byte that is held at time t costs `prices[t]` seconds more. For given prices the problem is one
without a limit, in which equal layers are tied, so that it is solved within a second. Low prices
lead to fast plans, high ones to small plans. What the plans so far cost and hold says which prices
come next: those that the cheapest mixture of them within the limit pays (`plan_mixture`). As long
as no mixture is within the limit, memory gets dearer.

Every reader pays for all of its way here: copies that readers share over a long time are made anew
where memory is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Problem, evaluate
from shardopt.solve.assignment.search.repeated_layers import is_large
from shardopt.solve.assignment.search.sharding_ilp import improve
from shardopt.solve.assignment.search.symmetry import tie_repeated
from shardopt.solve.assignment.sharing.price_rounds import stalls
from shardopt.solve.assignment.sharing.price_splitting import bound_shared
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.budget.model import BudgetModel, Operand
from shardopt.solve.sharding.budget.operand_copies import copies_at_excess
from shardopt.solve.sharding.budget.plan_mixture import SeenPlan, cheapest_mixture
from shardopt.solve.sharding.budget.start import greedy_start, held_bytes
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan

_MOST_SOLVES = 12
# Work of one of them, as a share of the budget: a transformer of 48 tied layers is solved to 0.2 %
# with the first, and with a quarter of it not at every price. What is not tied is solved again
# within the limit. The bound of that transformer is 2 % better with all of the work.
_TIED_SHARE, _FREE_SHARE, _BOUND_SHARE = 0.25, 0.02, 0.125
# Seconds for all the memory of a device at first, in times of the fastest plan, and how much dearer
# it gets as long as no mixture is within the limit: in the end memory is all that counts.
_FIRST_PRICE, _DEARER = 1.0, 4.0
# A plan that makes the mixture cheaper by less than this share is none.
_GAIN = 1e-3
# A mixture that exceeds the limit by less is within it.
_ROUNDING = 1e-6
# Bytes above every limit.
_UNKNOWN = 2**62


@dataclass(eq=False)
class PricedSearch:
    """`offer` gives the plan of a choice of the nodes of `model.problem(limit, copies)`, and keeps
    the best. `copies` are those of operands that plans have shown to matter."""

    model: BudgetModel
    limit: int
    limits: SearchLimits
    offer: Callable[[tuple[int, ...]], IntraOpPlan]
    copies: dict[Operand, None] = field(default_factory=dict)
    seen: list[SeenPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.model.problem(self.limit, ())
        # What the best plan holds above the limit; the problem does not know all copies.
        self.missing = _UNKNOWN

    def run(self, known: Sequence[tuple[int, ...]]) -> float:
        """One plan after the other, beginning with known choices of the plain nodes, the fastest
        first. No plan within the limit takes less than the seconds that are returned."""
        for choice in dict.fromkeys(known):
            self._see(choice)
        inner, dearness = self.limit, _FIRST_PRICE * self.seen[0].seconds
        excesses = list[float]()
        for _ in range(_MOST_SOLVES):
            mixture = cheapest_mixture(self.seen, inner, dearness)
            choice = self._cheapest(mixture.prices)
            if not choice:
                break
            plan = self._see(choice)
            if mixture.excess > _ROUNDING:
                excesses.append(mixture.excess)
                if stalls(excesses):
                    break
                dearness *= _DEARER
                continue
            if plan.priced(mixture.prices) < mixture.paid * (1 - _GAIN):
                continue
            if self.missing <= 0 or inner <= self.missing:
                break
            inner -= self.missing
        return self._bound(mixture.prices)

    def _bound(self, prices: np.ndarray) -> float:
        """Of the plain problem, in which steps that readers share are paid for once."""
        sharing = Sharing(with_prices(self.problem, prices), self.model.base.groups)
        best = min(self.seen, key=lambda plan: plan.priced(prices))
        bound, choice = bound_shared(sharing, self._limits(_BOUND_SHARE), best.choice)
        self._see(choice)
        return bound - float(prices.sum()) * self.limit

    def _see(self, choice: Sequence[int]) -> SeenPlan:
        """The plan of a choice is offered, and the copies counted that it shows to matter."""
        self.seen.append(self._with_costs(choice))
        plan = self.offer(self.seen[-1].choice)
        self.missing = min(self.missing, plan.peak_bytes - self.limit)
        before = len(self.copies)
        self.copies |= copies_at_excess(self.model.base, plan, self.limit)
        if len(self.copies) > before:
            self.problem = self.model.problem(self.limit, self.copies)
            self.seen = [self._with_costs(plan.choice) for plan in self.seen]
        return self.seen[-1]

    def _with_costs(self, choice: Sequence[int]) -> SeenPlan:
        """A choice of every node from one of the plain nodes, as the problem counts it."""
        full = greedy_start(self.model, self.problem, self.copies, choice)
        seconds = evaluate(self.problem.without_memory(), full).objective
        return SeenPlan(full, seconds, held_bytes(self.problem, full))

    def _cheapest(self, prices: np.ndarray) -> tuple[int, ...]:
        """The choice that costs least at these prices."""
        problem = with_prices(self.problem, prices)
        known = [plan.choice for plan in self.seen]
        tied = tie_repeated(problem) if is_large(problem) else None
        if tied is not None:
            known = [tied.project(choice) for choice in known]
            problem = tied.problem
        start = min(known, key=lambda choice: evaluate(problem, choice).objective)
        limits = self._limits(_FREE_SHARE if tied is None else _TIED_SHARE)
        store = self.model.tables.strategies.store
        choice = improve(problem, start, limits, store=store).choice
        return choice if tied is None or not choice else tied.spread(choice)

    def _limits(self, share: float) -> SearchLimits:
        return replace(self.limits, work=int(share * self.limits.budget))


def with_prices(problem: Problem, prices: np.ndarray) -> Problem:
    """Without a limit: each byte costs the seconds of the times at which it is held."""
    until = np.concatenate([[0.0], np.cumsum(prices)])
    costs = []
    for cost, segments in zip(problem.costs, problem.usages or (), strict=True):
        for usage in segments:
            if (price := until[usage.hi] - until[usage.lo]) > 0:
                cost = cost + price * usage.bytes
        costs.append(cost)
    return Problem(tuple(costs), problem.edges)

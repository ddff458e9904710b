"""Faster plans within a limit than the one that holds least.

The search for the least peak weighs seconds for nothing but ties. Plans of least
`seconds + price * weighted bytes` lie between it and the plan without a limit (generalized Lagrange
multipliers, Everett 1963). The price is bisected, on a logarithmic scale, between one under which a
plan fits and one under which none is known to. Bytes are weighted over time as in the bound of the
least peak, which is where they bind."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.sharding.budget.least_peak import LeastPeak, tie_share, weighted
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.start import greedy_start
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan

_PROBES = 6
# The whole time of the fastest plan counts as at most so many times the least peak: then memory
# only breaks ties.
_MOST_PEAKS = 1e3


def faster_plans(
    model: BudgetModel,
    least: LeastPeak,
    fastest_seconds: float,
    limit: int,
    limits: SearchLimits,
    offer: Callable[[tuple[int, ...]], IntraOpPlan],
) -> None:
    """Offers choices of the nodes of `model.problem(limit, least.copies)`, in a fixed number of
    solves that share the work of `limits`.

    `least` is a plan that fits, `fastest_seconds` what the plan without a limit takes; `offer`
    gives the plan of a choice."""
    if fastest_seconds <= 0:
        return
    problem = model.problem(limit, least.copies)
    each = SearchLimits(work=limits.budget // _PROBES)
    # Bytes a second, under which a plan fits and under which none is known to.
    fits = tie_share(problem, least.peak_bytes)
    exceeds = max(_MOST_PEAKS * least.peak_bytes / fastest_seconds, fits)
    shardings = least.solution.choice
    for _ in range(_PROBES):
        share = sqrt(fits * exceeds)
        start = greedy_start(model, problem, least.copies, shardings)
        solution = solve(weighted(problem, least.weights, share), each, start=start)
        if not solution.choice:
            return
        if offer(solution.choice).peak_bytes <= limit:
            fits, shardings = share, solution.choice
        else:
            exceeds = share

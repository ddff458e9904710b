"""The K best plans, for a judge that sees more than the sum and the maximum: the event simulator.

The formula of the stage DP is exact for equal stages only. A plan that is slightly longer by it may
be shorter when it runs, so the best plans with different numbers of stages, and those that trade a
longer sum for a shorter bottleneck, are handed on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardopt.solve.stages.dp.bottleneck_search import BottleneckSearch
from shardopt.solve.stages.dp.searches import SearchTables
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import StageProblem, Stages, StageSolution
from shardopt.support.spans import timed

# plans longer than this multiple of the best are of no interest: the formula is hardly ever so far
# off
NEAR = 1.3


@timed("stage DP: best plans")
def best_plans(
    problem: StageProblem, k: int, num_stages: int | None = None, near: float = NEAR
) -> tuple[StageSolution, ...]:
    """At most `k` different plans by rising `seconds`, the optimum first.

    Of the plans that are the best of their number of stages, the shortest are here, as far as they
    are within `near` times the optimum; those have the status "optimal". They leave places to
    runners-up that the search over t_max met: plans of the least sum for some longest slot.
    Raises UserError where `solve_stages` does."""
    optimum = solve_stages(problem, num_stages)
    best = {len(optimum.stages): optimum}
    met: dict[Stages, StageSolution] = {}
    tables = SearchTables(problem, num_stages)
    bounds = tables.least_seconds(optimum.seconds * near)
    for count in sorted(bounds, key=lambda count: (bounds[count], count)):  # the likely ones first
        # Once k numbers of stages have their best plan, one whose bound is above the k-th cannot
        # get in.
        cutoff = min(optimum.seconds * near, _kth_seconds(best.values(), k))
        if bounds[count] > cutoff:
            continue
        search = BottleneckSearch(tables.of_count(count), cutoff=cutoff)
        best_of_count = search.run()
        if best_of_count is not None and count not in best:
            best[count] = replace(best_of_count, status="optimal", bound=best_of_count.seconds)
        met.update(
            (plan.stages, plan)
            for plan in search.plans_met
            if plan.seconds <= optimum.seconds * near
        )
    first = sorted(best.values(), key=_order)[:k]
    for plan in first:
        met.pop(plan.stages, None)
    return tuple(sorted([*first, *sorted(met.values(), key=_order)[: k - len(first)]], key=_order))


def _order(plan: StageSolution) -> tuple[float, int, Stages]:
    return plan.seconds, len(plan.stages), plan.stages


def _kth_seconds(plans: Iterable[StageSolution], k: int) -> float:
    seconds = sorted(plan.seconds for plan in plans)
    return seconds[k - 1] if len(seconds) >= k else float("inf")

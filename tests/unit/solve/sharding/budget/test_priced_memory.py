"""Plans by prices of memory against the search that proves them, and mixtures of plans by
duality."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.solve.assignment.limits import NO_LIMITS
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget import priced_memory
from shardopt.solve.sharding.budget.least_peak import find_least_peak
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.operand_copies import split_copies
from shardopt.solve.sharding.budget.plan_mixture import SeenPlan, cheapest_mixture
from shardopt.solve.sharding.budget.priced_memory import PricedSearch
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, build_problem
from tests.unit.solve.sharding.budget.test_memory_budget import PAIR, random_graph
from tests.unit.solve.sharding.op_graphs import CLUSTER, mlp


def priced(problem: IntraOpProblem, limit: int) -> tuple[float, float]:
    """Seconds of the fastest plan offered that fits, inf without one, and the bound."""
    model = BudgetModel(problem, find_candidates(problem))
    found = [float("inf")]

    def offer(choice: tuple[int, ...]) -> IntraOpPlan:
        plan = split_copies(model, Solution(choice, 0.0, 0.0, 0.0, "feasible"), limit)
        if plan.peak_bytes <= limit:
            found.append(problem.plan_seconds(plan))
        return plan

    bound = PricedSearch(model, limit, NO_LIMITS, offer).run((problem.solve().choice,))
    return min(found), bound


def between(problem: IntraOpProblem, share: float) -> tuple[int, float]:
    """A limit between the least peak and that of the fastest plan, and seconds of the least."""
    free = problem.decode(problem.solve())
    model = BudgetModel(problem, find_candidates(problem))
    least = find_least_peak(model, problem.solve().choice)
    assert least.plan is not None
    limit = least.peak_bytes + int(share * (free.peak_bytes - least.peak_bytes))
    return limit, problem.plan_seconds(least.plan)


def checked(problem: IntraOpProblem, share: float) -> tuple[float, float]:
    """Seconds of the fastest plan by prices and of the least peak, after the bounds are held
    against those of the whole search."""
    limit, of_least = between(problem, share)
    exact = fit(problem, limit)
    assert exact.plan is not None
    seconds, bound = priced(problem, limit)
    assert bound <= problem.plan_seconds(exact.plan) * (1 + 1e-9)
    # Where the search has no proof, a plan by prices may be the faster one.
    assert seconds >= exact.solution.bound * (1 - 1e-9)
    return seconds, of_least


@pytest.mark.parametrize("ops", [6, 10])
def test_bounds_hold_and_plans_are_faster_than_the_least(ops: int) -> None:
    found = faster = 0
    for seed in range(4):
        seconds, of_least = checked(build_problem(random_graph(seed, ops), PAIR, CLUSTER), 0.5)
        found += seconds < float("inf")
        faster += seconds < of_least * (1 - 1e-9)
    assert found >= 3
    assert faster


def test_tied_layers_lead_to_plans_and_bounds_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers are tied in large problems alone; here in a small one, whose optimum is known."""
    problem = build_problem(mlp(8, 8, 6), PAIR, CLUSTER)
    monkeypatch.setattr(priced_memory, "is_large", lambda problem: True)
    for share in (0.3, 0.6):
        assert checked(problem, share)[0] < float("inf")


def test_memory_gets_dearer_until_a_mixture_is_within_the_limit() -> None:
    fast = SeenPlan((0,), 1.0, np.array([30, 10]))
    small = SeenPlan((1,), 5.0, np.array([10, 14]))
    alone = cheapest_mixture([fast], 20, 2.0)
    assert alone.excess == pytest.approx(0.5)
    assert alone.prices.tolist() == pytest.approx([2.0 / 20, 0.0])
    both = cheapest_mixture([fast, small], 20, 100.0)
    assert both.excess == pytest.approx(0.0)
    # Half of each: four seconds for twenty bytes.
    assert both.prices.tolist() == pytest.approx([4 / 20, 0.0])
    assert fast.priced(both.prices) == pytest.approx(both.paid)
    assert small.priced(both.prices) == pytest.approx(both.paid)


def test_within_nothing_each_byte_is_above_the_limit() -> None:
    mixture = cheapest_mixture([SeenPlan((0,), 1.0, np.array([30, 10]))], 0, 2.0)
    assert mixture.excess == pytest.approx(30.0)
    assert mixture.prices.tolist() == pytest.approx([2.0, 0.0])
    assert fit(build_problem(mlp(8, 8, 2), PAIR, CLUSTER), 0).plan is None


@pytest.mark.parametrize("seed", range(20))
def test_prices_of_a_mixture_are_dual_to_its_seconds(seed: int) -> None:
    """No mixture within the limit is cheaper than what the prices say, and some mixture is not
    dearer: against a fine grid of mixtures of three plans."""
    random = np.random.default_rng(seed)
    plans = [SeenPlan((n,), float(random.random()), random.integers(1, 99, 6)) for n in range(3)]
    limit = int(max(min(plan.live_bytes.max() for plan in plans), 60))
    mixture = cheapest_mixture(plans, limit, 1e6)
    assert mixture.excess == pytest.approx(0.0, abs=1e-9)
    bound = mixture.paid - float(mixture.prices.sum()) * limit
    steps = np.linspace(0.0, 1.0, 101)
    shares = [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12]
    grid = np.array(shares)
    held = grid @ np.stack([plan.live_bytes for plan in plans])
    seconds = grid @ np.array([plan.seconds for plan in plans])
    best = seconds[(held <= limit + 1e-9).all(axis=1)].min()
    assert bound <= best + 1e-9
    assert best <= bound + 0.05
    assert all(plan.priced(mixture.prices) >= mixture.paid - 1e-9 for plan in plans)

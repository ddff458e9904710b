"""The K best plans against brute force, their simulated steps, and the search over schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardopt.hardware.cluster import Cluster, Submesh
from shardopt.hardware.cluster_file import load_cluster
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import build_schedule, searched_schedules
from shardopt.schedule.simulator import TransferCosts, simulate
from shardopt.schedule.tasks import TaskKind
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.baselines.registry import find_planner
from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.dp.best_plans import NEAR, best_plans
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.search.plan_search import (
    DpSolver,
    ExactStageCosts,
    schedule_in_flight,
    search_plans,
)
from shardopt.solve.stages.search.rerank import SimulatedPlan, estimate_step, simulate_plan
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    is_plan,
)
from shardopt.support.errors import UserError
from tests.unit.solve.stages.stage_problems import (
    additive,
    all_plans,
    random_problem,
    row,
    step_seconds,
)

DP = find_planner("dp")


def cluster(spec: str, call_seconds: float = 0.0) -> Cluster:
    """A preset in which a call takes so long."""
    loaded = load_cluster(spec)
    return replace(
        loaded,
        groups=tuple(replace(group, dispatch_seconds=call_seconds) for group in loaded.groups),
    )


def transfers(
    problem: StageProblem, spec: str, forward: int = 0, backward: int = 0
) -> CutTransfers:
    both = (np.full(problem.num_layers + 1, size, dtype=np.int64) for size in (forward, backward))
    return CutTransfers(cluster(spec), *both)


# ---- the K best ----


@pytest.mark.parametrize("block", range(4))
def test_the_best_of_each_number_of_stages_are_among_them(block: int) -> None:
    """A thousand cases: the plans are valid and different, and the shortest best-of-its-number are
    all there."""
    seen = 0
    for seed in range(250 * block, 250 * (block + 1)):
        problem, _ = random_problem(seed)
        least: dict[int, float] = {}
        for stages in all_plans(problem):
            seconds = step_seconds(problem, stages)
            least[len(stages)] = min(seconds, least.get(len(stages), np.inf))
        least = {count: seconds for count, seconds in least.items() if np.isfinite(seconds)}
        if not least:
            continue
        seen += 1
        for k in (1, 3):
            plans = best_plans(problem, k)
            near = sorted(
                seconds
                for seconds in least.values()
                if seconds < NEAR * min(least.values()) * (1 - 1e-9)
            )[:k]
            optimal = [plan.seconds for plan in plans if plan.status == "optimal"]
            assert optimal[: len(near)] == pytest.approx(near), f"seed {seed}"
            assert len({plan.stages for plan in plans}) == len(plans) <= k
            assert all(is_plan(problem, plan.stages) for plan in plans)
            assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
            for plan in plans:
                assert plan.seconds >= least[len(plan.stages)] * (1 - 1e-12)
    assert seen > 50


def test_runners_up_fill_the_places_left() -> None:
    problem = additive([1, 1, 1, 1], (1, 2, 4), 4, 8, 0.99)
    plans = best_plans(problem, 3, num_stages=3)
    assert {len(plan.stages) for plan in plans} == {3}
    assert plans[0].status == "optimal"


# ---- simulated ----


def plan_of(problem: StageProblem, stages: Stages) -> StageSolution:
    return evaluate(problem, stages)


def simulated(
    problem: StageProblem, stages: Stages, schedule: str, cut: CutTransfers
) -> SimulatedPlan:
    result = simulate_plan(problem, plan_of(problem, stages), schedule, cut)
    assert result is not None
    return result


def test_equal_stages_take_what_the_formula_says() -> None:
    """Nothing to transfer, equal stages, and forward and backward in one proportion."""
    problem = replace(additive([3] * 4, (1,), 4, 8, 0.0), forward_seconds=np.full((5, 5, 1), 1.0))
    stages = tuple((k, k + 1, 0) for k in range(4))
    result = simulated(problem, stages, "1f1b", transfers(problem, "cpu-test:1x4"))
    assert result.step_seconds == pytest.approx(result.plan.seconds) == pytest.approx(4 * 3 + 7 * 3)


def test_every_call_takes_its_time() -> None:
    """Half a second a call: two for each microbatch of the first stage, one for the last, which is
    one fragment."""
    problem = replace(additive([3] * 2, (1,), 2, 8, 0.0), forward_seconds=np.full((3, 3, 1), 1.0))
    stages = ((0, 1, 0), (1, 2, 0))
    cut = replace(transfers(problem, "cpu-test:1x2"), cluster=cluster("cpu-test:1x2", 0.5))
    # The first stage is busy with 1.5 and 2.5 for each microbatch, and waits twice: 3.5 - 1.5 for
    # the last in the beginning, and 1 at the end.
    assert simulated(problem, stages, "1f1b", cut).step_seconds == pytest.approx(
        8 * (1.5 + 2.5) + 2 + 1
    )


def test_the_simulator_is_asked_with_the_seconds_of_the_plan() -> None:
    """By hand: stages of different lengths, activations of 1 MB and gradients of 2 MB between two
    hosts."""
    problem = additive([3, 5, 4], (1,), 3, 6, 0.0)
    problem = replace(problem, forward_seconds=np.minimum(problem.seconds, 1.5))
    cut = transfers(problem, "cpu-test:3x1", 10**6, 2 * 10**6)
    stages = ((0, 1, 0), (1, 2, 0), (2, 3, 0))
    result = simulated(problem, stages, "1f1b", cut)
    graph = chain_graph(3)
    seconds = {
        task: 1.5 if task.kind == TaskKind.FORWARD else [1.5, 3.5, 2.5][task.stage]
        for task in graph.tasks
    }
    link = cut.cluster.groups[0].inter_host
    delays, nics = [], []
    for edge in graph.edges:
        a, b = edge.src.stage, edge.dst.stage
        size = 0 if a == b else 10**6 * (1 if a < b else 2)
        delays.append(
            link.latency_seconds + size / link.bandwidth_bytes_per_second if size else 0.0
        )
        nics.append((2 * a, 2 * b + 1) if size else ())
    expected = simulate(
        build_schedule("1f1b", 3, 6), graph, seconds, TransferCosts(delays, links=nics)
    )
    assert result.step_seconds == pytest.approx(expected.makespan_seconds)


def test_neighbours_on_one_host_are_nearer_than_the_formula_fears() -> None:
    """The stage DP counts a cut over the slowest link; placed, the two stages share a host."""
    problem = additive([2, 2], (2,), 4, 4, 0.0)
    cut = transfers(problem, "cpu-test:1x4", 10**6, 10**6)
    far = transfers(problem, "cpu-test:2x2", 10**6, 10**6)
    stages = ((0, 1, 0), (1, 2, 0))
    near_seconds, far_seconds = (
        simulated(problem, stages, "1f1b", each).step_seconds for each in (cut, far)
    )
    assert near_seconds < far_seconds


def test_what_cannot_be_shorter_is_not_simulated() -> None:
    problem = additive([1, 1], (1,), 2, 4, 0.0)
    cut = transfers(problem, "cpu-test:1x2")
    plan = plan_of(problem, ((0, 1, 0), (1, 2, 0)))
    assert simulate_plan(problem, plan, "1f1b", cut, best=4.0) is None
    assert simulate_plan(problem, plan, "1f1b", cut, best=100.0) is not None


# ---- the search over schedules ----


class CountedStageCosts:
    """Stage costs that are half the truth until somebody asks, and count what was asked for."""

    def __init__(self, exact: StageProblem) -> None:
        self.truth = exact
        self.known = np.zeros(exact.seconds.shape, dtype=bool)

    def problem(self, in_flight_of: InFlight) -> StageProblem:
        seconds = np.where(self.known, self.truth.seconds, self.truth.seconds / 2)
        return replace(self.truth, seconds=seconds, in_flight=in_flight_of)

    def best(self, in_flight_of: InFlight, solve: DpSolver) -> StageSolution:
        known: Stages | None = None
        while True:
            solution = solve(self.problem(in_flight_of), known)
            if self.is_exact(solution.stages):
                return solution
            known = solution.stages
            self.refine(known)

    def is_exact(self, stages: Stages) -> bool:
        return all(self.known[stage] for stage in stages)

    def refine(self, stages: Stages) -> bool:
        for stage in stages:
            self.known[stage] = True
        return True

    def fit(self, stages: Stages, in_flight_of: InFlight) -> bool:
        return False


def test_lower_bounds_are_made_exact_where_it_matters() -> None:
    """The plan is that of exact costs, and most stages never get exact costs."""
    rng = np.random.default_rng(3)
    problem = additive(list(rng.uniform(1, 2, 8)), (1, 2, 4, 8), 8, 16, 0.8)
    problem = replace(problem, forward_seconds=problem.seconds / 3)
    cut = transfers(problem, "cpu-test:1x8")
    exact = search_plans(ExactStageCosts(problem), ("1f1b",), cut, DP, PlannerInput(), k=1)
    stage_costs = CountedStageCosts(problem)
    lazy = search_plans(stage_costs, ("1f1b",), cut, DP, PlannerInput(), k=1)
    assert lazy.best.plan.seconds == pytest.approx(exact.best.plan.seconds)
    assert stage_costs.known.sum() < np.triu(np.ones((9, 9)), 1).sum() * 4 * 0.8


def test_a_schedule_that_fits_is_found() -> None:
    """Activations for two microbatches fit: GPipe has no plan, eager 1F1B none with a pipeline as
    fast."""
    problem = additive([1, 1], (1, 2), 2, 8, 0.1)
    problem = replace(
        problem,
        forward_seconds=problem.seconds / 3,
        activation_bytes=np.ones_like(problem.seconds),
        memory_bytes=(2.0,),
    )
    cut = transfers(problem, "cpu-test:1x2")
    search = search_plans(
        ExactStageCosts(problem), searched_schedules(trains=True), cut, DP, PlannerInput()
    )
    assert (search.best.schedule, len(search.best.plan.stages)) == ("1f1b", 2)
    with pytest.raises(UserError, match="in flight"):
        search_plans(ExactStageCosts(problem), ("gpipe",), cut, DP, PlannerInput(num_stages=2))


def test_eager_1f1b_hides_transfers_where_memory_allows() -> None:
    """Transfers as long as a forward: 1F1B waits for them, eager 1F1B does not."""
    problem = additive([3] * 4, (1,), 4, 16, 0.0)
    problem = replace(problem, forward_seconds=problem.seconds / 3)
    size = int(cluster("cpu-test:4x1").groups[0].inter_host.bandwidth_bytes_per_second)
    cut = transfers(problem, "cpu-test:4x1", size, size)
    search = search_plans(
        ExactStageCosts(problem),
        searched_schedules(trains=True),
        cut,
        DP,
        PlannerInput(num_stages=4),
    )
    assert search.best.schedule == "eager-1f1b"
    steps = {each.schedule: each.step_seconds for each in search.best_by_schedule}
    assert steps["eager-1f1b"] < steps["1f1b"]


def test_alike_schedules_go_to_the_one_with_the_least_memory() -> None:
    problem = additive([3, 3], (1,), 2, 8, 0.0)
    problem = replace(
        problem, forward_seconds=problem.seconds / 3, activation_bytes=np.ones_like(problem.seconds)
    )
    problem = replace(problem, memory_bytes=(100.0,))
    cut = transfers(problem, "cpu-test:1x2")
    for order in (("gpipe", "1f1b", "eager-1f1b"), ("eager-1f1b", "gpipe", "1f1b")):
        assert (
            search_plans(ExactStageCosts(problem), order, cut, DP, PlannerInput()).best.schedule
            == "1f1b"
        )


def test_simulating_the_best_plans_pays() -> None:
    """Problems small enough to simulate every plan: the plan found is near the best of all, and
    nearer than the optimum of the formula."""
    schedules = searched_schedules(trains=True)
    behind, formula_behind = [], []
    for seed in range(24):
        problem, cut = uneven_problem(seed)
        search = search_plans(ExactStageCosts(problem), schedules, cut, DP, PlannerInput())
        least, of_formula = np.inf, np.inf
        for schedule in schedules:
            with_schedule = replace(problem, in_flight=schedule_in_flight(schedule))
            plans = [evaluate(with_schedule, stages) for stages in all_plans(with_schedule)]
            shortest = min((plan.seconds for plan in plans), default=np.inf)
            for plan in plans:
                step = simulated(with_schedule, plan.stages, schedule, cut).step_seconds
                least = min(least, step)
                of_formula = min(of_formula, step if plan.seconds == shortest else np.inf)
        behind.append(search.simulated[0].step_seconds / least - 1)
        formula_behind.append(of_formula / least - 1)
    assert np.mean(behind) < 0.01
    assert np.mean(behind) < np.mean(formula_behind) / 2


def uneven_problem(seed: int) -> tuple[StageProblem, CutTransfers]:
    """Three or four layers on two hosts with four devices, of which forwards take a quarter to a
    half; the last stage has its backward in its forward. Devices scale badly, so that pipelines
    pay."""
    rng = np.random.default_rng(seed)
    layers, devices = int(rng.integers(3, 5)), np.array([1, 2, 4, 8])
    prefix = np.concatenate(([0.0], rng.uniform(0.005, 0.015, layers).cumsum()))
    span = np.abs(prefix[None, :] - prefix[:, None])[:, :, None] * np.ones(len(devices))
    shape = span.shape
    seconds = span / devices ** rng.uniform(0.5, 0.95) * rng.uniform(1, 1.2, shape)
    forward = seconds * rng.uniform(0.25, 0.45, (layers + 1, 1, 1))
    forward[:, layers] = seconds[:, layers]
    configs = (*row(1, 2, 4), StageConfig(8, Submesh(2, 4), (2, 4)))
    problem = additive([1] * layers, (1, 2, 4, 8), 8, int(rng.choice([4, 8])), 1.0)
    cut = transfers(
        problem, "cpu-test:2x4", *(int(rng.choice([10**4, 10**6, 4 * 10**6])) for _ in range(2))
    )
    return replace(
        problem,
        configs=configs,
        seconds=seconds,
        forward_seconds=forward,
        fixed_bytes=span * 50,
        activation_bytes=span * 20,
        memory_bytes=(float(rng.choice([1e9, 4.0])),),
        transfer_seconds=cut.slowest_seconds(),
    ), cut


def test_unknown_schedules_are_refused() -> None:
    problem = additive([1, 1], (1,), 2, 4, 0.0)
    with pytest.raises(UserError, match="unknown schedule"):
        search_plans(
            ExactStageCosts(problem),
            ("1f2b",),
            transfers(problem, "cpu-test:1x2"),
            DP,
            PlannerInput(),
        )


def test_in_flight_counts_from_the_end() -> None:
    assert [schedule_in_flight("1f1b")(s, 4, 8) for s in (1, 2, 3, 4)] == [1, 2, 3, 4]


# ---- stages of equal layers, and costs that become exact where they matter ----


def test_no_plan_of_equal_stages_is_shorter() -> None:
    """The stage DP believes its formula, which misjudges transfers: the search does not, and still
    leaves most costs unknown."""
    equal, asked, behind_formula = find_planner("equal-layer"), 0, 0
    for seed in range(40):
        problem, cut = uneven_problem(seed)
        costs = CountedStageCosts(problem)
        search = search_plans(costs, ("1f1b",), cut, DP, PlannerInput(), k=2)
        assert search.is_finished
        asked += int(costs.known.sum())
        even = search_plans(ExactStageCosts(problem), ("1f1b",), cut, equal, PlannerInput())
        assert search.best.step_seconds <= even.best.step_seconds * (1 + 1e-9), f"seed {seed}"
        formula = solve_stages(problem)
        step = simulated(problem, formula.stages, "1f1b", cut).step_seconds
        behind_formula += step > even.best.step_seconds * (1 + 1e-9)
    assert behind_formula > 0
    possible = sum(
        np.triu(np.ones(problem.seconds.shape[:2]), 1).sum() * len(problem.configs)
        for problem, _ in map(uneven_problem, range(40))
    )
    assert asked < possible * 0.75


class StingyStageCosts(CountedStageCosts):
    """Stage costs that tell nothing of runners-up."""

    def best(self, in_flight_of: InFlight, solve: DpSolver) -> StageSolution:
        while not self.is_exact((solution := solve(self.problem(in_flight_of), None)).stages):
            super().refine(solution.stages)
        return solution

    def refine(self, stages: Stages) -> bool:
        return False


def test_a_search_that_may_ask_no_more_says_so() -> None:
    finished = []
    for seed in range(8):
        problem, cut = uneven_problem(seed)
        search = search_plans(StingyStageCosts(problem), ("1f1b",), cut, DP, PlannerInput())
        finished.append(search.is_finished)
        assert search.best.plan.stages in {each.plan.stages for each in search.simulated}
    assert not all(finished)


@pytest.mark.parametrize("microbatches", [4, 64, 257])
def test_a_step_is_estimated_from_some_of_its_microbatches(microbatches: int) -> None:
    for seed in range(6):
        problem, cut = uneven_problem(seed)
        problem = replace(problem, num_microbatches=microbatches, memory_bytes=(1e9,))
        for stages in [*all_plans(problem)][:20:3]:
            plan = plan_of(problem, stages)
            step = simulated(problem, stages, "1f1b", cut).step_seconds
            assert estimate_step(problem, plan, "1f1b", cut) == pytest.approx(step, rel=2e-3)

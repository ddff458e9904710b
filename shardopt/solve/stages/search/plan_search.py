"""The search over schedules, which differ in how many microbatches they keep in flight.

1. For the schedule that keeps the fewest in flight, the stage DP finds its best plan, with exact
   costs.
2. The best plans under the costs known then, and those of equally many layers and devices a stage,
   are simulated under every schedule that they fit. Those of the shortest steps get exact costs
   (`contest`), until the shortest step is exact.
3. New costs bring other plans forward: both again, until there are none.
4. The shortest step wins. Of plans that are equally long (`ALIKE`) it is the one whose fullest
   device holds least.

So no plan of equal stages is shorter than what is found, unless too much was spent; then the result
says so. Stage costs are lower bounds until a plan needs them (`StageCosts.best`), so stages that no
good plan uses never get exact ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from shardopt.hardware.sharing import most_speed
from shardopt.schedule.schedules import ALIKE, find_schedule, in_flight
from shardopt.solve.stages.baselines.equal_layers import even_plans
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput
from shardopt.solve.stages.costs.lazy_costs import GAP, NothingFits
from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.dp.best_plans import NEAR, best_plans
from shardopt.solve.stages.dp.infeasible import NoPlan, leanest_plan
from shardopt.solve.stages.dp.stage_dp import least_longest_stage, solve_stages
from shardopt.solve.stages.search.contest import Contest, RefinedCosts
from shardopt.solve.stages.search.rerank import SimulatedPlan, simulate_plan
from shardopt.solve.stages.search.shared_meshes import least_busy_seconds, mean_in_flight
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageProblem,
    Stages,
    StageSolution,
)
from shardopt.support.errors import UserError

NUM_PLANS = 8  # plans of the DP that are simulated at a time
MOST_ROUNDS = 4  # times that new costs may bring other plans forward
MOST_COMPLETED = 100  # leanest plans with bounds that are made exact
MOST_FITTED = 4  # plans that are sharded within the memory because no other fits
_MOST_CHECKED = 4000  # tasks of a step that is simulated in every round of a search
# By so much a runner-up of the stage DP may be shorter than its best plan, when both are simulated:
# 2 % in the mean of small problems (docs/concepts/planning.md).
_BY_RUNNERS_UP = 1.05
_LONG = 8  # stages and microbatches by which schedules differ in what they hold


class NoneIsShorter(UserError):
    """No step is shorter than what was asked for."""


# The best plan of a problem; what cannot beat the given one need not be looked at.
DpSolver = Callable[[StageProblem, Stages | None], StageSolution]


class StageCosts(RefinedCosts, Protocol):
    """Stage costs of candidate stages for any schedule."""

    def best(self, in_flight_of: InFlight, solve: DpSolver) -> StageSolution:
        """The best plan under exact costs, or one proven to be almost as good; `solve` finds the
        best under given ones."""

    def complete(self, stages: Stages) -> bool:
        """Make the costs of a plan exact; False where they are."""

    def fit(self, stages: Stages, in_flight_of: InFlight) -> bool:
        """Whether stages that exceed the memory can be sharded within it after all."""


@dataclass(frozen=True)
class ExactStageCosts:
    """Stage costs that are all exact from the begin."""

    stage_problem: StageProblem

    def problem(self, in_flight_of: InFlight) -> StageProblem:
        return replace(self.stage_problem, in_flight=in_flight_of)

    def best(self, in_flight_of: InFlight, solve: DpSolver) -> StageSolution:
        return solve(self.problem(in_flight_of), None)

    def is_exact(self, stages: Stages) -> bool:
        return True

    def refine(self, stages: Stages) -> bool:
        return False

    def complete(self, stages: Stages) -> bool:
        return False

    def fit(self, stages: Stages, in_flight_of: InFlight) -> bool:
        return False


@dataclass(frozen=True)
class PlanSearch:
    """The plan found, and all that were simulated because they might have been shorter, best first.

    `formula_bound` is a lower bound of the formula's seconds over all plans and schedules, None for
    a baseline. `is_finished`: no plan that was looked at can be shorter; else too much would have
    had to be spent to know."""

    best: SimulatedPlan
    simulated: tuple[SimulatedPlan, ...]
    formula_bound: float | None
    is_finished: bool = True

    @property
    def best_by_schedule(self) -> tuple[SimulatedPlan, ...]:
        """The best plan of each schedule that has one, best first."""
        best: dict[str, SimulatedPlan] = {}
        for each in self.simulated:
            best.setdefault(each.schedule, each)
        return tuple(best.values())


def schedule_in_flight(schedule: str) -> InFlight:
    """The microbatches in flight of a schedule as the stage DP asks for them. Raises UserError for
    an unknown name."""
    if find_schedule(schedule).stages_per_mesh != 1:
        return mean_in_flight(schedule)

    def in_flight_of(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
        return in_flight(schedule, num_stages, num_microbatches)[num_stages - stage_from_end]

    return in_flight_of


def search_plans(
    stage_costs: StageCosts,
    schedules: Sequence[str],
    transfers: CutTransfers,
    planner: BaselinePlanner,
    request: PlannerInput,
    k: int = NUM_PLANS,
    faster_than: float = np.inf,
) -> PlanSearch:
    """The best plan over `schedules` of those that `planner` looks at.

    Raises UserError that says what is missing under the schedule that holds the fewest
    microbatches, if none has a plan; NoneIsShorter as soon as costs make it certain that no step is
    shorter than `faster_than` seconds."""
    lean_first = [*schedules]
    # Leanest first: its plans serve the schedules after it, and its error says what no schedule
    # avoids.
    if len(lean_first) > 1:  # all have one stage a mesh
        lean_first.sort(key=lambda name: sum(in_flight(name, _LONG, _LONG)))
    search = _Search(stage_costs, transfers, planner, request, faster_than)
    errors: list[UserError] = []
    for number, schedule in enumerate(lean_first):
        try:
            # A schedule that holds more has no plan that the leanest has not, and by the formula
            # none is shorter.
            if planner.by_dp or planner.near is not None:
                return search.with_runners_up(lean_first[number:], k)
            search.of_baseline(schedule)
        except UserError as error:
            errors.append(error)
    if not search.simulated:
        raise errors[0]
    return _found(search.simulated, None, True)


def _found(
    simulated: Sequence[SimulatedPlan], bound: float | None, is_finished: bool
) -> PlanSearch:
    ordered = sorted(
        simulated, key=lambda each: (each.step_seconds, each.peak_bytes, each.plan.stages)
    )
    search = PlanSearch(ordered[0], tuple(ordered), bound, is_finished)
    alike = [
        each
        for each in search.best_by_schedule
        if each.step_seconds <= search.best.step_seconds * (1 + ALIKE)
    ]
    return replace(search, best=min(alike, key=lambda each: each.peak_bytes))


@dataclass(frozen=True, eq=False)
class _Search:
    """`simulated` are plans of a baseline under the schedules asked for so far."""

    stage_costs: StageCosts
    transfers: CutTransfers
    planner: BaselinePlanner
    request: PlannerInput
    faster_than: float
    simulated: list[SimulatedPlan] = field(default_factory=list)

    def with_runners_up(self, schedules: Sequence[str], k: int) -> PlanSearch:
        """The plans of the stage DP, or of another planner that knows more than one, under the
        leanest schedule, the first. Raises UserError where that has none."""
        costs = self.stage_costs
        flights = [(name, schedule_in_flight(name)) for name in schedules]
        optimum = self._optimum(*flights[0], is_only=len(flights) == 1)
        contest = Contest(costs, flights, self.transfers, GAP)
        contest.enter([optimum.stages])
        is_finished = True
        for _ in range(MOST_ROUNDS):
            problem = costs.problem(flights[0][1])
            even, best = self._likely(problem, schedules[0], k)
            if not contest.enter(even, 0.0) | contest.enter(best):
                break
            if not (is_finished := contest.run()):
                break
        if not contest.steps:
            raise contest.errors[0]
        return _found(contest.steps, optimum.bound, is_finished)

    def _likely(
        self, problem: StageProblem, schedule: str, k: int
    ) -> tuple[list[Stages], list[Stages]]:
        """Plans of equal stages, and the best ones by the formula."""
        num_stages = self.request.num_stages
        if self.planner.near is not None:
            plans = self.planner.near(problem, self.request, k)
            return [], [plan.stages for plan in plans]
        even = even_plans(problem, num_stages)
        best = best_plans(problem, k, num_stages, NEAR * self._speed(schedule))
        return [plan.stages for plan in even], [plan.stages for plan in best]

    def of_baseline(self, schedule: str) -> None:
        """Simulate the plan of a baseline under a schedule. Raises UserError where there is none,
        or none that can be placed."""
        in_flight_of = schedule_in_flight(schedule)
        plan = self._optimum(schedule, in_flight_of)
        best = min((each.step_seconds for each in self.simulated), default=np.inf)
        step = simulate_plan(
            self.stage_costs.problem(in_flight_of), plan, schedule, self.transfers, best
        )
        self.simulated.extend([step] if step is not None else [])

    def _optimum(
        self, schedule: str, in_flight_of: InFlight, is_only: bool = True
    ) -> StageSolution:
        """The best plan of the planner, at exact costs. `is_only`: plans are simulated under no
        other schedule."""

        def solve(problem: StageProblem, known: Stages | None) -> StageSolution:
            _check_speed(problem, self.faster_than * self._speed(schedule))
            if self.planner.by_dp:
                plan = solve_stages(problem, self.request.num_stages, known)
            else:
                plan = self.planner.solve(problem, self.request)
            if known is None and is_only:
                self._check_steps(problem, plan, schedule)
            return plan

        return _best(self.stage_costs, in_flight_of, solve, self.request.num_stages)

    def _check_steps(self, problem: StageProblem, plan: StageSolution, schedule: str) -> None:
        """Raises NoneIsShorter if the best plan by costs that may be lower bounds, and those near
        it that are to be simulated, take too long already: by the difference that those near it
        make, where they are not looked at. Whether they can be placed is asked at the end."""
        num_tasks = len(plan.stages) * problem.num_microbatches
        if not np.isfinite(self.faster_than) or num_tasks > _MOST_CHECKED:
            return
        plans, limit = [plan], self.faster_than
        if self.planner.near is not None:
            plans = self.planner.near(problem, self.request, NUM_PLANS)
        elif self.planner.by_dp:
            limit *= _BY_RUNNERS_UP
        for each in plans:
            try:
                step = simulate_plan(problem, each, schedule, self.transfers, limit)
            except UserError:
                return
            if step is not None and step.step_seconds < limit:
                return
        raise NoneIsShorter(f"no step was found that takes less than {self.faster_than:.4g} s")

    def _speed(self, schedule: str) -> float:
        """The formula counts a host that is all at work; where devices share one, stages may be
        faster by so much. A mesh runs its stage for a share of the microbatches."""
        return most_speed(self.transfers.cluster) * find_schedule(schedule).streams


def _check_speed(problem: StageProblem, seconds: float) -> None:
    """Raises NoneIsShorter if any plan takes so many seconds a step, by costs that may be lower
    bounds. Why there is none the planner says."""
    if not np.isfinite(seconds):
        return
    if problem.stages_per_mesh > 1:
        least, takes = least_busy_seconds(problem), "the devices take"
    else:
        least = problem.num_microbatches * least_longest_stage(problem)
        takes = "one stage alone takes"
    if np.isfinite(least) and least >= seconds:
        raise NoneIsShorter(
            f"{takes} {least:.4g} s or more of a step, no less than {seconds:.4g} s"
        )


def _best(
    costs: StageCosts, in_flight_of: InFlight, solve: DpSolver, num_stages: int | None
) -> StageSolution:
    """The best plan; where no sharding found so far fits, the leanest plans are sharded within the
    memory until there is one, or one of them does not fit either. What bounds of a stage allow is
    no plan: the leanest is that of exact costs, as far as that takes no more than some rounds."""
    completed = fitted = 0
    while True:
        try:
            return costs.best(in_flight_of, solve)
        except (NoneIsShorter, NothingFits):
            raise  # of the latter the leanest were looked at
        except UserError as error:
            problem = costs.problem(in_flight_of)
            own = error.leanest if isinstance(error, NoPlan) else None
            if own is not None and completed < MOST_COMPLETED and costs.complete(own):
                completed += 1
                continue
            # The leanest plan is searched among stages that have meshes of their own.
            if fitted == MOST_FITTED or problem.stages_per_mesh > 1:
                raise
            leanest = own or leanest_plan(problem, num_stages)
            if leanest is None or not costs.fit(leanest, in_flight_of):
                raise
            fitted += 1

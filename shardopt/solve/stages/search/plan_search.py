"""The search over schedules, which differ in how many microbatches they keep in flight.

1. For the schedule that keeps the fewest in flight, the stage DP finds its best plan, with exact
   costs, and the next K - 1.
2. For every schedule, those of these plans that fit its microbatches in flight are simulated.
3. The shortest step wins. Of plans that are equally long (`ALIKE`) it is the one whose fullest
   device holds least.

Stage costs are lower bounds until a plan needs them (`StageCosts.best`), so stages that no good
plan uses never get exact ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shardopt.hardware.sharing import most_speed
from shardopt.schedule.schedules import ALIKE, find_schedule, in_flight
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput
from shardopt.solve.stages.costs.lazy_costs import NothingFits
from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.dp.best_plans import NEAR, best_plans
from shardopt.solve.stages.dp.infeasible import leanest_plan
from shardopt.solve.stages.dp.stage_dp import least_longest_stage, solve_stages
from shardopt.solve.stages.search.rerank import SimulatedPlan, simulate_plan
from shardopt.solve.stages.search.shared_meshes import mean_in_flight
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    is_plan,
)
from shardopt.support.errors import UserError

NUM_PLANS = 8  # plans of the DP that are simulated for each schedule
MOST_FITTED = 4  # plans that are sharded within the memory because no other fits
_LONG = 8  # stages and microbatches by which schedules differ in what they hold


# The best plan of a problem; what cannot beat the given one need not be looked at.
DpSolver = Callable[[StageProblem, Stages | None], StageSolution]


class StageCosts(Protocol):
    """Stage costs of candidate stages for any schedule."""

    def problem(self, in_flight_of: InFlight) -> StageProblem:
        """The costs known so far; entries that are not exact yet are lower bounds."""

    def best(self, in_flight_of: InFlight, solve: DpSolver) -> StageSolution:
        """The best plan under exact costs, or one proven to be almost as good; `solve` finds the
        best under given ones."""

    def exact(self, plans: Sequence[Stages]) -> tuple[Stages, ...]:
        """Those of some plans that all of whose stages have exact costs, some of them made so
        now."""

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

    def exact(self, plans: Sequence[Stages]) -> tuple[Stages, ...]:
        return tuple(plans)

    def fit(self, stages: Stages, in_flight_of: InFlight) -> bool:
        return False


@dataclass(frozen=True)
class PlanSearch:
    """The plan found, and all that were simulated because they might have been shorter, best first.

    `formula_bound` is a lower bound of the formula's seconds over all plans and schedules, None for
    a baseline."""

    best: SimulatedPlan
    simulated: tuple[SimulatedPlan, ...]
    formula_bound: float | None

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
    microbatches, if none has a plan; and as soon as costs make it certain that no step is shorter
    than `faster_than` seconds."""
    # The formula counts a host that is all at work; where devices share one, stages may be faster
    # by so much.
    speed = most_speed(transfers.cluster)
    lean_first = [*schedules]
    # Leanest first: its plans serve the schedules after it, and its error says what no schedule
    # avoids.
    if len(lean_first) > 1:  # all have one stage a mesh
        lean_first.sort(key=lambda name: sum(in_flight(name, _LONG, _LONG)))
    simulated: list[SimulatedPlan] = []
    errors: list[UserError] = []
    bound = np.inf
    known: tuple[Stages, ...] = ()
    for schedule in lean_first:
        in_flight_of = schedule_in_flight(schedule)
        try:
            if known and planner.by_dp:
                # A schedule that holds more has no plan that the leanest has not, and by the
                # formula none is shorter.
                problem = stage_costs.problem(in_flight_of)
                plans = tuple(
                    evaluate(problem, stages) for stages in known if is_plan(problem, stages)
                )
            else:
                problem, plans = _exact_plans(
                    stage_costs,
                    in_flight_of,
                    planner,
                    request,
                    k,
                    # A mesh runs its stage for a share of the microbatches.
                    speed * find_schedule(schedule).streams,
                    faster_than,
                )
                bound = min(bound, plans[0].bound)
                known = known or tuple(plan.stages for plan in plans)
            if plans:
                _simulate(problem, plans, schedule, transfers, simulated)
        except UserError as error:
            errors.append(error)
    if not simulated:
        raise errors[0]
    simulated.sort(key=lambda each: (each.step_seconds, each.peak_bytes, each.plan.stages))
    search = PlanSearch(simulated[0], tuple(simulated), bound if planner.by_dp else None)
    alike = [
        each
        for each in search.best_by_schedule
        if each.step_seconds <= search.best.step_seconds * (1 + ALIKE)
    ]
    return replace(search, best=min(alike, key=lambda each: each.peak_bytes))


def _check_speed(problem: StageProblem, seconds: float) -> None:
    """Raises UserError if one stage of any plan takes so many seconds a step, by costs that may be
    lower bounds."""
    if np.isfinite(seconds) and problem.stages_per_mesh == 1:
        least = problem.num_microbatches * least_longest_stage(problem)
        if least >= seconds:
            raise UserError(
                f"one stage alone takes {least:.4g} s or more of a step, no less than "
                f"{seconds:.4g} s"
            )


def _simulate(
    problem: StageProblem,
    plans: Sequence[StageSolution],
    schedule: str,
    transfers: CutTransfers,
    simulated: list[SimulatedPlan],
) -> None:
    """Add the plans that can be placed and may be the shortest; raises UserError if none can be
    placed."""
    errors = []
    for plan in plans:
        best = min((each.step_seconds for each in simulated), default=np.inf)
        try:
            simulated_plan = simulate_plan(problem, plan, schedule, transfers, best)
            simulated += [simulated_plan] if simulated_plan is not None else []
        except UserError as error:
            errors.append(error)
    if len(errors) == len(plans):
        raise errors[0]


def _exact_plans(
    stage_costs: StageCosts,
    in_flight_of: InFlight,
    planner: BaselinePlanner,
    request: PlannerInput,
    k: int,
    speed: float,
    faster_than: float,
) -> tuple[StageProblem, tuple[StageSolution, ...]]:
    """The best plan of the planner and, of the stage DP, the best others under the costs known
    then, at exact costs."""

    def solve(problem: StageProblem, known: Stages | None) -> StageSolution:
        _check_speed(problem, faster_than * speed)
        return (
            solve_stages(problem, request.num_stages, known)
            if planner.by_dp
            else planner.solve(problem, request)
        )

    optimum = _best(stage_costs, in_flight_of, solve, request.num_stages)
    if not planner.by_dp:
        return stage_costs.problem(in_flight_of), (optimum,)
    plans = (
        plan.stages
        for plan in best_plans(
            stage_costs.problem(in_flight_of), k, request.num_stages, NEAR * speed
        )
    )
    others = stage_costs.exact([stages for stages in plans if stages != optimum.stages])
    problem = stage_costs.problem(in_flight_of)
    return problem, (
        optimum,
        *(evaluate(problem, stages) for stages in others if is_plan(problem, stages)),
    )


def _best(
    costs: StageCosts, in_flight_of: InFlight, solve: DpSolver, num_stages: int | None
) -> StageSolution:
    """The best plan; where no sharding found so far fits, the leanest plans are sharded within the
    memory until there is one, or one of them does not fit either."""
    for _ in range(MOST_FITTED):
        try:
            return costs.best(in_flight_of, solve)
        except NothingFits:
            raise  # the leanest were looked at
        except UserError:
            problem = costs.problem(in_flight_of)
            # The leanest plan is searched among stages that have meshes of their own.
            if problem.stages_per_mesh > 1:
                raise  # the leanest plan is one of stages with meshes of their own
            stages = leanest_plan(problem, num_stages)
            if stages is None or not costs.fit(stages, in_flight_of):
                raise
    return costs.best(in_flight_of, solve)

"""Which of some plans is the shortest when it runs, by the event simulator, with as few exact stage
costs as that takes.

1. Every plan is simulated, for some of its microbatches, with the costs known so far. Where these
   are lower bounds, its step will hardly become shorter.
2. The plan of the shortest step is looked at more closely, one level of its costs at a time, and
   simulated again.
3. The contest ends as soon as the shortest step is one of exact costs: every other plan is longer
   already.

So it does not matter how far the formula of the stage DP is from what runs, as long as a plan
takes part."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shardopt.solve.stages.cut_transfers import CutTransfers
from shardopt.solve.stages.search.rerank import SimulatedPlan, estimate_step, simulate_plan
from shardopt.solve.stages.stage_problem import InFlight, StageProblem, Stages, evaluate, is_plan
from shardopt.support.errors import UserError


class RefinedCosts(Protocol):
    """Stage costs that are lower bounds until somebody asks."""

    def problem(self, in_flight_of: InFlight) -> StageProblem:
        """The costs known so far; entries that are not exact yet are lower bounds."""

    def is_exact(self, stages: Stages) -> bool:
        """Whether all stages have exact costs."""

    def refine(self, stages: Stages) -> bool:
        """Find out more about the stages of a runner-up; False where all is known, or enough was
        spent on runners-up."""


@dataclass(eq=False)
class Contest:
    """A contest under some schedules, each with its microbatches in flight. A step that is less
    than `tolerance` shorter, relatively, is worth no further costs.

    `steps` are the plans of exact costs that ran, under every schedule in which they may be the
    shortest; `errors` says why others cannot be placed."""

    costs: RefinedCosts
    schedules: Sequence[tuple[str, InFlight]]
    transfers: CutTransfers
    tolerance: float = 0.0
    steps: list[SimulatedPlan] = field(default_factory=list)
    errors: list[UserError] = field(default_factory=list)
    _seen: set[Stages] = field(default_factory=set)
    _queue: list[tuple[float, Stages, float]] = field(default_factory=list)

    @property
    def least(self) -> float:
        """Seconds of the shortest step of exact costs."""
        return min((each.step_seconds for each in self.steps), default=float("inf"))

    def enter(self, plans: Iterable[Stages], tolerance: float | None = None) -> bool:
        """Whether one of these plans is new."""
        fresh = [stages for stages in dict.fromkeys(plans) if stages not in self._seen]
        self._seen.update(fresh)
        for stages in fresh:
            self._judge(stages, self.tolerance if tolerance is None else tolerance)
        return bool(fresh)

    def run(self) -> bool:
        """Whether the shortest plan was found; False where too much would have to be spent."""
        while self._queue:
            estimate, stages, tolerance = heapq.heappop(self._queue)
            if estimate >= self.least:
                self._queue.clear()
            elif self.costs.is_exact(stages) or self.costs.refine(stages):
                self._judge(stages, tolerance)
            else:
                return False
        return True

    def _judge(self, stages: Stages, tolerance: float) -> None:
        """Simulate a plan with the costs known now, where it fits."""
        costs, is_exact = self.costs.problem(self.schedules[0][1]), self.costs.is_exact(stages)
        estimate = float("inf")
        for name, in_flight_of in self.schedules:
            problem = replace(costs, in_flight=in_flight_of)
            if not is_plan(problem, stages):
                continue
            plan = evaluate(problem, stages)
            try:
                if not is_exact:
                    estimate = min(estimate, estimate_step(problem, plan, name, self.transfers))
                elif step := simulate_plan(problem, plan, name, self.transfers, self.least):
                    self.steps.append(step)
            except UserError as error:
                self.errors.append(error)
                return
        if estimate * (1 + tolerance) < self.least:
            heapq.heappush(self._queue, (estimate * (1 + tolerance), stages, tolerance))

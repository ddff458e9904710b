"""Stage costs that are computed only where a plan needs them.

1. Every candidate stage starts with a lower bound of its seconds and bytes.
2. A planner, such as the stage DP, finds the best plan under these bounds. The stages of this plan
   are refined by one level each, and the planner runs once more: plans whose bounds were too low
   fall back, and others come forward.
3. The search ends with an optimum when all costs of the best plan are exact. It ends earlier when
   the best exact plan so far is within the tolerance of the bound, or when the budget of solves is
   spent; then one stage on all devices is tried, too, and the plan says which gap remains.
4. Where bounds promise a plan and each one looked at turns out too large for the memory, the search
   would go on through thousands of them. After so many solves, or as much work as with a plan, it
   looks at the leanest instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field, replace
from math import ceil

import numpy as np

from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.cost_arrays import LAYERS, MEMORY, SECONDS, CostArrays
from shardopt.solve.stages.costs.cost_cache import CostCache, CostCounts
from shardopt.solve.stages.dp.infeasible import leanest_plan, what_is_missing
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
    is_plan,
)
from shardopt.support.errors import UserError
from shardopt.support.progress import progress

# A plan this close to the bound is good enough: costs are no closer to the optimum themselves.
GAP = 0.005

# Sharding problems for one search, of one or two tenths of a second each. Further searches with the
# same costs, under other schedules, know most of them already and get a share of it.
MOST_SOLVES, MORE_SOLVES = 250, 30

# The same in operations (`CostCounts.work`), some ten thousand a second: stages of a model with
# hundreds of layers take ten times as long as others.
MOST_WORK, MORE_WORK = 2_000_000, 250_000

# While the best plan may still be this far from the optimum, several times as many may be solved.
WIDE_GAP, WIDE_GAP_FACTOR = 0.05, 4

# Solves without a plan that fits after which only the leanest are looked at, and for how many
# more.
MOST_WITHOUT_PLAN, MOST_FOR_LEANEST = 1000, 250

# Solves between two attempts at a good plan: most of them teach little about what costs will be.
GUESS_EVERY = 20

# Stages that miss the memory by less than this factor are sharded within it, which may take as long
# as many solves, where a plan of them would be shorter than the best by more than that one.
NEARLY_FITS, WORTH_FITTING = 1.1, 1.5

# What may be spent on the runners-up of a plan, which are looked at where the formula misjudges
# them, in operations (`CostCounts.work`): some ten seconds.
MOST_FOR_OTHERS = 250_000


class NothingFits(UserError):
    """The search ended without a plan, although bounds leave some."""


# The best plan of a problem, given one to begin with.
Planner = Callable[[StageProblem, Stages | None], StageSolution]


@dataclass(eq=False)
class LazyStageCosts:
    """The costs of one problem, for all schedules and planners."""

    candidates: CandidateProblem
    gap_tolerance: float = GAP
    most_solves: int = MOST_SOLVES
    like: InitVar[LazyStageCosts | None] = None
    arrays: CostArrays = field(init=False)
    _spent_on_others: int = field(init=False, default=0)

    def __post_init__(self, like: LazyStageCosts | None) -> None:
        arrays = None if like is None else like.arrays
        cache = CostCache(self.candidates.cluster) if arrays is None else arrays.cost_cache
        self.arrays = CostArrays(self.candidates, cache, arrays)

    def within(self, problem: CandidateProblem) -> LazyStageCosts:
        """The costs of a problem that differs in its memory and in how stages share meshes, with
        all that is known of equal stages and layers."""
        return LazyStageCosts(problem, self.gap_tolerance, self.most_solves, self)

    @property
    def counts(self) -> CostCounts:
        return self.arrays.cost_cache.counts

    @property
    def num_candidates(self) -> int:
        return int(self.arrays.candidates.sum())

    @property
    def num_exact(self) -> int:
        return int((self.arrays.level >= SECONDS).sum())

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(self.arrays.refusals)

    def problem(self, in_flight_of: InFlight) -> StageProblem:
        """The costs known so far; entries that are not exact yet are lower bounds."""
        return self.arrays.stage_problem(in_flight_of)

    def is_exact(self, stages: Stages) -> bool:
        """Whether all stages have exact costs."""
        return not self._pending(stages)

    def refine(self, stages: Stages) -> bool:
        """Find out more about the stages of a runner-up; False where its costs are exact, or enough
        was spent on runners-up."""
        pending = self._pending(stages)
        if not pending or self._spent_on_others >= MOST_FOR_OTHERS:
            return False
        before = self.counts.work
        self.arrays.refine(pending)
        self._spent_on_others += self.counts.work - before
        return True

    def fit(self, stages: Stages, in_flight_of: InFlight) -> bool:
        """Shard those stages of the leanest plan within the memory that do not fit as they are,
        which takes longer and shows more; whether all of them do then."""
        problem = self.arrays.stage_problem(in_flight_of)
        copies = held_copies(problem, len(stages))[::-1]
        limits = problem.limit_bytes
        return all(
            self.arrays.fit(stage, ceil(held.in_flight), held.versions)
            for stage, held in zip(stages, copies, strict=True)
            if problem.need_bytes(held, stage) > limits[stage[2]]
        )

    def complete(self, stages: Stages) -> bool:
        """Make the costs of a plan exact; False where they are."""
        if self.is_exact(stages):
            return False
        while pending := self._pending(stages):
            self.arrays.refine(pending)
        return True

    def compute_all(self) -> None:
        """Make every entry exact."""
        stages = tuple((int(i), int(j), int(c)) for i, j, c in np.argwhere(self.arrays.candidates))
        self.complete(stages)

    def best(self, in_flight_of: InFlight, planner: Planner) -> StageSolution:
        """The best plan under exact costs, or one within the tolerance of it, relatively; its
        `bound` holds for all plans of the shardings that were found.

        The planner must choose a plan that is best under the arrays it is given. Raises its
        UserError where even the bounds allow no plan."""
        found = self._search(in_flight_of, planner)
        return self._plainest(self._nearly_fitting(found, in_flight_of, planner), in_flight_of)

    def _plainest(self, best: StageSolution, in_flight_of: InFlight) -> StageSolution:
        """The plan whose stages recompute nothing, and lay nothing on hosts, where that takes no
        longer: where the search ended because no plan is shorter, one may be as long."""
        configs = self.candidates.configs
        place_of = {config: place for place, config in enumerate(configs)}
        for number, (start, stop, config) in enumerate(best.stages):
            for plain in _plainer(configs[config]):
                if plain not in place_of:
                    continue
                stage = start, stop, place_of[plain]
                stages = (*best.stages[:number], stage, *best.stages[number + 1 :])
                if shorter := self._as_short(stages, best, in_flight_of):
                    best = shorter
                    break
        return best

    def _as_short(
        self, stages: Stages, best: StageSolution, in_flight_of: InFlight
    ) -> StageSolution | None:
        """The plan of stages, where it takes no longer than the best one and that is known, or is
        found out by a search that may do so."""
        problem = self.arrays.stage_problem(in_flight_of)
        is_spent = best.status == "feasible" and self._pending(stages)
        if is_spent or not _is_as_short(problem, stages, best):
            return None
        self.complete(stages)
        problem = self.arrays.stage_problem(in_flight_of)
        if not _is_as_short(problem, stages, best):
            return None
        return replace(evaluate(problem, stages), bound=best.bound, status=best.status)

    def _nearly_fitting(
        self, best: StageSolution, in_flight_of: InFlight, planner: Planner
    ) -> StageSolution:
        """The best plan, or a much shorter one whose stages miss the memory by little as they are,
        and can be sharded within it."""
        problem = self.arrays.stage_problem(in_flight_of)
        if not np.isfinite(problem.memory_bytes).any():
            return best
        room = tuple(NEARLY_FITS * limit for limit in problem.memory_bytes)
        stages = planner(replace(problem, memory_bytes=room), best.stages).stages
        seconds = evaluate(problem, stages).seconds
        if seconds * WORTH_FITTING > best.seconds or self._pending(stages):
            return best
        self.fit(stages, in_flight_of)
        shorter = self._better(best, in_flight_of, stages)
        assert shorter is not None
        # What fits now may be part of other plans, too.
        least = _bound_of(planner(self.arrays.stage_problem(in_flight_of), shorter.stages))
        return replace(shorter, bound=min(best.bound, least))

    def _search(self, in_flight_of: InFlight, planner: Planner) -> StageSolution:
        # The best plan under the costs known, and what is proven of all plans: the same where the
        # planner proves its plans.
        arrays, best, bound, proven = self.arrays, None, 0.0, 0.0
        # Counts go on over all searches with these costs: later ones get their share on top.
        budget = max(self.most_solves, self.counts.solves + MORE_SOLVES)
        most_work = MOST_WORK
        most_without_plan = self.counts.solves + MOST_WITHOUT_PLAN
        work_without_plan = self.counts.work + MOST_WORK
        next_guess = 0
        while True:
            # The best plan so far is a good one to begin with: its costs are exact, so it is no
            # worse now.
            plan = planner(
                arrays.stage_problem(in_flight_of), None if best is None else best.stages
            )
            bound, proven = max(bound, plan.seconds), max(proven, _bound_of(plan))
            progress(
                self.counts.solves, 0, f"stage costs found, a step takes {bound:.3g} s at least"
            )
            pending = self._pending(plan.stages)
            # All its costs are exact and all others are bounds, so no plan is shorter.
            if not pending:
                return replace(plan, bound=proven)
            if best is not None and 1 - bound / best.seconds > self.gap_tolerance:
                best = self._polished(best, in_flight_of)
                bound, proven = min(bound, best.seconds), min(proven, best.seconds)
            if best is not None:
                gap = 1 - bound / best.seconds
                factor = WIDE_GAP_FACTOR if gap > WIDE_GAP else 1
                is_spent = self.counts.solves >= budget * factor or self.counts.work >= most_work
                if is_spent and gap > self.gap_tolerance:
                    best = self._or_one_stage(best, in_flight_of)
                if is_spent or gap <= self.gap_tolerance:
                    best = self._best_known(best, in_flight_of, planner)
                    return replace(best, status="feasible", bound=proven)
            elif self.counts.solves >= most_without_plan or self.counts.work >= work_without_plan:
                best, bound, proven = self._leanest(in_flight_of), 0.0, 0.0  # more fits now
                continue
            if best is None:  # the first one found is seldom the best
                most_work = max(MOST_WORK, self.counts.work + MORE_WORK)
            arrays.refine(pending)
            best = self._completed(best, in_flight_of, plan.stages)
            if self.counts.solves >= next_guess and all(
                arrays.level[stage] >= LAYERS for stage in plan.stages
            ):
                best = self._guess(best, in_flight_of, planner)
                next_guess = self.counts.solves + GUESS_EVERY

    def _leanest(self, in_flight_of: InFlight) -> StageSolution:
        """The plan that probably lacks the fewest bytes, sharded within the memory where it has to
        be. Raises NothingFits where that is not possible."""
        budget, num_stages = self.counts.solves + MOST_FOR_LEANEST, self.candidates.num_stages
        tried = ""
        # Whatever is refined is looked at no more often than there are solves for it.
        for _ in range(MOST_FOR_LEANEST * (self.candidates.stages_per_mesh == 1)):
            stages = leanest_plan(self.arrays.likely_problem(in_flight_of), num_stages)
            if stages is None or self.counts.solves > budget:
                break
            if pending := self._pending(stages):
                self.arrays.refine(pending)
                continue
            if plan := self._better(None, in_flight_of, stages):
                return plan
            tried = f": {what_is_missing(self.arrays.stage_problem(in_flight_of), stages)}"
            if not self.fit(stages, in_flight_of):
                break
        raise NothingFits(
            "no plan was found that fits the memory of a device, in "
            f"{self.counts.solves} sharding problems{tried}"
        )

    def _or_one_stage(self, best: StageSolution, in_flight_of: InFlight) -> StageSolution:
        """The plan, or a shorter one without a pipeline: there are few of those, and a search that
        was not finished should not lose to them. The likely ones first, as long as that is no more
        work than for later searches."""
        layers, most_work = self.arrays.candidates.shape[1] - 1, self.counts.work + MORE_WORK
        configs = np.flatnonzero(self.arrays.candidates[0, layers])
        likely = np.argsort(self.arrays.seconds[0, layers, configs], kind="stable")
        for config in map(int, configs[likely]):
            stages = ((0, layers, config),)
            while (pending := self._pending(stages)) and self.counts.work < most_work:
                problem = self.arrays.stage_problem(in_flight_of)
                if (
                    not is_plan(problem, stages)
                    or evaluate(problem, stages).seconds >= best.seconds
                ):
                    break
                self.arrays.refine(pending)
            best = self._better(best, in_flight_of, stages) or best
        return best

    def _best_known(
        self, best: StageSolution, in_flight_of: InFlight, planner: Planner
    ) -> StageSolution:
        """The best plan of stages that are known to the end: it may not be among those that bounds
        have brought forward."""
        problem = self.arrays.stage_problem(in_flight_of)
        known = np.where(self.arrays.level >= MEMORY, problem.seconds, np.inf)
        try:
            plan = planner(replace(problem, seconds=known), None).stages
        except UserError:  # of a planner that looks at some plans only, or wants a shorter one
            return best
        return self._better(best, in_flight_of, plan) or best

    def _guess(
        self, best: StageSolution | None, in_flight_of: InFlight, planner: Planner
    ) -> StageSolution | None:
        """A good plan where the bounds do not show one yet: the best under likely costs, made
        exact."""
        try:
            stages = planner(self.arrays.likely_problem(in_flight_of), None).stages
        except UserError:
            return best
        if pending := self._pending(stages):
            self.arrays.refine(pending)
        return self._better(best, in_flight_of, stages)

    def _polished(self, best: StageSolution, in_flight_of: InFlight) -> StageSolution:
        """The plan, with shorter shardings of those stages of which the shortest does not fit."""
        if not self.arrays.has_lean(best.stages):
            return best
        copies = held_copies(self.arrays.stage_problem(in_flight_of), len(best.stages))[::-1]
        for stage, held in zip(best.stages, copies, strict=True):
            self.arrays.polish(stage, ceil(held.in_flight), held.versions)
        return self._better(best, in_flight_of, best.stages) or best

    def _completed(
        self, best: StageSolution | None, in_flight_of: InFlight, stages: Stages
    ) -> StageSolution | None:
        """The plan of `stages` with an account of its memory, if all its seconds are known and it
        is shorter by more than the tolerance: most plans whose bounds are lower will turn out to be
        longer, and which need not be looked at a plan that is known to the end decides."""
        if all(self.arrays.level[stage] >= SECONDS for stage in stages):
            problem = self.arrays.stage_problem(in_flight_of)
            seconds = np.inf if best is None else best.seconds * (1 - self.gap_tolerance)
            if is_plan(problem, stages) and evaluate(problem, stages).seconds < seconds:
                self.arrays.refine(self._pending(stages))
        return self._better(best, in_flight_of, stages)

    def _pending(self, stages: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The stages of a plan to find out more about: those of which least is known, as what is
        learned first costs least, and often the plan has lost by then."""
        level = self.arrays.level
        least = [
            [stage for stage in dict.fromkeys(stages) if level[stage] < known]
            for known in (LAYERS, SECONDS, MEMORY)
        ]
        return next(filter(None, least), [])

    def _better(
        self, best: StageSolution | None, in_flight_of: InFlight, stages: Stages
    ) -> StageSolution | None:
        """The plan of `stages` if all of it is exact, it fits, and it is shorter."""
        if any(self.arrays.level[stage] < MEMORY for stage in stages):
            return best
        problem = self.arrays.stage_problem(in_flight_of)
        if not is_plan(problem, stages):
            return best
        plan = evaluate(problem, stages)
        return plan if best is None or plan.seconds < best.seconds else best


def _bound_of(plan: StageSolution) -> float:
    """The lower bound that a planner proves, or that of one which has none: what it finds best."""
    return plan.seconds if np.isnan(plan.bound) else plan.bound


def _plainer(config: StageConfig) -> list[StageConfig]:
    """The same without recomputation, or without what lies on hosts, the plainest first."""
    at_all = replace(config, recompute="none", offload="none")
    each = (at_all, replace(config, offload="none"), replace(config, recompute="none"))
    return [plain for plain in dict.fromkeys(each) if plain != config]


def _is_as_short(problem: StageProblem, stages: Stages, best: StageSolution) -> bool:
    return is_plan(problem, stages) and evaluate(problem, stages).seconds <= best.seconds

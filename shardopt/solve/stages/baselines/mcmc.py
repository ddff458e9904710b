"""Baseline `mcmc`: a random walk over plans instead of the stage DP, as FlexFlow searches (Jia et
al., MLSys'19, arXiv 1807.05358, section 6.2), in the space of the stage DP and at its costs.

A Metropolis-Hastings chain whose stationary distribution is proportional to exp(-energy) over all
exact covers of layers and devices, with energy = SHARPNESS · log(seconds of a step), more where
stages exceed the memory. FlexFlow takes the seconds themselves; the logarithm makes the walk the
same in any unit. A proposal is one of

1. move a cut by a layer,
2. give the two stages at a cut other configs with the same devices together,
3. give one stage another config of the same size,
4. split a stage at a layer,
5. join the two stages at a cut,
6. any plan, each with equal probability, so that no part of the space is out of reach.

Each draws a place (a layer) and configs with equal probability, whatever the plan; where the move
is impossible, the plan stays. So moves 1 to 3 and 6 are symmetric, and 4 and 5 reverse each other
with a ratio that is known."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput
from shardopt.solve.stages.baselines.random_plans import RandomPlans
from shardopt.solve.stages.dp.infeasible import no_plan
from shardopt.solve.stages.stage_problem import (
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
)
from shardopt.support.errors import UserError

# A plan that is a tenth slower than the present one is taken in one case of seven. Half of this
# finds the optimum of small random problems somewhat sooner, twice as much comes nearer to that of
# large ones.
_SHARPNESS = 20.0
# One of so many proposals is any plan at all.
_ANYWHERE = 10

T = TypeVar("T")
Devices = tuple[int, ...]  # of every host group


def mcmc_stages(problem: StageProblem, request: PlannerInput) -> StageSolution:
    """The best plan that fits among all that the chain looks at. The same for the same seed and
    proposals.

    Raises UserError where there is no plan, or the chain meets none that fits.
    """
    plans = RandomPlans(problem, request.num_stages)
    if not plans.any:
        raise no_plan(problem, request.num_stages)
    moves = Moves(problem, Random(request.seed), may_cut=request.num_stages is None)
    best = _walk(problem, plans, moves, request.proposals)
    if best is None:
        raise UserError(
            f"none of {request.proposals + 1} plans that inter-op=mcmc looked at fits the memory"
        )
    return best


MCMC = BaselinePlanner(mcmc_stages)


def _walk(
    problem: StageProblem, plans: RandomPlans, moves: Moves, proposals: int
) -> StageSolution | None:
    """The best plan that fits, and None if there was none."""
    best: StageSolution | None = None
    stages: Stages = ()
    energy = math.inf
    for number in range(proposals + 1):
        anywhere = number % _ANYWHERE == 0
        proposed, ratio = (plans.draw(moves.random), 0.0) if anywhere else moves.propose(stages)
        # A move that was impossible: staying is what Metropolis-Hastings does with it.
        if proposed == stages:
            continue
        plan, lacking = evaluate(problem, proposed), _lacking(problem, proposed)
        # Outside of the space: a config without a sharding for these layers.
        if not math.isfinite(plan.seconds):
            continue
        if not lacking and (best is None or plan.seconds < best.seconds):
            best = plan
        proposed_energy = _SHARPNESS * (math.log(plan.seconds) + lacking)
        if proposed_energy <= energy + ratio or moves.random.random() < math.exp(
            energy - proposed_energy + ratio
        ):
            stages, energy = proposed, proposed_energy
    return best


def _lacking(problem: StageProblem, stages: Stages) -> float:
    """0 for a plan that fits; for each stage that does not, 1 and the logarithm of what it needs
    over what there is."""
    total = 0.0
    for stage, copies in zip(stages, held_copies(problem, len(stages))[::-1], strict=True):
        config = problem.configs[stage[2]]
        need = float(problem.need_bytes(copies, stage))
        limit = problem.memory_bytes[config.group]
        if need > limit:
            total += 1 + math.log(max(need / limit, 1)) if limit else 1
    return total


@dataclass(eq=False)
class Moves:
    """Local proposals. `singles[d]` are the configs with devices d, `pairs[d]` two of them with d
    together."""

    problem: StageProblem
    random: Random
    may_cut: bool
    singles: dict[Devices, list[int]] = field(default_factory=dict)
    pairs: dict[Devices, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        groups = range(len(problem.num_devices))
        self.devices = [
            tuple(c.num_devices * (c.group == group) for group in groups) for c in problem.configs
        ]
        for config, devices in enumerate(self.devices):
            self.singles.setdefault(devices, []).append(config)
        for first, devices in enumerate(self.devices):
            for second, others in enumerate(self.devices):
                self.pairs.setdefault(_sum(devices, others), []).append((first, second))
        self.kinds = (
            self._shift,
            self._trade,
            self._change,
            *((self._split, self._join) if self.may_cut else ()),
        )

    def propose(self, stages: Stages) -> tuple[Stages, float]:
        """A plan next to this one (or itself, where the move that was drawn is impossible) and the
        logarithm of the probability to be proposed the way back over that of the way there."""
        return self._one_of(self.kinds)(stages)

    def _one_of(self, things: Sequence[T]) -> T:
        return things[int(self.random.random() * len(things))]

    def _place(self, stages: Stages) -> tuple[int, int, bool]:
        """A layer, the stage that it is in, and whether there is a cut before it."""
        layer = int(self.random.random() * self.problem.num_layers)
        index = bisect_right([start for start, _, _ in stages], layer) - 1
        return layer, index, index > 0 and stages[index][0] == layer

    def _shift(self, stages: Stages) -> tuple[Stages, float]:
        cut, index, is_cut = self._place(stages)
        to = cut + self._one_of((-1, 1))
        if not is_cut or not stages[index - 1][0] < to < stages[index][1]:
            return stages, 0.0
        (start, _, first), (_, end, second) = stages[index - 1 : index + 1]
        return (
            *stages[: index - 1],
            (start, to, first),
            (to, end, second),
            *stages[index + 1 :],
        ), 0.0

    def _trade(self, stages: Stages) -> tuple[Stages, float]:
        cut, index, is_cut = self._place(stages)
        if not is_cut:
            return stages, 0.0
        (start, _, first), (_, end, second) = stages[index - 1 : index + 1]
        first, second = self._one_of(self.pairs[_sum(self.devices[first], self.devices[second])])
        return (
            *stages[: index - 1],
            (start, cut, first),
            (cut, end, second),
            *stages[index + 1 :],
        ), 0.0

    def _change(self, stages: Stages) -> tuple[Stages, float]:
        _, index, _ = self._place(stages)
        start, end, config = stages[index]
        other = self._one_of(self.singles[self.devices[config]])
        return (*stages[:index], (start, end, other), *stages[index + 1 :]), 0.0

    def _split(self, stages: Stages) -> tuple[Stages, float]:
        cut, index, _ = self._place(stages)
        start, end, config = stages[index]
        pairs = self.pairs.get(self.devices[config], [])
        if cut == start or not pairs:
            return stages, 0.0
        first, second = self._one_of(pairs)
        # The way there draws one of the pairs, the way back one of the single configs; all else
        # that is drawn is equally likely both ways.
        ratio = math.log(len(pairs) / len(self.singles[self.devices[config]]))
        return (
            *stages[:index],
            (start, cut, first),
            (cut, end, second),
            *stages[index + 1 :],
        ), ratio

    def _join(self, stages: Stages) -> tuple[Stages, float]:
        _, index, is_cut = self._place(stages)
        if not is_cut:
            return stages, 0.0
        (start, _, first), (_, end, second) = stages[index - 1 : index + 1]
        devices = _sum(self.devices[first], self.devices[second])
        if devices not in self.singles:
            return stages, 0.0
        ratio = math.log(len(self.singles[devices]) / len(self.pairs[devices]))
        return (
            *stages[: index - 1],
            (start, end, self._one_of(self.singles[devices])),
            *stages[index + 1 :],
        ), ratio


def _sum(first: Devices, second: Devices) -> Devices:
    return tuple(a + b for a, b in zip(first, second, strict=True))

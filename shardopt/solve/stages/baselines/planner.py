"""What a planner of stages is: the configs that it allows, and how it chooses a plan.

All planners see the same cost model. They differ in the configs that they allow (submeshes, logical
shapes, how values inside a stage are sharded) and in the plans that they look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shardopt.solve.stages.stage_problem import StageConfig, StageProblem, StageSolution
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class PlannerInput:
    """Input of a planner: a number of stages (None for any), and the seed and the proposals of
    random searches."""

    num_stages: int | None = None
    seed: int = 0
    proposals: int = 10000


@dataclass(frozen=True)
class BaselinePlanner:
    """`configs` filters the configs that a stage may have, and sets their sharding methods where
    the planner decides those. `solve` returns the best plan that it can find, and raises UserError
    where there is none. `one_stage`: all layers are one stage. `by_dp`: `solve` is the stage DP
    over these configs, so its runners-up may be simulated, too; `near` gives those of another one,
    at most so many, the best first."""

    solve: Callable[[StageProblem, PlannerInput], StageSolution]
    configs: Callable[[Iterable[StageConfig]], tuple[StageConfig, ...]] = tuple
    one_stage: bool = False
    by_dp: bool = False
    near: Callable[[StageProblem, PlannerInput, int], list[StageSolution]] | None = None

    def request(self, name: str, request: PlannerInput) -> PlannerInput:
        """The request as this planner takes it. Raises UserError for several stages where there can
        be but one."""
        if self.one_stage and request.num_stages not in (None, 1):
            raise UserError(
                f"inter-op={name} makes one stage of all layers, found "
                f"num-stages={request.num_stages}"
            )
        return replace(request, num_stages=1) if self.one_stage else request


def with_methods(
    configs: Iterable[StageConfig], methods: Callable[[StageConfig], Iterable[str]]
) -> tuple[StageConfig, ...]:
    """Each config once for every method that `methods` names for it.

    Raises UserError when methods have been chosen already.
    """
    configs = tuple(configs)
    chosen = next((config.method for config in configs if config.method != "ilp"), None)
    if chosen is not None:
        raise UserError(
            "this inter-op planner chooses how stages are sharded: expected intra-op=ilp, "
            f"found {chosen}"
        )
    return tuple(replace(config, method=method) for config in configs for method in methods(config))

"""What a planner of stages is: which stages it may use, and how it chooses a plan of them.

All planners see one cost model. What tells them apart are the options that they leave of those at
hand (submeshes, logical shapes, how values inside of a stage are sharded) and the plans that they
look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shardopt.solve.stages.stage_problem import StageOption, StageProblem, StageSolution
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class Request:
    """What a planner is asked for: a number of stages (None leaves it open), and what a random
    search may do."""

    num_stages: int | None = None
    seed: int = 0
    proposals: int = 10000


@dataclass(frozen=True)
class Planner:
    """`options` leaves of all options, with methods where the planner decides those, what a stage
    may be. `solve` returns the best plan that it can find, and raises UserError where there is
    none. `one_stage`: all layers are one. `by_dp`: `solve` is the stage DP over these options, so
    its runners-up may be simulated, too."""

    solve: Callable[[StageProblem, Request], StageSolution]
    options: Callable[[Iterable[StageOption]], tuple[StageOption, ...]] = tuple
    one_stage: bool = False
    by_dp: bool = False

    def request(self, name: str, request: Request) -> Request:
        """The request as this planner takes it. Raises UserError for several stages where there can
        be but one."""
        if self.one_stage and request.num_stages not in (None, 1):
            raise UserError(
                f"inter-op={name} makes one stage of all layers, found "
                f"num-stages={request.num_stages}"
            )
        return replace(request, num_stages=1) if self.one_stage else request


def with_methods(
    options: Iterable[StageOption], methods: Callable[[StageOption], Iterable[str]]
) -> tuple[StageOption, ...]:
    """Each option once for every method that `methods` names for it.

    Raises UserError when methods have been chosen already.
    """
    options = tuple(options)
    chosen = next((option.method for option in options if option.method != "ilp"), None)
    if chosen is not None:
        raise UserError(
            "this inter-op planner chooses how stages are sharded: expected intra-op=ilp, found "
            f"{chosen}"
        )
    return tuple(replace(option, method=method) for option in options for method in methods(option))

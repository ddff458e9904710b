"""Stage DP: cut the layers into pipeline stages and give each a submesh, so that one training step
is shortest.

Alpa (OSDI'22, section 5.2), equations 2-4: T* = min sum of t_i + (B - 1) · max t_i over stages that
use all devices. Departures from the paper:

1. Memory is fixed + in_flight · activations, with the in-flight count of the schedule at hand, not
   always 1F1B's.
2. The transfer at a cut is one more slot of the pipeline: it counts in the sum and in the
   maximum.
3. t_max is searched by branch and bound instead of upwards
   (`shardopt.solve.stages.dp.bottleneck_search`).
4. F drops the number of stages where memory does not depend on it, which is most of the time.
5. Hosts may be of several groups; every group's devices are covered exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardopt.hardware.cluster import Submesh
from shardopt.solve.stages.dp.bottleneck_search import BottleneckSearch
from shardopt.solve.stages.dp.infeasible import no_plan
from shardopt.solve.stages.dp.searches import SearchTables
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    is_plan,
)
from shardopt.support.errors import UserError
from shardopt.support.spans import timed


@timed("stage DP: solve")
def solve_stages(
    problem: StageProblem, num_stages: int | None = None, incumbent: Stages | None = None
) -> StageSolution:
    """The plan with the shortest step, with exactly `num_stages` stages if given.

    `incumbent` is a plan to begin with, such as the best under other costs: what cannot beat it is
    not looked at. It is ignored where it is no plan of this problem. Raises UserError that says
    what is missing: a cover of the devices, a feasible sharding, or memory by stage."""
    if num_stages is not None and not 1 <= num_stages <= problem.most_stages:
        raise UserError(
            f"cannot make {num_stages} stages of {problem.num_layers} layers on "
            f"{problem.total_devices} devices: a stage needs a layer and a device"
        )
    best: StageSolution | None = None
    if (
        incumbent is not None
        and num_stages in (None, len(incumbent))
        and is_plan(problem, incumbent)
    ):
        best = evaluate(problem, incumbent)
    evaluations = 0
    for search in SearchTables(problem, num_stages).fewest():
        # What is best so far cuts the searches after it.
        bottleneck = BottleneckSearch(search, best)
        best = bottleneck.run()
        evaluations += bottleneck.evaluations
    if best is None:
        raise no_plan(problem, num_stages)
    return replace(best, status="optimal", bound=best.seconds, evaluations=evaluations)


def use_kernels_for_stages() -> None:
    """Cut two layers into one stage or two: that calls every kernel."""
    length = np.arange(3)[None, :] - np.arange(3)[:, None]
    seconds = np.where(length > 0, length, np.inf)[..., None] / np.array([1.0, 2.0])
    zeros = np.zeros_like(seconds)
    configs = tuple(StageConfig(size, Submesh(1, size), (1, size)) for size in (1, 2))
    problem = StageProblem(2, configs, (2,), 2, seconds, zeros, zeros, zeros, (1.0,))
    solve_stages(problem)


def least_longest_stage(problem: StageProblem) -> float:
    """A lower bound of the longest stage of any plan, whatever its schedule and transfers; inf if
    there is no plan.

    With costs that are lower bounds it is one, too."""
    # Every schedule holds at least the microbatch that is running.
    lean = replace(problem, in_flight=_one_in_flight, transfer_seconds=None)
    recursion = next(SearchTables(lean).fewest()).recursion
    low, least_sum = recursion.low_end
    return float(recursion.candidates[low + 1]) if np.isfinite(least_sum) else np.inf


def _one_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    return 1

"""Why there is no plan: the first thing missing, in this order: a cover of the devices, shardings,
memory.

The plan that lacks the fewest bytes is found by the recursion of the stage DP, with missing bytes
in place of seconds and the least t_max with an answer. With exact bytes that is how much more
memory a device needs. With bytes of shardings that were found, which others may undercut, the same
plan of their proven bounds says what is never enough."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.stages.dp.recursion import PipelineSlot, Recursion, make_sizes
from shardopt.solve.stages.dp.searches import CostTable, count_groups, levels_of, most_layers
from shardopt.solve.stages.stage_problem import Copies, StageProblem, Stages, held_copies
from shardopt.support.counts import counted, plural
from shardopt.support.errors import UserError
from shardopt.support.sizes import format_bytes

if TYPE_CHECKING:
    from shardopt.solve.stages.dp.kernels import Costs


class NoPlan(UserError):
    """There is no plan of a problem. `leanest` is the one that lacks the fewest bytes; None where
    something else is missing."""

    def __init__(self, message: str, leanest: Stages | None = None) -> None:
        super().__init__(message)
        self.leanest = leanest


def no_plan(problem: StageProblem, num_stages: int | None, shared_by: int = 1) -> NoPlan:
    """What a problem without a plan lacks, for the user. With `shared_by` the memory of the problem
    is the share of each of so many stages."""
    cut = counted(problem.num_layers, "layer")
    if num_stages is not None:
        cut = f"{counted(num_stages, 'stage')} of {cut}"
    if _leanest(problem, num_stages, np.where(problem.ordered(), 0.0, np.inf)) is None:
        return NoPlan(f"{cut} cannot use exactly {_devices(problem)}")
    shardable = np.where(problem.shardable(), 0.0, np.inf)
    if _leanest(problem, num_stages, shardable) is None:
        covered = [
            bool(np.isfinite(shardable[: k + 1, k + 1 :]).any()) for k in range(problem.num_layers)
        ]
        where = "" if all(covered) else f": layer {covered.index(False)} is in no feasible stage"
        return NoPlan(f"no cut of {cut} has a feasible sharding for every stage{where}")
    plan = leanest_plan(problem, num_stages)
    assert plan is not None, "missing bytes are finite wherever there is a sharding"
    memory = f"the memory of a device ({_sizes(problem, 0.0, shared_by)})"
    if shared_by > 1:
        memory += f", of which each of its {shared_by} stages has {_sizes(problem, 0.0)}"
    return NoPlan(
        f"no plan of {cut} fits {memory}: "
        f"{what_is_missing(problem, plan)}; {_enough(problem, plan, num_stages, shared_by)}",
        plan,
    )


def leanest_plan(problem: StageProblem, num_stages: int | None) -> Stages | None:
    """The plan whose most demanding stage lacks the fewest bytes; None where stages cannot cover
    the devices or have no sharding."""
    shardable = np.where(problem.shardable(), 0.0, np.inf)
    return _leanest(problem, num_stages, shardable, with_memory=True)


def _enough(problem: StageProblem, plan: Stages, num_stages: int | None, shared_by: int) -> str:
    """How much memory a plan takes: what is proven, and else what was found."""
    found = _sizes(problem, _most_missing(problem, plan), shared_by)
    if problem.least_bytes is None:
        return f"less than {found} is never enough"
    fixed, activation = problem.least_bytes
    bounds = replace(problem, fixed_bytes=fixed, activation_bytes=activation, outside_bytes=None)
    plan_of_bounds = leanest_plan(bounds, num_stages)
    assert plan_of_bounds is not None, "the same stages have a sharding"
    if (proven := _most_missing(bounds, plan_of_bounds)) > 0:
        return f"less than {_sizes(problem, proven, shared_by)} is never enough"
    return f"the least that was found is {found}"


def _most_missing(problem: StageProblem, plan: Stages) -> float:
    """Bytes that the most demanding stage of a plan lacks; 0 where it fits."""
    copies = held_copies(problem, len(plan))[::-1]
    limits = problem.limit_bytes
    return max(
        0.0,
        *(
            float(problem.need_bytes(held, stage)) - float(limits[stage[2]])
            for stage, held in zip(plan, copies, strict=True)
        ),
    )


def what_is_missing(problem: StageProblem, plan: Stages) -> str:
    """What each stage of the leanest plan needs and lacks."""
    copies = held_copies(problem, len(plan))[::-1]
    over = []
    for number, ((start, end, config), held) in enumerate(zip(plan, copies, strict=True)):
        limit = problem.memory_bytes[problem.configs[config].group]
        need = float(problem.need_bytes(held, (start, end, config)))
        older = f", {counted(held.versions, 'older version')} of weights" * bool(held.versions)
        if need > limit:
            over.append(
                f"stage {number} (layers {start}-{end - 1} on {problem.configs[config]}, "
                f"{held.in_flight:g} in flight{older}) needs {format_bytes(ceil(need))} and lacks "
                f"{format_bytes(ceil(need - limit))}"
            )
    return f"in the leanest, with {counted(len(plan), 'stage')}, {', '.join(over)}"


def _sizes(problem: StageProblem, more: float, shared_by: int = 1) -> str:
    """The memory of the devices of every host group, of which each of so many stages has its share
    and so many more bytes."""
    sizes = (format_bytes(shared_by * ceil(limit + more)) for limit in problem.memory_bytes)
    return " or ".join(dict.fromkeys(sizes))


def _devices(problem: StageProblem) -> str:
    """`8 devices with submeshes of 1, 2 devices`, for every host group."""
    parts = []
    for group, count in enumerate(problem.num_devices):
        sizes = sorted({config.num_devices for config in problem.configs if config.group == group})
        where = f" of host group {group}" if len(problem.num_devices) > 1 else ""
        parts.append(
            f"{counted(count, 'device')}{where} with submeshes of "
            f"{', '.join(map(str, sizes)) or 'no'} {plural(max(sizes, default=0), 'device')}"
        )
    return " and ".join(parts)


def _leanest(
    problem: StageProblem, num_stages: int | None, allowed: np.ndarray, with_memory: bool = False
) -> Stages | None:
    """The plan of stages with `allowed` 0 (not inf) whose most demanding stage lacks the fewest
    bytes; any plan without memory."""
    sizes, size_of = make_sizes(problem)
    most, plans = most_layers(allowed), []

    def lack(held: Copies, where: tuple[int, ...] = ()) -> np.ndarray:
        return allowed[where] + (_lack_bytes(problem, held, where) if with_memory else 0.0)

    for copies, counts in count_groups(problem, num_stages):
        levels, level_of = levels_of(copies)
        costs = np.empty((len(levels), problem.num_layers, most, len(sizes.offset)))
        for level, held in enumerate(levels):
            _take_least(costs[level], lack(held), size_of)
        # Missing bytes stand for the seconds of a stage and for its longest slot: the least t_max
        # is then what the neediest stage lacks, and the sum decides between equals.
        table = CostTable(_alone(costs), level_of, sizes)
        for recursion in table.recursions(counts, problem.most_stages):
            missing, answer = _least_maximum(recursion)
            stages = []
            for (start, end, size), level in zip(
                answer, level_of[: len(answer)][::-1], strict=True
            ):
                of_size = np.where(size_of == size, lack(levels[level], (start, end)), np.inf)
                stages.append((start, end, int(of_size.argmin())))
            if stages:
                plans.append((missing, tuple(stages)))
    return min(plans, key=lambda plan: plan[0])[1] if plans else None


def _lack_bytes(problem: StageProblem, copies: Copies, where: tuple[int, ...]) -> np.ndarray:
    """How many bytes are missing, as `StageProblem.need_bytes`."""
    return np.maximum(problem.need_bytes(copies, where) - problem.limit_bytes, 0.0)


def _least_maximum(recursion: Recursion) -> tuple[float, tuple[PipelineSlot, ...]]:
    """The least t_max with an answer, and the answer; none if there is none."""
    candidates = recursion.candidates
    # Whatever fits with some bytes missing fits with more, so halving finds the least.
    low, high = -1, len(candidates) - 1
    answer = recursion.solve(candidates[high]) if high >= 0 else None
    if answer is None:
        return np.inf, ()
    while high - low > 1:
        middle = (low + high) // 2
        tighter = recursion.solve(candidates[middle])
        low, high = (middle, high) if tighter is None else (low, middle)
        answer = tighter or answer
    return float(candidates[high]), answer


def _alone(seconds: np.ndarray) -> Costs:
    """Costs of stages with nothing between them."""
    from shardopt.solve.stages.dp.kernels import Costs

    nothing = np.zeros(seconds.shape[1:3])
    return Costs(seconds, nothing, nothing)


def _take_least(least: np.ndarray, values: np.ndarray, size_of: np.ndarray) -> None:
    """Into `least`, `[L, W, sizes]` by first layer and number of layers behind that, the least of
    `values`, `[L + 1, L + 1, C]`, on configs of each size."""
    layers, most, sizes = least.shape
    least[:] = np.inf
    for behind in range(most):
        first = np.arange(layers - behind)
        each = values[first, first + behind + 1]
        for size in range(sizes):
            least[first, behind, size] = each[:, size_of == size].min(axis=1, initial=np.inf)

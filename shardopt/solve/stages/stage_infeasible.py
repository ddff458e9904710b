"""Why there is no plan: the first thing missing, in this order: a cover of the devices, shardings, memory."""

from __future__ import annotations

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, Stages, stage_memory_bytes
from shardopt.solve.stages.stage_recursion import make_search, solve_recursion
from shardopt.solve.stages.stage_searches import count_groups


def why_infeasible(problem: StageProblem, num_stages: int | None) -> str:
    """What a problem without a plan lacks, for the user."""
    stages = "" if num_stages is None else f"{num_stages} stages of "
    if _leanest(problem, num_stages, problem.ordered(), with_memory=False) is None:
        return f"{stages}{problem.num_layers} layers cannot use exactly {_devices(problem)}"
    shardable = problem.shardable()
    if _leanest(problem, num_stages, shardable, with_memory=False) is None:
        covered = [bool(shardable[: k + 1, k + 1 :].any()) for k in range(problem.num_layers)]
        where = "" if all(covered) else f": layer {covered.index(False)} is in no feasible stage"
        return f"no cut of {stages}{problem.num_layers} layers has a feasible sharding for every stage{where}"
    plan = _leanest(problem, num_stages, shardable, with_memory=True) or ()
    needs, limits = stage_memory_bytes(problem, plan), problem.limit_bytes()
    over = [
        f"stage {index} (layers {start}-{end - 1} on {problem.options[option]}) {_gib(need)}"
        for index, ((start, end, option), need) in enumerate(zip(plan, needs, strict=True))
        if need > limits[option]
    ]
    return (
        f"no plan of {stages}{problem.num_layers} layers fits the memory of a device "
        f"({' or '.join(dict.fromkeys(map(_gib, problem.memory_bytes)))}): "
        f"the leanest, with {len(plan)} stages, needs for {', '.join(over)}"
    )


def _devices(problem: StageProblem) -> str:
    """`8 devices with submeshes of 1, 2 devices`, for every host group."""
    parts = []
    for group, count in enumerate(problem.num_devices):
        sizes = sorted({option.num_devices for option in problem.options if option.group == group})
        where = f" of host group {group}" if len(problem.num_devices) > 1 else ""
        parts.append(f"{count} devices{where} with submeshes of {', '.join(map(str, sizes)) or 'no'} devices")
    return " and ".join(parts)


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**20 else f"{count:.0f} bytes"


def _leanest(problem: StageProblem, num_stages: int | None, allowed: np.ndarray, with_memory: bool) -> Stages | None:
    """The plan of `allowed` stages whose most demanding stage needs the fewest bytes; any plan without memory."""
    plans = []
    for held, counts in count_groups(problem, num_stages):
        needs = np.zeros((len(held), *allowed.shape))
        if with_memory:
            needs = problem.fixed_bytes + np.multiply.outer(held, problem.activation_bytes)
        search = make_search(problem, np.where(allowed, needs, np.inf), 1, counts)
        stages = solve_recursion(search, search.by_size, problem.num_devices, np.maximum)
        if stages is not None:
            plans.append((max(stage_memory_bytes(problem, stages)), stages))
    return min(plans, key=lambda plan: plan[0])[1] if plans else None

"""Compiled loops of the search for stages that share meshes. Importing this module loads numba.

Borders are int64 `[S + 1]`: stage s has layers borders[s] to borders[s + 1] - 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from shardopt.solve.stages.dp.kernels import FAST
from shardopt.support.compiled import CALLED, INNER

# Of two plans that differ by less, neither is shorter.
_ROUNDING = 1e-12


# Renamed tuples fail to load from old caches (`shardopt.solve.stages.dp.kernels`).
class SharedMeshCosts(NamedTuple):
    """What stages cost, and what the step is made of (`shardopt.solve.stages.stage_problem`)."""

    seconds: np.ndarray  # [levels, L + 1, L + 1]; inf where infeasible
    level: np.ndarray  # int64 [S]: of each stage
    cut_sum: np.ndarray  # [L + 1]: what the cut before a layer adds to the sum
    cut_slot: np.ndarray  # [L + 1]: and as a slot
    meshes: np.ndarray  # int64 [streams, S]
    links: np.ndarray  # int64 [streams, S]; -1 where nothing is crossed
    loads: int  # meshes and pairs of meshes
    each: int  # stages of the model on a mesh
    repeats: int  # slots behind the first
    longest_share: float


@njit(**CALLED, fastmath=FAST)
def least_path(
    costs: SharedMeshCosts,
    weights: np.ndarray,
    before: np.ndarray,
    best: np.ndarray,
    ends: np.ndarray,
) -> None:
    """best[s, k]: the least weighted seconds of stages s and later, of layers k and later, and
    ends[s, k] the end of stage s in it; `weights` `[S]` of the stages, and what is `before` each
    from each layer on, `[S, L + 1]`."""
    stages, layers = len(weights), costs.seconds.shape[1] - 1
    best[:] = np.inf
    best[stages, layers] = 0.0
    for s in range(stages - 1, -1, -1):
        seconds, last = costs.seconds[costs.level[s]], layers - (stages - 1 - s)
        for k in range(s, last):
            least, at = np.inf, last
            for end in range(k + 1, last + 1):
                value = weights[s] * seconds[k, end] + best[s + 1, end]
                if value < least:
                    least, at = value, end
            best[s, k] = least + before[s, k]
            ends[s, k] = at


@njit(**INNER, fastmath=FAST)
def step_seconds(
    costs: SharedMeshCosts, borders: np.ndarray, loads: np.ndarray
) -> tuple[float, float]:
    """The step, and how uneven its meshes and stages are; `loads` is room for them."""
    streams, stages = costs.meshes.shape
    loads[:] = 0.0
    total = longest = uneven = 0.0
    for s in range(stages):
        start = borders[s]
        seconds = costs.seconds[costs.level[s], start, borders[s + 1]]
        if seconds == np.inf:
            return np.inf, np.inf
        longest = max(longest, seconds)
        total += seconds
        uneven += seconds * seconds
        if costs.links[0, s] >= 0:
            total += costs.cut_sum[start]
        for k in range(streams):
            loads[costs.meshes[k, s]] += seconds / streams
            if costs.links[k, s] >= 0:
                loads[costs.links[k, s]] += costs.cut_slot[start] / streams
                longest = max(longest, costs.cut_slot[start])
    for load in loads:
        uneven += load * load
    return _step(costs, total, loads, longest), uneven


@njit(**INNER, fastmath=FAST)
def _step(costs: SharedMeshCosts, total: float, loads: np.ndarray, longest: float) -> float:
    share = costs.longest_share
    slot = (1 - share) * loads.max() / costs.each + share * longest
    return total / costs.each + costs.repeats * slot


@njit(**CALLED, fastmath=FAST)
def improve(costs: SharedMeshCosts, borders: np.ndarray, loads: np.ndarray) -> float:
    """Move borders, one or several that follow each other, by a layer while that makes the step
    shorter, or as long and more even; its seconds."""
    stages = len(borders) - 1
    seconds, uneven = step_seconds(costs, borders, loads)
    moved = True
    while moved:
        moved = False
        for first in range(1, stages):
            for last in range(first, stages):
                for by in (-1, 1):
                    while True:
                        for border in range(first, last + 1):
                            borders[border] += by
                        better, value, other = False, seconds, uneven
                        # One layer a stage at least: only the outer ones have become shorter.
                        if (borders[first] - borders[first - 1]) * (
                            borders[last + 1] - borders[last]
                        ) > 0:
                            value, other = step_seconds(costs, borders, loads)
                            better = value < seconds * (1 - _ROUNDING) or (
                                value <= seconds * (1 + _ROUNDING)
                                and other < uneven * (1 - _ROUNDING)
                            )
                        if not better:
                            for border in range(first, last + 1):
                                borders[border] -= by
                            break
                        seconds, uneven, moved = value, other, True
    return seconds


@njit(**CALLED, fastmath=FAST)
def branch(
    costs: SharedMeshCosts,
    weights: np.ndarray,
    before: np.ndarray,
    best: np.ndarray,
    upper: float,
    most_nodes: int,
    borders: np.ndarray,
) -> tuple[float, bool]:
    """Look for steps shorter than `upper`, stage by stage, and leave out what the weighted seconds
    (`least_path`, with its answer `best`) or the meshes so far rule out: the shortest step, with
    its `borders` where one was found, and whether all were looked at."""
    streams, stages = costs.meshes.shape
    layers = costs.seconds.shape[1] - 1
    loads = np.zeros((stages + 1, costs.loads))
    totals, longest, weighted = np.zeros(stages + 1), np.zeros(stages + 1), np.zeros(stages + 1)
    tried = np.zeros(stages + 1, dtype=np.int64)  # the last end tried of each stage
    starts = np.zeros(stages + 1, dtype=np.int64)
    s, nodes = 0, 0
    while s >= 0:
        start = starts[s]
        tried[s] = max(tried[s], start) + 1
        if s == stages - 1:
            end = layers
            # The last stage takes all that is left, and that once.
            if tried[s] > start + 1:
                tried[s] = 0
                s -= 1
                continue
        else:
            end = tried[s]
            if end > layers - (stages - 1 - s):
                tried[s] = 0
                s -= 1
                continue
        seconds = costs.seconds[costs.level[s], start, end]
        so_far = weighted[s] + before[s, start] + weights[s] * seconds
        if not so_far + best[s + 1, end] < upper * (1 - _ROUNDING):
            continue
        nodes += 1
        if nodes > most_nodes:
            return upper, False
        for load in range(costs.loads):
            loads[s + 1, load] = loads[s, load]
        totals[s + 1], longest[s + 1] = totals[s] + seconds, max(longest[s], seconds)
        if costs.links[0, s] >= 0:
            totals[s + 1] += costs.cut_sum[start]
        for k in range(streams):
            loads[s + 1, costs.meshes[k, s]] += seconds / streams
            if costs.links[k, s] >= 0:
                loads[s + 1, costs.links[k, s]] += costs.cut_slot[start] / streams
                longest[s + 1] = max(longest[s + 1], costs.cut_slot[start])
        value = _step(costs, totals[s + 1], loads[s + 1], longest[s + 1])
        if not value < upper * (1 - _ROUNDING):
            continue
        if s == stages - 1:
            upper = value
            for stage in range(stages):
                borders[stage] = starts[stage]
            borders[stages] = layers
            continue
        weighted[s + 1], starts[s + 1] = so_far, end
        s += 1
        tried[s] = 0
    return upper, True

"""Compiled loops of the stage DP. Importing this module loads numba.

Devices in use are one number, `flat`: the mixed-radix number of the devices of every host group.
Adding a stage of `devices` devices of a group adds `devices · stride` to it, and the numbers of
which that is true are contiguous runs (one for each value of the groups with larger strides), so
the inner loops are plain runs over memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from shardopt.support.compiled import CALLED, INNER

# Minima over contiguous runs vectorise only without NaN and signed zeros, which do not occur;
# infinities do.
FAST = {"nnan", "nsz"}


# The names of these tuples stand in the indices of numba's cache, which unpickles an index before
# it looks whether the source is newer: a renamed tuple fails to load wherever an old cache lies.
class Sizes(NamedTuple):
    """The sizes that a stage may have; `full` is the flat number of all devices of all groups."""

    offset: np.ndarray  # int64 [G]: what a stage of this size adds to the flat number
    run: np.ndarray  # int64 [G]: length of the runs to which it may be added
    block: np.ndarray  # int64 [G]: distance between two runs
    full: int


class Costs(NamedTuple):
    """The seconds of stages, for every level of microbatches in flight, first layer, number of
    layers behind that and size; inf where infeasible. No stage has more than W layers. A stage adds
    its seconds and `more` to the sum, and its longest slot is no shorter than `longer`."""

    seconds: np.ndarray  # [levels, L, W, G]
    more: np.ndarray  # [L, W]
    longer: np.ndarray  # [L, W]


class Need(NamedTuple):
    """The bytes of a device, `[L + 1, L + 1, C]` each, as in `StageProblem`."""

    fixed: np.ndarray
    activation: np.ndarray
    outside: np.ndarray
    weights: np.ndarray


class States(NamedTuple):
    """State r: r stages are placed, counted from the end of the pipeline; the last state means "at
    least" if `open`.

    `level[r]` is the index of the costs of the stage that is placed in state r.
    """

    level: np.ndarray  # int64 [states]
    open: bool


class Place(NamedTuple):
    """An entry of the recursion: so many stages are placed, the next one begins at layer `start`,
    and `flat` devices are left."""

    state: int
    start: int
    flat: int


@njit(**CALLED, fastmath=FAST)
def cheapest_by_size(
    seconds: np.ndarray,
    need: Need,
    limit: np.ndarray,
    size_of: np.ndarray,
    versions: int,
    levels: np.ndarray,
    out: np.ndarray,
) -> None:
    """out[l, i, w, g]: the least seconds of layers i..i+w on configs of size g with levels[l]
    microbatches in flight and so many older versions of weights.

    `levels` rise, so a config fits up to some level; it is noted there, and the levels below take
    it over. A size of -1 is that of no group."""
    layers, top = seconds.shape[0] - 1, len(levels) - 1
    out[:] = np.inf
    for i in range(layers):
        for w in range(min(out.shape[2], layers - i)):
            j = i + w + 1
            for c in range(seconds.shape[2]):
                value = seconds[i, j, c]
                if value == np.inf or size_of[c] < 0:
                    continue
                older = versions * need.weights[i, j, c]
                # What exceeds the memory outside the loop does so with any number of microbatches.
                if need.outside[i, j, c] + older > limit[c]:
                    continue
                level, fixed = top, need.fixed[i, j, c] + older
                while level >= 0:
                    if fixed + levels[level] * need.activation[i, j, c] <= limit[c]:
                        break
                    level -= 1
                if level >= 0 and value < out[level, i, w, size_of[c]]:
                    out[level, i, w, size_of[c]] = value
    # Element by element: for arrays of which one is put into the other numba compiles what words an
    # error about their shapes, a tenth of the time of all kernels.
    for level in range(top - 1, -1, -1):
        for i in range(layers):
            for w in range(out.shape[2]):
                for size in range(out.shape[3]):
                    above = out[level + 1, i, w, size]
                    out[level, i, w, size] = min(out[level, i, w, size], above)


@njit(**CALLED, fastmath=FAST)
def sweep(
    costs: Costs,
    t_max: float,
    states: States,
    sizes: Sizes,
    rest: np.ndarray,
    limit: float,
    best: np.ndarray,
) -> None:
    """best[r, k, flat]: the least sum with which r stages cover layers k.. on `flat` devices, none
    of them with a longest slot above `t_max`.

    `rest[k, flat]` is a lower bound of the sum of the layers before k on `flat` devices; states
    whose sum must exceed `limit` are left out."""
    seconds = costs.seconds
    layers, top = seconds.shape[1], best.shape[0] - 1
    best[:] = np.inf
    best[0, layers, 0] = 0.0
    # The finite part of each row: first <= flat < stop.
    first = np.zeros((top + 1, layers + 1), dtype=np.int64)
    stop = np.zeros((top + 1, layers + 1), dtype=np.int64)
    stop[0, layers] = 1
    for start in range(layers - 1, -1, -1):
        for width in range(min(seconds.shape[2], layers - start)):
            end, more = start + width + 1, costs.more[start, width]
            if costs.longer[start, width] > t_max:
                continue
            for state in range(top + 1):
                if first[state, end] >= stop[state, end] or (state == top and not states.open):
                    continue
                level, tail = states.level[state], best[state, end]
                # In the last state, if it is open, further stages change nothing: it leads to
                # itself.
                into = best[min(state + 1, top), start]
                for size in range(len(sizes.offset)):
                    cost = seconds[level, start, width, size]
                    if cost > t_max:
                        continue
                    cost += more
                    offset, run, block = sizes.offset[size], sizes.run[size], sizes.block[size]
                    for base in range(0, len(tail), block):
                        for flat in range(
                            max(base, first[state, end]), min(base + run, stop[state, end])
                        ):
                            into[flat + offset] = min(into[flat + offset], tail[flat] + cost)
        for state in range(top + 1):
            row, begin, after = best[state, start], sizes.full + 1, 0
            for flat in range(len(row)):
                # The rest has the devices that are left over. An entry above the limit is no part
                # of a plan within it, and every entry dropped shortens the runs of all stages in
                # front of it.
                if row[flat] + rest[start, sizes.full - flat] > limit:
                    row[flat] = np.inf
                elif row[flat] < np.inf:
                    begin, after = min(begin, flat), flat + 1
            first[state, start], stop[state, start] = begin, after


@njit(**CALLED)
def trace(
    costs: Costs,
    t_max: float,
    states: States,
    sizes: Sizes,
    best: np.ndarray,
    state: int,
    stages: np.ndarray,
) -> int:
    """The stages behind best[state, 0, full] as rows (first layer, layer after the last, size) of
    `stages`, and how many they are. The first of equals, so that the answer is deterministic."""
    layers = costs.seconds.shape[1]
    start, flat, count = 0, sizes.full, 0
    while start < layers:
        source, end, size = _step(costs, t_max, states, sizes, best, Place(state, start, flat))
        if source < 0:
            return -1
        stages[count, 0], stages[count, 1], stages[count, 2] = start, end, size
        state, start, flat, count = source, end, flat - sizes.offset[size], count + 1
    return count


@njit(**INNER)
def _step(
    costs: Costs, t_max: float, states: States, sizes: Sizes, best: np.ndarray, place: Place
) -> tuple[int, int, int]:
    """(state, layer, size) that the best stage from a place leads to."""
    seconds = costs.seconds
    state, start, flat = place
    top = best.shape[0] - 1
    lowest = max(state - 1, 0)
    highest = state if states.open and state == top else state - 1
    for width in range(min(seconds.shape[2], seconds.shape[1] - start)):
        end, more = start + width + 1, costs.more[start, width]
        if costs.longer[start, width] > t_max:
            continue
        for source in range(lowest, highest + 1):
            level = states.level[source]
            for size in range(len(sizes.offset)):
                before = flat - sizes.offset[size]
                if before < 0 or before % sizes.block[size] >= sizes.run[size]:
                    continue
                cost = seconds[level, start, width, size]
                if cost > t_max:
                    continue
                # `sweep` added the same two numbers, so the sum that it kept is equal to the last
                # bit.
                if best[source, end, before] + (cost + more) == best[state, start, flat]:
                    return source, end, size
    return -1, -1, -1

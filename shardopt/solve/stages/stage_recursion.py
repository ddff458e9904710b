"""The recursion of the stage DP: F over stages counted from the end, first layer, and free devices of every host group.

F[s, k, d] = min over (end, option) of combine(costs[s - 1, k, end, option], F[s - 1, end, d - devices(option)]) with
F[0, L, 0] = 0, Alpa (OSDI'22, section 5.2), equation 3; `combine` is a sum for seconds and a maximum for bytes. Options
of one size on one host group are interchangeable for the devices, so only the cheapest of each size takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, Stages


@dataclass(frozen=True, eq=False)
class Search:
    """Costs of the candidate stages of one recursion.

    `by_option[s, i, j, o]` is the cost (seconds or bytes, inf where infeasible) of layers i..j-1 on option o as the
    s-th stage from the end, `by_size[s, i, j, g]` the least of the options of `sizes[g]` (host group, devices).
    `answers` are the numbers of stages a plan may have. Where cost and answer do not depend on s, both have one row and
    `shift` is 0: row 0 of F then stands for any number of stages. Otherwise `shift` is 1.
    """

    by_option: np.ndarray
    by_size: np.ndarray
    size_of: np.ndarray  # int64 [O]: index into sizes
    sizes: tuple[tuple[int, int], ...]
    shift: int
    answers: tuple[int, ...]


def make_search(problem: StageProblem, by_option: np.ndarray, shift: int, answers: tuple[int, ...]) -> Search:
    keys = [(option.group, option.num_devices) for option in problem.options]
    sizes = tuple(sorted(set(keys)))
    size_of = np.array([sizes.index(key) for key in keys])
    by_size = np.stack([by_option[..., size_of == g].min(axis=-1) for g in range(len(sizes))], axis=-1)
    return Search(by_option, by_size, size_of, sizes, shift, answers)


def solve_recursion(
    search: Search, costs: np.ndarray, num_devices: tuple[int, ...], combine: np.ufunc
) -> Stages | None:
    """The stages of least combined cost; `costs` are those of `search.by_size`, or more where t_max forbids a stage."""
    rows, layers = costs.shape[0], costs.shape[1] - 1
    best = np.full((rows + search.shift, layers + 1, *(count + 1 for count in num_devices)), np.inf)
    best[(0, layers, *(0 for _ in num_devices))] = 0
    spread = (None,) * len(num_devices)
    for start in range(layers - 1, -1, -1):
        for size, (group, devices) in enumerate(search.sizes):
            if devices > num_devices[group]:
                continue
            before: list[Any] = [slice(None)] * len(num_devices)
            after = before.copy()
            before[group], after[group] = slice(devices, None), slice(num_devices[group] + 1 - devices)
            tail = best[:rows, start + 1 :][:, :, *after]
            whole = combine(costs[:, start, start + 1 :, size][:, :, *spread], tail).min(axis=1)
            into = best[search.shift :, start][:, *before]
            np.minimum(into, whole, out=into)
    finals = best[:, 0].reshape(len(best), -1)[list(search.answers), -1]  # all devices of all groups used
    if not np.isfinite(finals).any():
        return None
    return _trace(search, costs, best, search.answers[int(finals.argmin())], combine)


def _trace(search: Search, costs: np.ndarray, best: np.ndarray, answer: int, combine: np.ufunc) -> Stages:
    """The stages behind `best[answer, 0, D]`; the first of equals, so that the answer is deterministic."""
    layers, free = best.shape[1] - 1, [count - 1 for count in best.shape[2:]]
    row, start, stages = answer - search.shift, 0, []
    while start < layers:
        ends = np.arange(start + 1, layers + 1)
        options = np.full((len(ends), len(search.sizes)), np.inf)
        for size, (group, devices) in enumerate(search.sizes):
            if devices <= free[group]:
                left = [count - devices * (index == group) for index, count in enumerate(free)]
                options[:, size] = combine(costs[row, start, ends, size], best[(row, ends, *left)])
        index, size = divmod(int(options.argmin()), len(search.sizes))
        end = int(ends[index])
        of_size = np.where(search.size_of == size, search.by_option[row, start, end], np.inf)
        stages.append((start, end, int(of_size.argmin())))
        group, devices = search.sizes[size]
        row, start, free[group] = row - search.shift, end, free[group] - devices
    return tuple(stages)

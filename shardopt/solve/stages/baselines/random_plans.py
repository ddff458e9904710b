"""All exact covers of layers and devices, counted, so that any one of them can be drawn with equal
probability."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, Stages


class RandomPlans:
    """Plans of stages with a finite time, whether or not they fit the memory; of `num_stages`
    stages if given.

    N[s, k, d] is the number of plans of layers k.. on d free devices of every host group with s
    stages (N[0] for any number, where it is open): the sum over end and size of configs(k, end,
    size) · N[s - 1, end, d - size]."""

    def __init__(self, problem: StageProblem, num_stages: int | None) -> None:
        keys = [(config.group, config.num_devices) for config in problem.configs]
        self.problem, self.num_stages = problem, num_stages
        self.sizes = tuple(
            size for size in sorted(set(keys)) if size[1] <= problem.num_devices[size[0]]
        )
        self.of_size = tuple(np.array([key == size for key in keys]) for size in self.sizes)
        usable = problem.shardable()
        self.choices = np.stack(
            [usable[:, :, chosen].sum(axis=-1) for chosen in self.of_size], axis=-1, dtype=float
        )
        self.counts = self._count()

    @property
    def any(self) -> bool:
        """Whether there is a plan."""
        return bool(self.counts[(-1, 0, *self.problem.num_devices)])

    def draw(self, random: Random) -> Stages:
        """One of the plans, each with equal probability."""
        row, start, free, stages = len(self.counts) - 1, 0, list(self.problem.num_devices), []
        while start < self.problem.num_layers:
            # With any number of stages there is one row, which leads to itself.
            row -= self.num_stages is not None
            num_plans = np.zeros((self.problem.num_layers + 1, len(self.sizes)))
            for size, left in self._left(free):
                rest = self.counts[row, start + 1 :].reshape(len(num_plans) - start - 1, -1)[
                    :, self._flat(left)
                ]
                num_plans[start + 1 :, size] = self.choices[start, start + 1 :, size] * rest
            end, size = divmod(_drawn(num_plans.ravel(), random), len(self.sizes))
            usable = np.isfinite(self.problem.seconds[start, end]) & self.of_size[size]
            stages.append((start, end, _drawn(usable.astype(float), random)))
            start, free[self.sizes[size][0]] = end, free[self.sizes[size][0]] - self.sizes[size][1]
        return tuple(stages)

    def _left(self, free: list[int]) -> Iterator[tuple[int, list[int]]]:
        """The sizes that free devices suffice for, and what they leave free."""
        for index, (group, devices) in enumerate(self.sizes):
            if devices <= free[group]:
                yield index, [count - devices * (g == group) for g, count in enumerate(free)]

    def _flat(self, free: list[int]) -> int:
        return int(np.ravel_multi_index(free, self.counts.shape[2:]))

    def _count(self) -> np.ndarray:
        layers, devices = self.problem.num_layers, self.problem.num_devices
        shift = 0 if self.num_stages is None else 1
        counts = np.zeros(
            ((self.num_stages or 0) + 1, layers + 1, *(count + 1 for count in devices))
        )
        counts[(0, layers, *(0 for _ in devices))] = 1
        for row in range(shift, len(counts)):
            for start in range(layers - 1, -1, -1):
                for size, (group, taken) in enumerate(self.sizes):
                    before: list[Any] = [slice(None)] * len(devices)
                    after = before.copy()
                    before[group], after[group] = (
                        slice(taken, None),
                        slice(devices[group] + 1 - taken),
                    )
                    tail = counts[row - shift, start + 1 :][:, *after]
                    counts[row, start][*before] += np.tensordot(
                        self.choices[start, start + 1 :, size], tail, axes=1
                    )
        return counts


def _drawn(weights: np.ndarray, random: Random) -> int:
    """An index with a probability in proportion to its weight."""
    sums = weights.cumsum()
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))

"""The recursion of the stage DP: the cheapest stages for a given t_max.

Alpa (OSDI'22, section 5.2), equation 3: F(s, k, d; t_max) = min over (end, config) of t(k, end,
config) + F(s - 1, end, d - devices(config); t_max), where s counts stages from the end and no stage
exceeds t_max or the memory. Configs of one size on one host group are interchangeable for the
devices, so only the cheapest of each takes part. The memory of a stage depends on s through the
microbatches in flight; from the s on behind which nothing changes any more, one state stands for
all further s, and with memory to spare there is only that one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem

if TYPE_CHECKING:
    from shardopt.solve.stages.dp.kernels import Costs, Sizes, States


class PipelineSlot(NamedTuple):
    """A stage of an answer: its layers, and the index of its size."""

    start: int
    end: int
    size: int


@dataclass(frozen=True, eq=False)
class Recursion:
    """`costs` are those of stages (`shardopt.solve.stages.dp.kernels.Costs`), whose lower levels
    never cost more. `answers` are the states in which a plan may end, `candidates` all values that
    t_max may have, rising.

    `relaxed` is the recursion with the fewest microbatches in flight everywhere, for which the
    number of stages does not matter: a lower bound. It is None where this recursion is no
    different."""

    costs: Costs
    candidates: np.ndarray
    states: States
    sizes: Sizes
    answers: tuple[int, ...]
    relaxed: Recursion | None = None

    def solve(self, t_max: float, limit: float = np.inf) -> tuple[PipelineSlot, ...] | None:
        """The stages of least sum without a slot above `t_max`, or None if that sum exceeds
        `limit`."""
        from shardopt.solve.stages.dp.kernels import trace

        best = self._sweep(t_max, limit)
        finals = best[list(self.answers), 0, -1] if best is not None else np.array([np.inf])
        # Without a limit, an infinite sum passes the first comparison.
        if best is None or not finals.min() <= limit or not np.isfinite(finals).any():
            return None
        layers = self.costs.seconds.shape[1]
        stages = np.empty((layers, 3), dtype=np.int64)
        state = self.answers[int(finals.argmin())]
        count = trace(self.costs, t_max, self.states, self.sizes, best, state, stages)
        return tuple(PipelineSlot(*map(int, row)) for row in stages[:count])

    def least_sums(self, t_max: float, limit: float) -> np.ndarray:
        """The least sum for each of the answers, inf where it exceeds `limit`."""
        best = self._sweep(t_max, limit)
        return (
            np.full(len(self.answers), np.inf) if best is None else best[list(self.answers), 0, -1]
        )

    def measure(self, slots: tuple[PipelineSlot, ...]) -> tuple[float, float]:
        """The sum and the longest slot of an answer of a recursion with one level."""
        seconds, more, longer = self.costs
        total = longest = 0.0
        for start, end, size in slots:
            width = end - start - 1
            each = float(seconds[0, start, width, size])
            total += each + float(more[start, width])
            longest = max(longest, each, float(longer[start, width]))
        return total, longest

    @cached_property
    def low_end(self) -> tuple[int, float]:
        """The index of the last candidate t_max that allows no plan, and the least sum of all
        plans; of a recursion that is relaxed itself."""
        low, high = -1, len(self.candidates) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle)
                if np.isfinite(self._before(self.candidates[middle])[0, -1])
                else (middle, high)
            )
        return low, float(self._before(self.candidates[-1])[0, -1]) if high >= 0 else np.inf

    def _sweep(self, t_max: float, limit: float) -> np.ndarray | None:
        from shardopt.solve.stages.dp.kernels import sweep

        layers, width = self.costs.seconds.shape[1], self.sizes.full + 1
        rest = np.zeros((layers + 1, width))
        if self.relaxed is not None:
            before = self.relaxed._before(t_max)
            if not before[0, -1] <= limit:
                return None
            rest = np.ascontiguousarray(before[::-1])
        best = np.empty((len(self.states.level), layers + 1, width))
        sweep(self.costs, t_max, self.states, self.sizes, rest, limit, best)
        return best

    def _before(self, t_max: float) -> np.ndarray:
        """`[L + 1, width]`: in row k the least sums of all layers but the last k on some devices;
        of a recursion that is relaxed itself."""
        from shardopt.solve.stages.dp.kernels import sweep

        layers, width = self.costs.seconds.shape[1], self.sizes.full + 1
        best = np.empty((1, layers + 1, width))
        nothing = np.zeros((layers + 1, width))
        sweep(self._backwards, t_max, self.states, self.sizes, nothing, np.inf, best)
        return best[0]

    @cached_property
    def _backwards(self) -> Costs:
        """The costs with the layers counted from the end: what comes before a layer is then behind
        it."""
        from shardopt.solve.stages.dp.kernels import Costs

        # A stage whose first layer is so far from the begin ends as far from the end.
        seconds, more, longer = self.costs
        layers, most = more.shape
        first = layers - 1 - np.arange(layers)[:, None] - np.arange(most)
        widths = np.broadcast_to(np.arange(most), first.shape)
        exists, there = first >= 0, (first.clip(min=0), widths)
        return Costs(
            np.where(exists[..., None], seconds[0][there], np.inf)[None], more[there], longer[there]
        )


def candidates_of(costs: Costs) -> np.ndarray:
    """All values that a longest slot may have, rising. Between two levels most seconds stay the
    same."""
    values = [_slots(costs, 0, np.isfinite(costs.seconds[0]))]
    for level, (before, seconds) in enumerate(pairwise(costs.seconds), 1):
        values.append(_slots(costs, level, (before != seconds) & np.isfinite(seconds)))
    return np.unique(np.concatenate(values))


def _slots(costs: Costs, level: int, which: np.ndarray) -> np.ndarray:
    where = np.nonzero(which)
    return np.maximum(costs.seconds[level][where], costs.longer[where[:2]])


def make_sizes(problem: StageProblem) -> tuple[Sizes, np.ndarray]:
    """The (host group, devices) of the configs, and for each config which of them it has, int64
    `[C]`. Devices of a group count in units of which all its sizes are multiples."""
    from shardopt.solve.stages.dp.kernels import Sizes

    keys = [(config.group, config.num_devices) for config in problem.configs]
    units = [
        gcd(count, *(size for group, size in keys if group == number))
        for number, count in enumerate(problem.num_devices)
    ]
    counts = np.array(problem.num_devices) // units
    strides = np.cumprod([1, *(counts + 1)])
    # A config larger than its group gets size -1, which kernels skip. If all are, the sizes stay as
    # they are: their runs are empty, and the recursion then says that there is no cover.
    known = sorted({key for key in keys if key[1] <= problem.num_devices[key[0]]}) or sorted(
        set(keys)
    )
    group, devices = (np.array(column, dtype=np.int64) for column in zip(*known, strict=True))
    devices //= np.array(units)[group]
    run = (counts[group] + 1 - devices) * strides[group]
    size_of = np.array([known.index(key) if key in known else -1 for key in keys])
    return Sizes(devices * strides[group], run, strides[group + 1], int(strides[-1]) - 1), size_of

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
    """`total` and `longest`, `[levels, L, W, G]`: what a stage adds to the sum, and its longest
    slot, by first layer and number of layers behind that, for every size and every level of
    microbatches in flight; inf where infeasible. Lower levels never cost more. `answers` are the
    states in which a plan may end, `candidates` all values that t_max may have, rising.

    `relaxed` is the recursion with the fewest microbatches in flight everywhere, for which the
    number of stages does not matter: a lower bound. It is None where this recursion is no
    different."""

    total: np.ndarray
    longest: np.ndarray
    candidates: np.ndarray
    states: States
    sizes: Sizes
    answers: tuple[int, ...]
    relaxed: Recursion | None = None

    def solve(self, t_max: float, limit: float = np.inf) -> tuple[PipelineSlot, ...] | None:
        """The stages of least sum without a slot above `t_max`, or None if that sum exceeds
        `limit`."""
        from shardopt.solve.stages.dp.kernels import Costs, trace

        best = self._sweep(t_max, limit)
        finals = best[list(self.answers), 0, -1] if best is not None else np.array([np.inf])
        # Without a limit, an infinite sum passes the first comparison.
        if best is None or not finals.min() <= limit or not np.isfinite(finals).any():
            return None
        layers = self.total.shape[1]
        stages = np.empty((layers, 3), dtype=np.int64)
        state = self.answers[int(finals.argmin())]
        costs = Costs(self.total, self.longest)
        count = trace(costs, t_max, self.states, self.sizes, best, state, stages)
        return tuple(PipelineSlot(*map(int, row)) for row in stages[:count])

    def least_sums(self, t_max: float, limit: float) -> np.ndarray:
        """The least sum for each of the answers, inf where it exceeds `limit`."""
        best = self._sweep(t_max, limit)
        return (
            np.full(len(self.answers), np.inf) if best is None else best[list(self.answers), 0, -1]
        )

    def measure(self, slots: tuple[PipelineSlot, ...]) -> tuple[float, float]:
        """The sum and the longest slot of an answer of a recursion with one level."""
        stages = [(0, start, end - start - 1, size) for start, end, size in slots]
        return sum(float(self.total[stage]) for stage in stages), max(
            float(self.longest[stage]) for stage in stages
        )

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
        from shardopt.solve.stages.dp.kernels import Costs, sweep

        layers, width = self.total.shape[1], self.sizes.full + 1
        rest = np.zeros((layers + 1, width))
        if self.relaxed is not None:
            before = self.relaxed._before(t_max)
            if not before[0, -1] <= limit:
                return None
            rest = np.ascontiguousarray(before[::-1])
        best = np.empty((len(self.states.level), layers + 1, width))
        sweep(Costs(self.total, self.longest), t_max, self.states, self.sizes, rest, limit, best)
        return best

    def _before(self, t_max: float) -> np.ndarray:
        """`[L + 1, width]`: in row k the least sums of all layers but the last k on some devices;
        of a recursion that is relaxed itself."""
        from shardopt.solve.stages.dp.kernels import sweep

        layers, width = self.total.shape[1], self.sizes.full + 1
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
        layers, most = self.total.shape[1:3]
        first = layers - 1 - np.arange(layers)[:, None] - np.arange(most)
        widths = np.broadcast_to(np.arange(most), first.shape)
        exists = (first >= 0)[..., None]
        return Costs(
            *(
                np.where(exists, each[0, first.clip(min=0), widths], np.inf)[None]
                for each in (self.total, self.longest)
            )
        )


def candidates_of(longest: np.ndarray) -> np.ndarray:
    """All finite values of `longest`, rising. Between two levels most values stay the same."""
    fresh = [longest[0].ravel(), *(b[a != b] for a, b in pairwise(longest))]
    values = np.concatenate(fresh)
    return np.unique(values[np.isfinite(values)])


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

"""The forward operations as a straight line, how many layers it is worth, and the ways of cutting
it.

* `dp`: the layer DP (`shardopt.solve.stages.layers.layer_dp`), with no layer below the share 1 -
  delta of an equal one. Where there are as many blocks as layers, it cuts no block, unless the
  layers are more even with parts of blocks.
* `equal-op`: every layer has the same number of operators that do the work (matrix products,
  convolutions), as in the baseline "equal operator" of Alpa's §8.4.
* `equal-layer`: every layer has the same number of the model's own blocks
  (`shardopt.solve.stages.layers.blocks`), cut where fewest bytes cross; where the model has too
  few, about the same weight.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.solve.stages.layers.block_borders import Span
from shardopt.solve.stages.layers.blocks import BlockRun, count_blocks, find_blocks
from shardopt.solve.stages.layers.layer_dp import (
    MAX_AUTO_LAYERS,
    LayerSolution,
    Value,
    auto_layers,
    equal_shares,
    evaluate,
    is_feasible,
    least_delta,
    solve_layers,
)

# With fewer blocks than this, layers are parts of blocks where cutting one costs no more than
# cutting between two.
_FEW_BLOCKS = MAX_AUTO_LAYERS // 2

# Equal layers are solved once, which this share of the heaviest layer may cost.
_UNEVENNESS = 0.05


@dataclass(frozen=True)
class ForwardLine:
    """Units are consecutive operations that are not cut apart: `weights[u]`, FLOPs or seconds, and
    `values` between them.

    `operators[k]` is the unit of the k-th operator that does the work, `kinds[k]` is equal for
    equal ones and `work[k]` its FLOPs. `blocks` are the units [first, stop) of the blocks that the
    model repeats, in order."""

    weights: np.ndarray
    values: Sequence[Value]
    operators: tuple[int, ...] = ()
    kinds: tuple[Hashable, ...] = ()
    work: tuple[float, ...] = ()
    blocks: tuple[Span, ...] = ()

    @cached_property
    def runs(self) -> tuple[BlockRun, ...]:
        return find_blocks(self.kinds, self.work)

    @cached_property
    def crossing(self) -> np.ndarray:
        """int64 `[n + 1]`: bytes of the values made before unit u and read in u or behind."""
        steps = np.zeros(len(self.weights) + 1, dtype=np.int64)
        for value in self.values:
            steps[value.producer + 1] += value.bytes
            steps[max(value.consumers) + 1] -= value.bytes
        return np.cumsum(steps)

    def cut(self, num_layers: int, delta: float, least: float, method: str) -> LayerSolution:
        """`delta` and `least` as in `solve_layers`. Raises UserError when the layers cannot be that
        many, or not be balanced within `delta` although they are more than the blocks."""
        if method == "dp":
            return self._balanced(num_layers, delta, least)
        weights = self._operator_counts() if method == "equal-op" else self.weights
        if method == "equal-layer" and count_blocks(self.runs) >= num_layers:
            return evaluate(self.weights, self.values, self._between_blocks(num_layers))
        return evaluate(self.weights, self.values, equal_shares(weights, num_layers))

    def _balanced(self, num_layers: int, delta: float, least: float) -> LayerSolution:
        """Whole blocks, where that leaves the heaviest layer about as heavy as parts of blocks do.

        A layer for each block has to be possible: a head that outweighs them widens the balance."""
        if num_layers > len(self.blocks):
            return solve_layers(self.weights, self.values, num_layers, delta, least)
        if not is_feasible(self.weights, num_layers, delta):
            delta += least_delta(self.weights, num_layers)
        parts = solve_layers(self.weights, self.values, num_layers, delta, least)
        coarse = self._of_whole_blocks()
        if not is_feasible(coarse.weights, num_layers, delta):
            return parts
        whole = self._cut_as(coarse, num_layers, delta, least)
        heaviest = max(whole.layer_weights) / (1 + _UNEVENNESS)
        return whole if heaviest <= max(parts.layer_weights) else parts

    def _cut_as(
        self, coarse: ForwardLine, num_layers: int, delta: float, least: float
    ) -> LayerSolution:
        """Cut between units of `coarse`."""
        whole = solve_layers(coarse.weights, coarse.values, num_layers, delta, least)
        first = np.searchsorted(self._unit_of_blocks, np.arange(len(coarse.weights) + 1))
        boundaries = [int(first[unit]) for unit in whole.boundaries]
        return evaluate(self.weights, self.values, boundaries, whole.status)

    @cached_property
    def _unit_of_blocks(self) -> np.ndarray:
        """int64 `[n]`: the number of each unit when all those of a block are one."""
        is_first = np.ones(len(self.weights), dtype=np.int64)
        for first, stop in self.blocks:
            is_first[first + 1 : stop] = 0
        return np.cumsum(is_first) - 1

    def _of_whole_blocks(self) -> ForwardLine:
        number = self._unit_of_blocks
        values = []
        for value in self.values:
            producer = int(number[value.producer])
            readers = {int(number[consumer]) for consumer in value.consumers} - {producer}
            if readers:
                values.append(Value(producer, value.bytes, tuple(sorted(readers))))
        return ForwardLine(np.bincount(number, weights=self.weights), values)

    def best_count(self, delta: float) -> int:
        """The number of layers where nobody says: one for each block, or for equally many, up to
        16."""
        blocks = count_blocks(self.runs)
        if blocks < _FEW_BLOCKS:
            least = max(0.0, 1 - delta)
            return max(blocks, auto_layers(self.weights, self.values, delta=delta, least=least))
        fitting = (
            count for count in range(MAX_AUTO_LAYERS, _FEW_BLOCKS, -1) if blocks % count == 0
        )
        return blocks if blocks <= MAX_AUTO_LAYERS else next(fitting, MAX_AUTO_LAYERS)

    def _operator_counts(self) -> np.ndarray:
        """One for each operator of a unit; for each unit where there are none."""
        counts = np.bincount(np.array(self.operators, dtype=np.int64), minlength=len(self.weights))
        return counts if self.operators else np.ones(len(self.weights), dtype=np.int64)

    def _between_blocks(self, num_layers: int) -> tuple[int, ...]:
        """Boundaries before the first blocks of the layers."""
        firsts = [first for run in self.runs for first in run.block_starts]
        inner: list[int] = []
        for layer in range(1, num_layers):
            first = firsts[len(firsts) * layer // num_layers]
            low, high = self.operators[first - 1] + 1, self.operators[first]
            low = max(low, inner[-1] + 1 if inner else 1)
            # Between the last operator of one block and the first of the next; the last of the
            # cheapest places.
            behind = int(np.argmin(self.crossing[low : high + 1][::-1])) if low <= high else 0
            inner.append(high - behind if low <= high else low)
        return (0, *inner, len(self.weights))

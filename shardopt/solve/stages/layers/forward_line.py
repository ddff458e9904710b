"""The forward operations as a straight line, how many layers it is worth, and the ways of cutting
it.

* `dp`: the layer DP (`shardopt.solve.stages.layers.layer_dp`), with no layer below the share 1 -
  delta of an equal one.
* `equal-op`: every layer has the same number of operators that do the work (matrix products,
  convolutions), as in the baseline "equal operator" of Alpa's §8.4.
* `equal-layer`: every layer has the same number of the model's own blocks
  (`shardopt.solve.stages.layers.blocks`), cut where fewest bytes cross; where the model has too
  few, about the same FLOPs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.solve.stages.layers.blocks import BlockRun, count_blocks, find_blocks
from shardopt.solve.stages.layers.layer_dp import (
    MAX_AUTO_LAYERS,
    LayerSolution,
    Value,
    auto_layers,
    equal_shares,
    evaluate,
    solve_layers,
)

# The layer DP is quadratic in the operations it may cut between. Operations lighter than 1/1000 of
# the whole are joined with their neighbours first: no balanced cut can depend on one of them.
_MAX_UNITS = 1000
# With fewer blocks than this, layers are parts of blocks where cutting one costs no more than
# cutting between two.
_FEW_BLOCKS = MAX_AUTO_LAYERS // 2


@dataclass(frozen=True)
class ForwardLine:
    """Units are consecutive operations that are not cut apart: `flops[u]`, and `values` between
    them.

    `operators[k]` is the unit of the k-th operator that does the work, `kinds[k]` is equal for
    equal ones and `work[k]` its FLOPs."""

    flops: np.ndarray
    values: Sequence[Value]
    operators: tuple[int, ...] = ()
    kinds: tuple[Hashable, ...] = ()
    work: tuple[float, ...] = ()

    @cached_property
    def runs(self) -> tuple[BlockRun, ...]:
        return find_blocks(self.kinds, self.work)

    @cached_property
    def crossing(self) -> np.ndarray:
        """int64 `[n + 1]`: bytes of the values made before unit u and read in u or behind."""
        steps = np.zeros(len(self.flops) + 1, dtype=np.int64)
        for value in self.values:
            steps[value.producer + 1] += value.bytes
            steps[max(value.consumers) + 1] -= value.bytes
        return np.cumsum(steps)

    def cut(self, num_layers: int, delta: float, least: float, method: str) -> LayerSolution:
        """`delta` and `least` as in `solve_layers`. Raises UserError when the layers cannot be that
        many, or not be balanced within `delta`."""
        if method == "dp":
            return solve_layers(self.flops, self.values, num_layers, delta, least)
        weights = self._operator_counts() if method == "equal-op" else self.flops
        if method == "equal-layer" and count_blocks(self.runs) >= num_layers:
            return evaluate(self.flops, self.values, self._between_blocks(num_layers))
        return evaluate(self.flops, self.values, equal_shares(weights, num_layers))

    def best_count(self, delta: float) -> int:
        """The number of layers where nobody says: one for each block, or for equally many, up to
        16."""
        blocks = count_blocks(self.runs)
        if blocks < _FEW_BLOCKS:
            least = max(0.0, 1 - delta)
            return max(blocks, auto_layers(self.flops, self.values, delta=delta, least=least))
        fitting = (
            count for count in range(MAX_AUTO_LAYERS, _FEW_BLOCKS, -1) if blocks % count == 0
        )
        return blocks if blocks <= MAX_AUTO_LAYERS else next(fitting, MAX_AUTO_LAYERS)

    def _operator_counts(self) -> np.ndarray:
        """One for each operator of a unit; for each unit where there are none."""
        counts = np.bincount(np.array(self.operators, dtype=np.int64), minlength=len(self.flops))
        return counts if self.operators else np.ones(len(self.flops), dtype=np.int64)

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
        return (0, *inner, len(self.flops))


def join(flops: np.ndarray) -> np.ndarray:
    """Unit of each operation: when there are many, neighbours are joined into about `_MAX_UNITS`
    units."""
    if len(flops) <= _MAX_UNITS:
        return np.arange(len(flops))
    # Where a unit ends because of the limit, it and the next one together exceed it: there are
    # fewer than `_MAX_UNITS` such ends, and half as many because of the length. Length is bounded,
    # too, as a long stretch without FLOPs would otherwise be one unit that cannot be cut.
    limit, longest = 2 * flops.sum() / _MAX_UNITS, -(-2 * len(flops) // _MAX_UNITS)
    units = np.zeros(len(flops), dtype=np.int64)
    unit, filled, length = 0, 0.0, 0
    for index, work in enumerate(flops):
        if length and (filled + work > limit or length >= longest):
            unit, filled, length = unit + 1, 0.0, 0
        units[index] = unit
        filled, length = filled + work, length + 1
    return units

"""Where the blocks of a run begin and end: at the operations between which fewest bytes cross.

    q k v o  f f | q k v o  f f | q k v o  f f      blocks as they repeat
    x     x      1      x     x      1              values that cross

`find_blocks` says which operators a block has. Between the last of one and the first of the next
stand others (sums, norms), and a run may be recognised from the middle of a block to the middle of
another: all ways of shifting its blocks are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from shardopt.solve.stages.layers.blocks import BlockRun

# What crosses the borders of blocks on average differs by less, as long as they are of one kind.
_MOST_BEYOND_BEST = 1.25
# A block has at most so many parts that look like it.
_MOST_PARTS = 8
# The operations [first, stop) of a block.
Span = tuple[int, int]


def block_spans(
    runs: Sequence[BlockRun], operators: Sequence[int], crossing: np.ndarray
) -> tuple[Span, ...]:
    """The blocks of `runs` along a line of n operations, in its order.

    `operators[k]` is the place of the k-th operator, and `crossing[p]` the bytes that are made
    before place p and read there or behind: `[n + 1]`."""
    spans: list[Span] = []
    for run in runs:
        begin, *ends = _borders(run, operators, crossing)
        # Blocks of the run before may reach behind their last operator.
        begin = max(begin, spans[-1][1] if spans else 0)
        spans += pairwise([begin, *ends])
    return tuple(span for span in spans if span[0] < span[1])


def _borders(run: BlockRun, operators: Sequence[int], crossing: np.ndarray) -> list[int]:
    """Where the blocks of one run begin, and where the last of them ends."""
    first, period = _whole_blocks(run, operators, crossing)
    starts = range(first, run.stop, period)
    inner = [_cheapest(operators, start, crossing) for start in starts[1:]]
    # What stands in front of the first block and behind the last is no block: there the place is
    # that of the other borders.
    lead = operators[starts[1]] - inner[0]
    trail = inner[0] - operators[starts[1] - 1]
    low = operators[first - 1] + 1 if first else 0
    begin, last = max(operators[first] - lead, low), starts[-1] + period
    if last > run.stop:  # only its begin is known
        return [begin, *inner]
    high = operators[last] if last < len(operators) else len(crossing) - 1
    return [begin, *inner, min(operators[last - 1] + trail, high)]


def _whole_blocks(run: BlockRun, operators: Sequence[int], crossing: np.ndarray) -> tuple[int, int]:
    """The first operator of the first block, and how many a block has: the fewest that cross little
    more than the best, as several equal operators in a block look like a block each."""
    costs = np.array(
        [
            crossing[_cheapest(operators, number, crossing)]
            for number in range(run.start + 1, run.stop)
        ]
    )
    best: dict[int, tuple[float, int]] = {}
    for multiple in range(1, min(run.repeats // 2, _MOST_PARTS) + 1):
        period = run.period * multiple
        for first in range(run.start, run.start + period):
            each = float(costs[first + period - run.start - 1 :: period].mean())
            best[period] = min(best.get(period, (each, first)), (each, first))
    least = min(each for each, _ in best.values())
    period = next(p for p, (each, _) in best.items() if each <= _MOST_BEYOND_BEST * least)
    return best[period][1], period


def places_between(operators: Sequence[int], crossing: np.ndarray) -> set[int]:
    """The cheapest place between each two neighbours."""
    return {_cheapest(operators, number, crossing) for number in range(1, len(operators))}


def _cheapest(operators: Sequence[int], start: int, crossing: np.ndarray) -> int:
    """The last of the cheapest places between operator `start` and the one before it."""
    low, high = operators[start - 1] + 1, operators[start]
    return high - int(np.argmin(crossing[low : high + 1][::-1]))

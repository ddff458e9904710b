"""Blocks that a model repeats: transformer layers, residual blocks, the steps of an unrolled loop.

Only operations that do the work are looked at (matrix products and convolutions), by what they are:
name and shapes. The longest stretch in which each of them equals the one a period later is a run of
blocks; what is left before and behind it is searched in the same way, so that an encoder and a
decoder, or stages of growing width, each give a run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

# A run beside the longest one counts if its blocks are at least this share of that one's: three
# equal projections in the head of a model are not blocks of it.
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class BlockRun:
    """Operations [start, start + period · repeats) are `repeats` blocks of `period` operations
    each."""

    start: int
    period: int
    repeats: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.repeats

    @property
    def block_starts(self) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop, self.period))


def find_blocks(operations: Sequence[Hashable], work: Sequence[float]) -> tuple[BlockRun, ...]:
    """The runs of repeated blocks, in order; equal operations have equal entries, and `work` each
    (FLOPs)."""
    numbers: dict[Hashable, int] = {}
    tokens = np.array(
        [numbers.setdefault(operation, len(numbers)) for operation in operations], dtype=np.int64
    )
    prefix = np.concatenate(([0.0], np.cumsum(np.asarray(work, dtype=float))))
    runs: list[BlockRun] = []
    least = 0.0
    pending = [(0, len(tokens))]
    while pending:
        low, high = pending.pop()
        run = _longest(tokens, prefix, low, high, least)
        if run is not None:
            # The first run is the longest: it sets the size of what counts as a block.
            least = least or _LEAST_SHARE * (prefix[run.stop] - prefix[run.start]) / run.repeats
            runs.append(run)
            pending += [(low, run.start), (run.stop, high)]
    return tuple(sorted(runs, key=lambda run: run.start))


def count_blocks(runs: Sequence[BlockRun]) -> int:
    return sum(run.repeats for run in runs)


def _longest(
    tokens: np.ndarray, prefix: np.ndarray, low: int, high: int, least: float
) -> BlockRun | None:
    """The run in [low, high) with the most work; of several the one with the shortest blocks, then
    the first. Blocks with less work than `least` do not count."""
    best, most = None, 0.0
    for period in range(1, (high - low) // 2 + 1):
        same = np.concatenate(
            ([False], tokens[low : high - period] == tokens[low + period : high], [False])
        )
        edges = np.flatnonzero(same[1:] != same[:-1])
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            repeats = 1 + (last - first) // period
            if repeats < 2:
                continue
            run = BlockRun(low + first, period, repeats)
            work = float(prefix[run.stop] - prefix[run.start])
            # Of runs with equal work the one with the shortest period stays, whatever rounding
            # says.
            if work > most * (1 + 1e-9) and work >= least * repeats:
                best, most = run, work
    return best

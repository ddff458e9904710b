"""Where to cut the tokens of a causal model for TeraPipe (arXiv 2102.07988, section 3.3).

A slice of l tokens behind a context of c tokens takes t(l, c) on every mesh. With K meshes and N
microbatches, a step takes N · Σ t + (K - 1) · max t: dynamic programming gives the least sum for a
bound on the longest slice, and the bounds that matter are tried from the largest down. After a
solution whose longest slice is m, the next bound is the largest time below m, since all between
give the same; the search ends where the sum, which only grows, and the least that the longest slice
can be promise nothing better."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardopt.support.errors import UserError


@dataclass(frozen=True)
class TokenSlices:
    """Lengths of the slices in units of the table, their seconds, and the seconds of a step."""

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    step_seconds: float
    bounds_tried: int


def token_slices(seconds: np.ndarray, num_meshes: int, num_microbatches: int = 1) -> TokenSlices:
    """The slices with the shortest step, exactly.

    `seconds[l - 1, c]` is the time of a slice of l units behind c units, forward and backward
    together, for l + c ≤ n; the table has the shape (n, n), and what lies beyond is never looked
    at. Raises UserError for another shape, or for times that are not positive numbers."""
    table = np.asarray(seconds, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise UserError(
            "expected times of slices by length and context as a square table, found "
            f"shape {table.shape}"
        )
    count = len(table)
    by_end = np.full((count + 1, count), np.inf)  # [end, begin]
    for end in range(1, count + 1):
        begins = np.arange(end)
        by_end[end, :end] = table[end - begins - 1, begins]
    used = by_end[1:][np.tril_indices(count)]
    if not np.all(np.isfinite(used) & (used > 0)):
        raise UserError("times of slices must be positive numbers")
    # Between two of these times a bound changes nothing.
    times = np.unique(used)
    fill = num_meshes - 1
    shortest = _least_longest(by_end)
    best: TokenSlices | None = None
    bound, tried = float(times[-1]), 0
    while True:
        total, cuts = _least_sum(by_end, bound)
        if not cuts:
            break
        tried += 1
        slice_seconds = tuple(float(by_end[end, begin]) for begin, end in pairwise(cuts))
        step = num_microbatches * total + fill * max(slice_seconds)
        if best is None or step < best.step_seconds:
            lengths = tuple(end - begin for begin, end in pairwise(cuts))
            best = TokenSlices(lengths, slice_seconds, step, tried)
        smaller = int(np.searchsorted(times, max(slice_seconds))) - 1
        # The sum only grows as the bound falls, so this much no later solution can do without.
        if smaller < 0 or num_microbatches * total + fill * shortest >= best.step_seconds:
            break
        bound = float(times[smaller])
    assert best is not None  # the largest bound forbids nothing
    return TokenSlices(best.lengths, best.seconds, best.step_seconds, tried)


def _least_sum(by_end: np.ndarray, bound: float) -> tuple[float, list[int]]:
    """The least sum of slices that take at most `bound` each, and its cuts from 0 to the end; (inf,
    []) if none do."""
    count = len(by_end) - 1
    total = np.full(count + 1, np.inf)
    total[0], source = 0.0, np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        costs = np.where(by_end[end, :end] <= bound, total[:end] + by_end[end, :end], np.inf)
        source[end] = int(np.argmin(costs))
        total[end] = costs[source[end]]
    if not np.isfinite(total[count]):
        return float("inf"), []
    cuts = [count]
    while cuts[-1]:
        cuts.append(int(source[cuts[-1]]))
    return float(total[count]), cuts[::-1]


def _least_longest(by_end: np.ndarray) -> float:
    """The least time that the longest slice can have."""
    count = len(by_end) - 1
    longest = np.full(count + 1, np.inf)
    longest[0] = 0.0
    for end in range(1, count + 1):
        longest[end] = np.min(np.maximum(longest[:end], by_end[end, :end]))
    return float(longest[count])

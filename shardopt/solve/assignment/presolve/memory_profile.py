"""Memory over time while the graph of a problem shrinks: exact bookkeeping for the presolve.

What every assignment uses anyway stands in a base profile; nodes keep segments with the bytes
*above* that. Times are renumbered to those at which the limit can still decide something."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardopt.solve.assignment.problem import Problem, Usage

Segments = dict[tuple[int, int], np.ndarray]


class UsageProfile:
    """Limit (bytes), base profile (int64 `[times]`) and, for each node, `{(lo, hi): bytes [k] above
    the base}`."""

    def __init__(self, problem: Problem) -> None:
        if problem.usages is None or problem.memory_limit is None:
            raise ValueError("the problem has no memory limit")
        self.limit = problem.memory_limit
        kept = [[usage for usage in segments if usage.lo < usage.hi] for segments in problem.usages]
        # Usage changes only where an interval starts or ends, so those points stand for all times.
        points = np.unique(
            [end for segments in kept for usage in segments for end in (usage.lo, usage.hi)]
        )
        index = {int(point): position for position, point in enumerate(points)}
        self.base = np.zeros(max(len(points) - 1, 0), dtype=np.int64)
        self.segments: list[Segments] = [{} for _ in kept]
        self._slack: list[np.ndarray] = []
        for node, usages in enumerate(kept):
            for usage in usages:
                self._append(node, (index[usage.lo], index[usage.hi]), usage.bytes)

    @property
    def num_times(self) -> int:
        return len(self.base)

    @property
    def smallest_peak(self) -> int:
        """Bytes that every assignment of the remaining strategies uses at some time (after
        `raise_base`)."""
        return int(self.base.max(initial=0))

    def uses(self, node: int) -> bool:
        return bool(self.segments[node])

    def take(self, node: int, strategies: np.ndarray) -> None:
        self.segments[node] = {span: size[strategies] for span, size in self.segments[node].items()}

    def merge(self, node: int, into: int, strategy_of: np.ndarray) -> None:
        """Append the segments of `node`, whose strategy is `strategy_of[strategy of into]`; `into`
        is not rescanned."""
        for span, size in self.segments[node].items():
            self._append(into, span, size[strategy_of])
        self.segments[node] = {}

    def raise_base(self, nodes: list[int]) -> None:
        """Move the smallest bytes of each segment into the base and drop segments that do not
        depend on the choice."""
        change = np.zeros(self.num_times + 1, dtype=np.int64)
        for node in nodes:
            varying: Segments = {}
            for (lo, hi), size in self.segments[node].items():
                smallest = size.min()
                change[lo] += smallest
                change[hi] -= smallest
                if size.max() > smallest:
                    varying[lo, hi] = size - smallest if smallest else size
            self.segments[node] = varying
        self.base = self.base + np.cumsum(change)[:-1]

    def drop_free_times(self) -> None:
        """Keep only the times that can exceed the limit and whose live nodes are not among those of
        a neighbour."""
        change = np.zeros(self.num_times + 1, dtype=np.int64)
        for lo, hi, size in self._all_segments():
            largest = size.max()
            change[lo] += largest
            change[hi] -= largest
        self._renumber(self.base + np.cumsum(change)[:-1] > self.limit)
        # One direction after the other: two equal neighbours would otherwise remove each other.
        for forward in (True, False):
            self._renumber(~self._dominated(forward))

    def too_large(self, node: int) -> np.ndarray | None:
        """Mask of the strategies that exceed the limit although all other nodes use their least;
        None if none do."""
        worst: np.ndarray | None = None
        for (lo, hi), size in self.segments[node].items():
            over = size > self._least_slack(lo, hi)
            if over.any():
                worst = over if worst is None else worst | over
        return worst

    def prepare_slack(self) -> None:
        """Build the range-minimum table of limit - base that `too_large` reads: row j covers 2^j
        times."""
        self._slack = [self.limit - self.base]
        width = 1
        while 2 * width <= self.num_times:
            last = self._slack[-1]
            self._slack.append(np.minimum(last[:-width], last[width:]))
            width *= 2

    def usages(self, nodes: list[int]) -> tuple[tuple[Usage, ...], ...]:
        """The segments of `nodes`, as a problem states them."""
        return tuple(
            tuple(Usage(lo, hi, size) for (lo, hi), size in self.segments[node].items())
            for node in nodes
        )

    def base_usages(self) -> tuple[Usage, ...]:
        """The base as segments of a node with one strategy."""
        ends = np.flatnonzero(np.diff(self.base, prepend=-1, append=-1))
        runs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        return tuple(Usage(lo, hi, self.base[lo : lo + 1]) for lo, hi in runs if self.base[lo])

    def _append(self, node: int, span: tuple[int, int], size: np.ndarray) -> None:
        segments = self.segments[node]
        segments[span] = segments[span] + size if span in segments else size

    def _all_segments(self) -> Iterator[tuple[int, int, np.ndarray]]:
        for segments in self.segments:
            for (lo, hi), size in segments.items():
                yield lo, hi, size

    def _least_slack(self, lo: int, hi: int) -> int:
        level = (hi - lo).bit_length() - 1
        row = self._slack[level]
        return int(min(row[lo], row[hi - (1 << level)]))

    def _dominated(self, forward: bool) -> np.ndarray:
        """Times whose live segments are all live at the next (previous) time too, which has no
        smaller base."""
        ends = np.zeros(self.num_times + 1, dtype=bool)
        for lo, hi, _ in self._all_segments():
            ends[hi if forward else lo] = True
        mask = np.zeros(self.num_times, dtype=bool)
        if forward:
            mask[:-1] = ~ends[1:-1] & (self.base[:-1] <= self.base[1:])
        else:
            mask[1:] = ~ends[1:-1] & (self.base[1:] <= self.base[:-1])
        return mask

    def _renumber(self, keep: np.ndarray) -> None:
        if keep.all():
            return
        position = np.concatenate([[0], np.cumsum(keep)]).tolist()
        self.base = self.base[keep]
        for node, old in enumerate(self.segments):
            if not old:
                continue
            self.segments[node] = {}
            for (lo, hi), size in old.items():
                if position[lo] < position[hi]:
                    self._append(node, (position[lo], position[hi]), size)

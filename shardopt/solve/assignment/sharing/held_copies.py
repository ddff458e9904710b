"""Copies that readers of a value leave for later ones: they take memory until then, or are made
again.

Readers that bring a value by the same way have the same copy. Between two of them that follow each
other it is either kept, in every stretch of time between them, or the later one pays all of its way
again. A stretch is a node of two strategies, dropped or kept, so that the limit of the problem
counts it as it counts everything else. Where the value itself is recomputed between the two, the
later one pays again as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from shardopt.solve.assignment.problem import Problem, Usage
from shardopt.solve.assignment.sharing.arcs import SharedEdges


@dataclass(frozen=True, eq=False)
class Recomputed:
    """A value is made again for the `readers` of a group, where `node` has one of the strategies of
    which `strategies` (bool `[k]`) says so."""

    node: int
    strategies: np.ndarray
    readers: frozenset[int]

    def parts(self, before: int, after: int) -> bool:
        """Whether two readers have different instances of the value then."""
        return before not in self.readers and after in self.readers


@dataclass(frozen=True, eq=False)
class HeldCopy:
    """A copy of `bytes` bytes that the readers of `group` have who take one of the pairs of classes
    `reads[r]` (bool `[S, T_r]`), at the times `times[r]`; `recomputed` says when its value is."""

    group: SharedEdges
    reads: tuple[np.ndarray, ...]
    times: tuple[int, ...]
    bytes: int
    recomputed: Recomputed | None = None

    @cached_property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Times `[lo, hi)` from the first reader to the last: those between two readers, and those
        of the readers in the middle, who may read another copy."""
        can_read = zip(self.times, self.reads, strict=True)
        at = sorted({time for time, reads in can_read if reads.any()})
        stretches = [stretch for a, b in pairwise(at) for stretch in ((a + 1, b), (b, b + 1))]
        return tuple((lo, hi) for lo, hi in stretches if lo < hi and lo != at[-1])

    def made_again(self, choice: Sequence[int], kept: Sequence[bool]) -> Iterator[int]:
        """The readers that make another copy under an assignment and with some stretches kept."""
        users = sorted(
            (time, reader) for reader, time in enumerate(self.times) if self.is_read(choice, reader)
        )
        recomputed = self.recomputed
        if recomputed is not None and not recomputed.strategies[choice[recomputed.node]]:
            recomputed = None
        for (before, first), (after, reader) in pairwise(users):
            between = (before < lo < after for lo, _ in self.stretches)
            dropped = any(inside and not keep for inside, keep in zip(between, kept, strict=True))
            if dropped or (recomputed is not None and recomputed.parts(first, reader)):
                yield reader

    def way(self, reader: int) -> np.ndarray:
        """Seconds of all of the reader's way, for each pair of classes: `[S, T_r]`."""
        arcs = self.group.arcs
        return np.append(arcs.seconds, 0.0)[arcs.paths[reader]].sum(axis=2)

    def classes(self, choice: Sequence[int], reader: int) -> tuple[int, int]:
        group = self.group
        row = group.arcs.rows[reader][choice[group.sources[reader]]]
        return int(row), int(group.arcs.columns[reader][choice[group.readers[reader]]])

    def is_read(self, choice: Sequence[int], reader: int) -> bool:
        """Whether the reader has this copy under an assignment."""
        return bool(self.reads[reader][self.classes(choice, reader)])


def with_held(problem: Problem, copies: Sequence[HeldCopy]) -> Problem:
    """The problem with a node for each stretch of each copy behind its own, in their order."""
    segments = [
        (Usage(lo, hi, np.array([0, copy.bytes])),) for copy in copies for lo, hi in copy.stretches
    ]
    return replace(
        problem,
        costs=(*problem.costs, *(np.zeros(2) for _ in segments)),
        usages=(*(problem.usages or ()), *segments),
    )

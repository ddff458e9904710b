"""The recursions of a problem: which numbers of stages share one, and which stages fit at which place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, Stages, in_flight_counts
from shardopt.solve.stages.stage_recursion import Recursion, Station, candidates_of, make_sizes, stages_of

if TYPE_CHECKING:
    from shardopt.solve.stages.stage_kernels import Sizes


@dataclass(frozen=True, eq=False)
class Search:
    """One recursion over the seconds of `problem`; `levels` are the microbatches in flight of its levels."""

    problem: StageProblem
    recursion: Recursion
    levels: np.ndarray
    size_of: np.ndarray

    def stages(self, stations: tuple[Station, ...]) -> Stages:
        return stages_of(self.problem, stations, self.levels, self.size_of)


def count_groups(problem: StageProblem, num_stages: int | None) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """(microbatches in flight by stage from the end, numbers of stages it holds for): one group for all numbers of
    stages if a stage's count does not depend on how many stages come before it, as in 1F1B, else one for each."""
    counts = (num_stages,) if num_stages is not None else tuple(range(1, problem.most_stages + 1))
    held = {n: np.array(in_flight_counts(problem, n), dtype=float) for n in counts}
    longest = held[counts[-1]]
    if all(np.array_equal(held[n], longest[:n]) for n in counts):
        yield longest, counts
    else:
        yield from ((held[n], (n,)) for n in counts)


def searches(problem: StageProblem, num_stages: int | None, one_by_one: bool = False) -> Iterator[Search]:
    """The recursions whose best plans are those of the problem: as few as do, or one for each number of stages."""
    from shardopt.solve.stages.stage_kernels import cheapest_by_size

    sizes, size_of = make_sizes(problem)
    options_held = np.array([option.held for option in problem.options], dtype=np.int64)
    limits, cuts = problem.limit_bytes(), problem.cut_seconds()[:, None, None]
    arrays = (problem.seconds, problem.fixed_bytes, problem.activation_bytes)
    seconds, fixed, activation = (np.ascontiguousarray(each, dtype=float) for each in arrays)
    for held, counts in count_groups(problem, num_stages):
        levels, level_of = np.unique(held, return_inverse=True)  # 1F1B repeats its count beyond B stages
        costs = np.empty((len(levels), *problem.seconds.shape[:2], len(sizes.offset)))
        cheapest_by_size(seconds, fixed, activation, options_held, limits, size_of, levels, costs)
        table = CostTable(costs + cuts, np.maximum(costs, cuts), level_of, sizes)
        recursions = map(table.of_count, counts) if one_by_one else table.recursions(counts, problem.most_stages)
        yield from (Search(problem, recursion, levels, size_of) for recursion in recursions)


class CostTable:
    """Costs by level, from which recursions are made; `level_of[s]` is the level of the s-th stage from the end."""

    def __init__(self, total: np.ndarray, longest: np.ndarray, level_of: np.ndarray, sizes: Sizes) -> None:
        self.total, self.longest, self.level_of, self.sizes = total, longest, level_of, sizes
        self.candidates = candidates_of(longest)

    def recursions(self, counts: tuple[int, ...], most_stages: int) -> Iterator[Recursion]:
        """One recursion if all numbers of stages up to the most are allowed, else one for each."""
        if len(counts) == most_stages:
            yield self.any_count()
        else:
            yield from map(self.of_count, counts)

    def of_count(self, count: int) -> Recursion:
        """Exactly so many stages."""
        return self._recursion(np.append(self.level_of[:count], 0), False, (count,))

    def any_count(self) -> Recursion:
        """Any number of stages; those behind which all cost the same are one state."""
        last = len(self.level_of) - 1
        while last > 0 and np.array_equal(self.total[self.level_of[last - 1]], self.total[self.level_of[-1]]):
            last -= 1
        return self._recursion(self.level_of[: last + 1], True, tuple(range(last + 1)))

    def _recursion(self, level: np.ndarray, is_open: bool, answers: tuple[int, ...]) -> Recursion:
        from shardopt.solve.stages.stage_kernels import States

        return Recursion(self.total, self.longest, self.candidates, States(level, is_open), self.sizes, answers)

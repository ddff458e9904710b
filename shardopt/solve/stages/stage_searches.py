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


class SearchTables:
    """All recursions of a problem, each table of costs made when it is first asked for."""

    def __init__(self, problem: StageProblem, num_stages: int | None = None) -> None:
        self.problem = problem
        self.sizes, self.size_of = make_sizes(problem)
        self._groups = tuple(count_groups(problem, num_stages))
        self._tables: dict[int, tuple[CostTable, np.ndarray]] = {}

    def fewest(self) -> Iterator[Search]:
        """As few recursions as do for all numbers of stages."""
        for group, (_, counts) in enumerate(self._groups):
            table, levels = self._table(group)
            for recursion in table.recursions(counts, self.problem.most_stages):
                yield Search(self.problem, recursion, levels, self.size_of)

    def of_count(self, count: int) -> Search:
        """The recursion of plans with exactly so many stages."""
        group = next(index for index, (_, counts) in enumerate(self._groups) if count in counts)
        table, levels = self._table(group)
        return Search(self.problem, table.of_count(count), levels, self.size_of)

    def _table(self, group: int) -> tuple[CostTable, np.ndarray]:
        """Costs of the stages that fit, by level, and the microbatches in flight of the levels."""
        if group not in self._tables:
            levels, level_of = np.unique(self._groups[group][0], return_inverse=True)  # 1F1B repeats its last count
            costs = self._costs(levels)
            both, longer = self.problem.cut_seconds()[:, :, None, None]
            self._tables[group] = (CostTable(costs + both, np.maximum(costs, longer), level_of, self.sizes), levels)
        return self._tables[group]

    def _costs(self, levels: np.ndarray) -> np.ndarray:
        from shardopt.solve.stages.stage_kernels import cheapest_by_size

        problem = self.problem
        held = np.array([option.held for option in problem.options], dtype=np.int64)
        arrays = (problem.seconds, problem.fixed_bytes, problem.activation_bytes)
        seconds, fixed, activation = (np.ascontiguousarray(each, dtype=float) for each in arrays)
        costs = np.empty((len(levels), *problem.seconds.shape[:2], len(self.sizes.offset)))
        cheapest_by_size(seconds, fixed, activation, held, problem.limit_bytes(), self.size_of, levels, costs)
        return costs


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

"""The recursions of a problem: which numbers of stages share one, and which stages fit at which
place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.stages.dp.recursion import PipelineSlot, Recursion, candidates_of, make_sizes
from shardopt.solve.stages.stage_problem import (
    Copies,
    StageProblem,
    StageSolution,
    evaluate,
    held_copies,
)

if TYPE_CHECKING:
    from shardopt.solve.stages.dp.kernels import Costs, Sizes


@dataclass(frozen=True, eq=False)
class Search:
    """One recursion over the seconds of `problem`; `size_of` is the size of each config."""

    problem: StageProblem
    recursion: Recursion
    size_of: np.ndarray

    def plan(self, slots: tuple[PipelineSlot, ...]) -> StageSolution | None:
        """The plan with the cheapest config that fits for each slot, the first of equals; None
        where none fits, as may be for an answer of the relaxed recursion, or where the number of
        stages is not allowed."""
        if not self.recursion.states.open and len(slots) not in self.recursion.answers:
            return None
        copies = held_copies(self.problem, len(slots))[::-1]
        stages = []
        for (start, end, size), held in zip(slots, copies, strict=True):
            fits = self.problem.fits(held, start, end) & (self.size_of == size)
            if not fits.any():
                return None
            seconds = np.where(fits, self.problem.seconds[start, end], np.inf)
            stages.append((start, end, int(seconds.argmin())))
        return evaluate(self.problem, tuple(stages))


def count_groups(
    problem: StageProblem, num_stages: int | None
) -> Iterator[tuple[tuple[Copies, ...], tuple[int, ...]]]:
    """(what is held by stage from the end, numbers of stages it holds for): one group for all
    numbers of stages if what a stage holds does not depend on how many stages come before it, as in
    1F1B, else one for each."""
    counts = (num_stages,) if num_stages is not None else tuple(range(1, problem.most_stages + 1))
    copies = {n: held_copies(problem, n) for n in counts}
    longest = copies[counts[-1]]
    if all(copies[n] == longest[:n] for n in counts):
        yield longest, counts
    else:
        yield from ((copies[n], (n,)) for n in counts)


def levels_of(copies: Sequence[Copies]) -> tuple[tuple[Copies, ...], np.ndarray]:
    """What differs of that, rising, and the number of each stage among it."""
    levels = sorted(set(copies))
    return tuple(levels), np.array([levels.index(held) for held in copies])


class SearchTables:
    """All recursions of a problem, each table of costs made when it is first asked for."""

    def __init__(self, problem: StageProblem, num_stages: int | None = None) -> None:
        self.problem = problem
        self.sizes, self.size_of = make_sizes(problem)
        self._groups = tuple(count_groups(problem, num_stages))
        self._tables: dict[int, CostTable] = {}

    def fewest(self) -> Iterator[Search]:
        """As few recursions as do for all numbers of stages."""
        for group, (_, counts) in enumerate(self._groups):
            for recursion in self._table(group).recursions(counts, self.problem.most_stages):
                yield Search(self.problem, recursion, self.size_of)

    def of_count(self, count: int) -> Search:
        """The recursion of plans with exactly so many stages."""
        group = next(index for index, (_, counts) in enumerate(self._groups) if count in counts)
        return Search(self.problem, self._table(group).of_count(count), self.size_of)

    def least_seconds(self, cutoff: float, parts: int = 6) -> dict[int, float]:
        """A lower bound of the step for each number of stages, inf where it exceeds `cutoff`; 0 for
        numbers of stages that share no table with others. The values of t_max are cut into `parts`
        intervals."""
        if len(self._groups) > 1:
            return {count: 0.0 for _, counts in self._groups for count in counts}
        table = self._table(0)
        [(_, counts)] = self._groups
        repeats = self.problem.num_microbatches - 1
        low, floor = table.relaxed.low_end
        high = len(table.candidates) - 1
        if repeats:
            high = min(high, int(np.searchsorted(table.candidates, (cutoff - floor) / repeats)))
        recursion = table.each_count(counts)
        bounds = np.full(len(counts), np.inf)
        ends = np.unique(np.linspace(low, high, parts + 1).astype(int))
        for before, last in pairwise(ends):  # t_max above candidate `before`, up to `last`
            rest = repeats * float(table.candidates[before + 1])
            np.minimum(
                bounds,
                recursion.least_sums(float(table.candidates[last]), cutoff - rest) + rest,
                out=bounds,
            )
        return dict(zip(counts, bounds.tolist(), strict=True))

    def _table(self, group: int) -> CostTable:
        """Costs of the stages that fit, by level."""
        from shardopt.solve.stages.dp.kernels import Costs

        if group not in self._tables:
            # 1F1B repeats its last count.
            levels, level_of = levels_of(self._groups[group][0])
            costs = cheapest_seconds(self.problem, levels, self.size_of, len(self.sizes.offset))
            shape = costs.shape[1:3]
            more, longer = (
                np.repeat(cuts[:-1, None], shape[1], axis=1) for cuts in self.problem.cut_seconds()
            )
            self._tables[group] = CostTable(Costs(costs, more, longer), level_of, self.sizes)
        return self._tables[group]


def cheapest_seconds(
    problem: StageProblem, levels: Sequence[Copies], size_of: np.ndarray, num_sizes: int
) -> np.ndarray:
    """The least seconds of every stage on configs of each size that fit with each of the rising
    `levels`, `[levels, L, W, sizes]` by first layer and number of layers behind that; no stage has
    more than W layers. `size_of` `[C]` is -1 for configs that do not take part."""
    from shardopt.solve.stages.dp.kernels import Need, cheapest_by_size

    def flat(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values, dtype=float)

    limits, fixed = problem.limit_bytes, flat(problem.fixed_bytes)
    outside, weights = (
        fixed if values is None else flat(values)  # the least that is needed, and no versions
        for values in (problem.outside_bytes, problem.weight_bytes)
    )
    need, seconds = Need(fixed, flat(problem.activation_bytes), outside, weights), problem.seconds
    costs = np.empty((len(levels), problem.num_layers, most_layers(seconds), num_sizes))
    for versions in sorted({held.versions for held in levels}):
        rows = [row for row, held in enumerate(levels) if held.versions == versions]
        in_flight = np.array([float(levels[row].in_flight) for row in rows])
        # Microbatches in flight and versions rise together.
        each = costs[rows[0] : rows[-1] + 1]
        assert len(each) == len(rows), "levels of a version follow each other"
        older = 0 if problem.weight_bytes is None else versions
        cheapest_by_size(flat(seconds), need, limits, size_of, older, in_flight, each)
    return costs


def most_layers(seconds: np.ndarray) -> int:
    """The layers of the longest stages with finite `seconds`, `[L + 1, L + 1, C]`; 1 where there
    are none."""
    layers = len(seconds) - 1
    for count in range(layers, 1, -1):
        firsts = np.arange(layers + 1 - count)
        if np.isfinite(seconds[firsts, firsts + count]).any():
            return count
    return 1


class CostTable:
    """Costs by level, from which recursions are made; `level_of[s]` is the level of the s-th stage
    from the end."""

    def __init__(self, costs: Costs, level_of: np.ndarray, sizes: Sizes) -> None:
        self.costs, self.level_of, self.sizes = costs, level_of, sizes
        self.candidates = candidates_of(costs)

    def recursions(self, counts: tuple[int, ...], most_stages: int) -> Iterator[Recursion]:
        """One recursion if all numbers of stages up to the most are allowed, else one for each."""
        if len(counts) == most_stages:
            yield self.any_count()
        else:
            yield from map(self.of_count, counts)

    def of_count(self, count: int) -> Recursion:
        """Exactly so many stages."""
        # No stage is placed in the last state: its level is never read.
        return self._recursion(np.append(self.level_of[:count], 0), False, (count,))

    def each_count(self, counts: tuple[int, ...]) -> Recursion:
        """Any of these numbers of stages, kept apart."""
        return self._recursion(np.append(self.level_of[: counts[-1]], 0), False, counts)

    def any_count(self) -> Recursion:
        """Any number of stages; those behind which all cost the same are one state."""
        last, seconds = len(self.level_of) - 1, self.costs.seconds
        # Two levels may cost the same: with memory to spare every config fits at both.
        while last > 0 and np.array_equal(
            seconds[self.level_of[last - 1]], seconds[self.level_of[-1]]
        ):
            last -= 1
        if last == 0:
            return self.relaxed
        return self._recursion(self.level_of[: last + 1], True, tuple(range(last + 1)))

    @cached_property
    def relaxed(self) -> Recursion:
        """The fewest microbatches in flight everywhere, and any number of stages."""
        from shardopt.solve.stages.dp.kernels import States

        anywhere = States(np.zeros(1, np.int64), True)
        return Recursion(
            costs=self.costs._replace(seconds=self.costs.seconds[:1]),
            candidates=self.candidates,
            states=anywhere,
            sizes=self.sizes,
            answers=(0,),
        )

    def _recursion(self, level: np.ndarray, is_open: bool, answers: tuple[int, ...]) -> Recursion:
        from shardopt.solve.stages.dp.kernels import States

        states = States(level, is_open)
        return Recursion(
            costs=self.costs,
            candidates=self.candidates,
            states=states,
            sizes=self.sizes,
            answers=answers,
            relaxed=self.relaxed,
        )

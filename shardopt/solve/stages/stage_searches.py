"""Which stages take part in the recursion: those that fit the memory at their place in the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardopt.solve.stages.stage_problem import StageProblem, in_flight_counts
from shardopt.solve.stages.stage_recursion import Search, make_search


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


def timed_search(problem: StageProblem, held: np.ndarray, counts: tuple[int, ...]) -> Search:
    """The search over seconds, with stages that exceed the memory left out."""
    levels, level_of = np.unique(held, return_inverse=True)  # 1F1B repeats its count beyond B stages
    fits = np.stack([problem.fits(level) for level in levels])
    any_count = len(counts) == problem.most_stages
    if any_count and (fits == fits[0]).all():
        return make_search(problem, np.where(fits[:1], problem.seconds, np.inf), 0, (0,))
    return make_search(problem, np.where(fits[level_of], problem.seconds, np.inf), 1, counts)

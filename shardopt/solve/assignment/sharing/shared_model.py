"""Problems with shared edges as integer programs, memory included.

A shared edge has no costs of its own: its pairs of classes say which arcs its reader uses. Each arc
that several can use is a column z in [0, 1], at least the share of the pairs of any one reader that
use it:

    minimize … + sum_a seconds[a] z[a]    where z[a] >= sum of y[e, p, q] over the pairs with a

This linear program bounds no worse than the best shares do, by duality: the multipliers of these
rows are shares of the arc's seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP, solve_model
from shardopt.solve.assignment.exact.marginal_model import MarginalModel, PairTable
from shardopt.solve.assignment.problem import Evaluation, Solution
from shardopt.solve.assignment.sharing.shared_edges import Arcs, SharedEdges, Sharing
from shardopt.solve.assignment.sharing.table_classes import table_classes

# Columns of an integer program that HiGHS proves within seconds: 270,000 took it 14, where memory
# was no matter.
_MOST_COLUMNS = 300_000
_MOST_WITHIN_MEMORY = 30_000


def is_small(sharing: Sharing, *, within_memory: bool = False) -> bool:
    """Whether an integer program of the whole is worth its time."""
    most = _MOST_WITHIN_MEMORY if within_memory else _MOST_COLUMNS
    entries = sum(len(cost) for cost in sharing.problem.costs)
    for table in _tables(sharing):
        entries += int((table.seconds < np.inf).sum())
        if entries > most:
            return False
    return True


def solve_exactly(
    sharing: Sharing,
    time_limit_seconds: float | None,
    gap_tolerance: float,
    start: tuple[int, ...] | None,
) -> Solution:
    """Least true cost within the memory of `sharing.problem`, as `solve_marginal`;
    `time_limit_struck` is 1 in the statistics where the clock ended it."""
    solution = solve_model(SharedModel(sharing), time_limit_seconds, gap_tolerance, start)
    is_close = solution.gap <= max(gap_tolerance, OPTIMAL_GAP)
    if is_close or time_limit_seconds is None:
        return solution
    return replace(solution, statistics=dict(solution.statistics) | {"time_limit_struck": 1})


class SharedModel(MarginalModel):
    """Behind the columns of pairs stands one for each arc that several readers can use."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        super().__init__(sharing.problem)

    def evaluate(self, choice: Sequence[int]) -> Evaluation:
        pairs = super().evaluate(choice)
        return pairs._replace(objective=self.sharing.seconds(choice))

    def _tables(self) -> list[PairTable]:
        return list(_tables(self.sharing))

    def _steps(self) -> np.ndarray:
        steps = (group.arcs.seconds[_is_common(group.arcs)] for group in self.sharing.groups)
        return np.concatenate([np.zeros(0), *steps])

    def _build_polytope(self) -> None:
        super()._build_polytope()
        rows, columns, values = [self._rows], [self._columns], [self._values]
        first_row, first_pair = self.num_rows, self._first_pairs()
        for group in self.sharing.groups:
            common = np.flatnonzero(_is_common(group.arcs))
            for reader, edge in enumerate(group.edges):
                pairs, used = _uses(group.arcs, reader, common)
                arcs, row = np.unique(used, return_inverse=True)
                rows += [self.num_rows + row, self.num_rows + np.arange(len(arcs))]
                columns += [first_pair[edge] + pairs, self.num_columns + arcs]
                values += [np.ones(len(pairs)), -np.ones(len(arcs))]
                self.num_rows += len(arcs)
            self.num_columns += len(common)
        self._rows, self._columns = np.concatenate(rows), np.concatenate(columns)
        self._values = np.concatenate(values)
        added = self.num_rows - first_row
        self._lower = np.concatenate([self._lower, np.full(added, -np.inf)])
        self._upper = np.concatenate([self._upper, np.zeros(added)])

    def _first_pairs(self) -> np.ndarray:
        """The first column of pairs of each edge."""
        counts = [int((table.seconds < np.inf).sum()) for table in self.tables]
        return self.num_x + np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _tables(sharing: Sharing) -> Iterable[PairTable]:
    """One for each edge; a shared one has the seconds of the arcs that its reader alone can use."""
    shared = {
        edge: (group, reader) for group in sharing.groups for reader, edge in enumerate(group.edges)
    }
    cores: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for number, edge in enumerate(sharing.problem.edges):
        if number in shared:
            group, reader = shared[number]
            yield _shared_table(group, reader)
            continue
        if id(edge.cost) not in cores:
            cores[id(edge.cost)] = table_classes(edge.cost)
        seconds, rows, columns = cores[id(edge.cost)]
        yield PairTable(edge.u, edge.v, rows, columns, seconds)


def _shared_table(group: SharedEdges, reader: int) -> PairTable:
    arcs = group.arcs
    alone = np.append(np.where(_is_common(arcs), 0.0, arcs.seconds), 0.0)
    seconds = alone[arcs.paths[reader]].sum(axis=2)
    seconds[arcs.missing[reader]] = np.inf
    ends = group.sources[reader], group.readers[reader]
    return PairTable(*ends, arcs.rows[reader], arcs.columns[reader], seconds)


def _is_common(arcs: Arcs) -> np.ndarray:
    """The arcs that several can use and somebody pays for: bool `[A]`."""
    return (arcs.usable.sum(axis=0) > 1) & (arcs.seconds > 0)


def _uses(arcs: Arcs, reader: int, common: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the pairs of an edge uses which of the common arcs, each use once."""
    place = np.full(len(arcs.seconds) + 1, -1)
    place[common] = np.arange(len(common))
    used = place[arcs.paths[reader][~arcs.missing[reader]]]
    pair, step = np.nonzero(used >= 0)
    uses = np.unique(np.stack([pair, used[pair, step]], axis=1), axis=0)
    return uses[:, 0], uses[:, 1]

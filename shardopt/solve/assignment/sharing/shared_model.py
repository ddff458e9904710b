"""Problems with shared edges as integer programs, memory included.

A shared edge has no costs of its own: its pairs of classes say which arcs its reader uses. Each arc
that several can use is a column z in [0, 1], at least the share of the pairs of any one reader that
use it:

    minimize … + sum_a seconds[a] z[a]    where z[a] >= sum of y[e, p, q] over the pairs with a

This linear program bounds no worse than the best shares do, by duality: the multipliers of these
rows are shares of the arc's seconds.

A copy that is held between readers (`held_copies`) has a column f in [0, y] for each pair of a
reader by which it may be made again. For two readers i < j and each stretch of time between them

    kept + sum of f[k], i < k <= j  >=  y[i] + y[j] - 1

where y are the sums of pairs that read the copy; while a reader in the middle runs, its own y is
added on the left, as what it reads is counted beside it. The same row holds where `kept` is that
the value is not recomputed between the two.

What a caller has found wanting by means that the program does not know is excluded: of strategies
`S[v]` of the nodes v of a set, sum of x[v, s], s in S[v], is less than the number of nodes
(combinatorial Benders cuts; Codato and Fischetti 2006)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import NamedTuple

import numpy as np

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP, solve_model
from shardopt.solve.assignment.exact.marginal_model import (
    Answer,
    Cuts,
    MarginalModel,
    PairTable,
)
from shardopt.solve.assignment.exact.memory_program import solve_by_cp_sat
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Evaluation, Solution
from shardopt.solve.assignment.sharing.arcs import Arcs, SharedEdges
from shardopt.solve.assignment.sharing.held_copies import HeldCopy
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.table_classes import table_classes

# Columns of a linear program that takes a second or two: 170,000 took 8, and left a gap of 0.117 %
# where rounds of prices had left 0.12.
_MOST_COLUMNS = 100_000
# And of an integer program, without a limit of memory and within one.
_MOST_INTEGERS, _MOST_WITHIN_MEMORY = 30_000, 50_000

# Shares of the bound above it: nearly all gaps of the relaxations of plans are smaller.
_ROOMS = (0.001, 0.004, 0.016, 0.064)
# Within memory they are larger; a program of few columns is solved at once.
_ROOMS_WITHIN_MEMORY, _FEW_COLUMNS = (0.016, 0.064, 0.256), 5_000

# Assignments that choose one of the strategies (int64) of each of the nodes.
Excluded = tuple[tuple[int, np.ndarray], ...]


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
    limits: SearchLimits,
    start: tuple[int, ...] | None,
    held: Sequence[HeldCopy] = (),
    cutoff: float = np.inf,
    excluded: Sequence[Excluded] = (),
) -> Solution:
    """Least true cost within the memory of `sharing.problem` and of what is not `excluded`, as
    `solve_model`, or close to it where the linear program of a problem beyond integer programs has
    a fractional solution; `cutoff` as there. `time_limit_struck` is 1 in the statistics where the
    clock ended it. The last nodes of the problem are the stretches of the copies `held`
    (`with_held`)."""
    model = SharedModel(sharing, held, start, excluded)
    only_relaxed = model.num_columns > _MOST_INTEGERS and not sharing.problem.has_memory
    solution = solve_model(model, limits, start, only_relaxed=only_relaxed, cutoff=cutoff)
    is_close = solution.gap <= max(limits.gap_tolerance, OPTIMAL_GAP)
    if is_close or only_relaxed or not solution.statistics["late"]:
        return solution
    return replace(solution, statistics=dict(solution.statistics) | {"time_limit_struck": 1})


class _Row(NamedTuple):
    """`entries` are values by column."""

    entries: dict[int, float]
    lower: float
    upper: float


class SharedModel(MarginalModel):
    """Behind the columns of pairs stands one for each arc that several readers can use, then those
    of copies that are made again."""

    # HiGHS writes to standard output where it repairs a point of such a program.
    integers_by_scip = True
    fixes_columns = True

    def __init__(
        self,
        sharing: Sharing,
        held: Sequence[HeldCopy] = (),
        hint: tuple[int, ...] | None = None,
        excluded: Sequence[Excluded] = (),
    ) -> None:
        """`hint` is an assignment near which to search; it need not be allowed."""
        self.sharing, self.held, self.hint, self.excluded = sharing, held, hint, excluded
        stretches = sum(len(copy.stretches) for copy in held)
        self._first_stretch = sharing.problem.num_nodes - stretches
        super().__init__(sharing.problem)
        if self.problem.has_memory:
            self.rooms = () if self.num_columns <= _FEW_COLUMNS else _ROOMS_WITHIN_MEMORY
        else:
            self.rooms = _ROOMS

    def solve(
        self,
        cuts: Cuts,
        integer: bool,
        limits: SearchLimits = NO_LIMITS,
        cutoff: float = np.inf,
    ) -> Answer:
        if integer and self.problem.has_memory:
            return solve_by_cp_sat(self, self._within(cutoff), self.hint, limits)
        return super().solve(cuts, integer, limits, cutoff)

    def evaluate(self, choice: Sequence[int]) -> Evaluation:
        again = 0.0
        for copy, readers in made_again(self.held, choice):
            again += sum(float(copy.way(r)[copy.classes(choice, r)]) for r in readers)
        pairs = super().evaluate(choice)
        is_excluded = any(
            all(choice[node] in strategies for node, strategies in each) for each in self.excluded
        )
        objective = self.sharing.seconds(choice) + again
        return pairs._replace(objective=objective, feasible=pairs.feasible and not is_excluded)

    def _tables(self) -> list[PairTable]:
        return list(_tables(self.sharing))

    def _steps(self) -> np.ndarray:
        steps = (group.arcs.seconds[_is_common(group.arcs)] for group in self.sharing.groups)
        again = (
            copy.way(reader)[copy.reads[reader]]
            for copy in self.held
            for reader in range(len(copy.reads))
        )
        return np.concatenate([np.zeros(0), *steps, *again])

    def _build_polytope(self) -> None:
        super()._build_polytope()
        first_pair = self._first_pairs()
        self._add_steps(first_pair)
        rows, node = list[_Row](), self._first_stretch
        for copy in self.held:
            rows += self._held_rows(copy, node, first_pair)
            node += len(copy.stretches)
        rows += map(self._excluding_row, self.excluded)
        self._add_rows(rows)

    def _excluding_row(self, excluded: Excluded) -> _Row:
        columns = (self.offsets[node] + strategies for node, strategies in excluded)
        entries = dict.fromkeys(np.concatenate(list(columns)).tolist(), 1.0)
        return _Row(entries, -np.inf, len(excluded) - 1.0)

    def _add_steps(self, first_pair: np.ndarray) -> None:
        rows, columns, values = [self._rows], [self._columns], [self._values]
        first_row = self.num_rows
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

    def _held_rows(self, copy: HeldCopy, node: int, first_pair: np.ndarray) -> Iterator[_Row]:
        """Rows of one copy; its stretches are nodes from `node` on."""
        group, pairs, again = copy.group, list[list[int]](), list[list[int]]()
        for reader, edge in enumerate(group.edges):
            reads = copy.reads[reader][~group.arcs.missing[reader]]
            pairs.append((first_pair[edge] + np.flatnonzero(reads)).tolist())
            again.append([self.num_columns + place for place in range(len(pairs[-1]))])
            self.num_columns += len(pairs[-1])
        for made, pair in zip(chain(*again), chain(*pairs), strict=True):
            yield _Row({made: 1.0, pair: -1.0}, -np.inf, 0.0)
        kept = [(lo, int(self.offsets[node + n]) + 1) for n, (lo, _) in enumerate(copy.stretches)]
        recomputed = copy.recomputed
        for before, after in product(range(len(pairs)), repeat=2):
            begin, end = copy.times[before], copy.times[after]
            if not (pairs[before] and pairs[after]):
                continue
            later = [r for r, time in enumerate(copy.times) if begin < time <= end]
            ends = dict.fromkeys((*pairs[before], *pairs[after]), -1.0)
            made_again = dict.fromkeys(chain(*(again[reader] for reader in later)), 1.0)
            if recomputed is not None and begin < end and recomputed.parts(before, after):
                same = self.offsets[recomputed.node] + np.flatnonzero(~recomputed.strategies)
                instance = dict.fromkeys(same.tolist(), 1.0)
                yield _Row({**instance, **ends, **made_again}, -1.0, np.inf)
            for lo, column in kept:
                if begin < lo < end:
                    beside = (pairs[reader] for reader in later if copy.times[reader] == lo)
                    read = dict.fromkeys(chain(*beside), 1.0)
                    yield _Row({column: 1.0, **ends, **made_again, **read}, -1.0, np.inf)

    def _add_rows(self, rows: Sequence[_Row]) -> None:
        sizes = [len(row.entries) for row in rows]
        entries = [entry for row in rows for entry in row.entries.items()]
        numbers = np.repeat(self.num_rows + np.arange(len(rows)), sizes)
        self._rows = np.concatenate([self._rows, numbers])
        self._columns = np.append(self._columns, np.array([c for c, _ in entries], dtype=np.int64))
        self._values = np.append(self._values, [value for _, value in entries])
        self._lower = np.append(self._lower, [row.lower for row in rows])
        self._upper = np.append(self._upper, [row.upper for row in rows])
        self.num_rows += len(rows)

    def _first_pairs(self) -> np.ndarray:
        """The first column of pairs of each edge."""
        counts = [int((table.seconds < np.inf).sum()) for table in self.tables]
        return self.num_x + np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def made_again(
    held: Sequence[HeldCopy], choice: Sequence[int]
) -> Iterator[tuple[HeldCopy, list[int]]]:
    """The readers that make each copy again under an assignment that ends with the stretches."""
    node = len(choice) - sum(len(copy.stretches) for copy in held)
    for copy in held:
        stop = node + len(copy.stretches)
        yield copy, list(copy.made_again(choice, list(map(bool, choice[node:stop]))))
        node = stop


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

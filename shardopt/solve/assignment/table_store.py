"""Hash-consed cost tables: equal arrays become one object, and what is known about an object is
computed once.

Repeated layers give thousands of equal tables. Interning them turns the equality of tables into
equality of ids, so each operation on tables (transpose, analyse, min-plus product) runs once for
each distinct argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from shardopt.solve.assignment.distinct_rows import distinct_rows

_T = TypeVar("_T")

# Small tables are always interned. Larger ones (of meshes with three axes, say) are as long as what
# is held stays below this: where they are not equal, keeping them alive for the memo only costs
# memory.
_SMALL_BYTES = 1 << 14
_MAX_HELD_BYTES = 1 << 28
# What may stay for the next presolve that shares the store. There is a store for each mesh for
# which stage costs are computed.
_MAX_KEPT_BYTES = 1 << 26

# Entries of a difference of pairs of rows that fit a processor's cache, and are taken at once.
_MAX_AT_ONCE = 1 << 16

# A table counts as r(s) + q(t) if it differs from that by a few units in the last place of its
# largest entry.
_SEPARABLE_TOLERANCE = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False, slots=True)
class Analysis:
    """What one table `[k, m]` says by itself. At most the first applicable field is set, in this
    order.

    `dead_rows`/`dead_columns`: masks of rows or columns with no finite entry (both set if either
    has any). `row_part`/`column_part`: the table is `row_part[:, None] + column_part`.
    `column_of_row`/`row_of_column`: each row (column) has exactly one finite entry, here."""

    dead_rows: np.ndarray | None = None
    dead_columns: np.ndarray | None = None
    row_part: np.ndarray | None = None
    column_part: np.ndarray | None = None
    column_of_row: np.ndarray | None = None
    row_of_column: np.ndarray | None = None


class TableStore:
    """Owns the tables of one presolve, or of several whose problems share tables. Arrays given out
    are shared: never write to them."""

    def __init__(self) -> None:
        self._charged: set[int] = set()  # tables whose regret this presolve has asked for
        self._canonical: dict[tuple[object, ...], np.ndarray] = {}
        self._held_bytes = 0
        # Of arrays in _canonical, which live as long as the store: an id stays theirs.
        self._ids: set[int] = set()
        self._memo: dict[tuple[object, ...], object] = {}

    def begin(self) -> None:
        """The next presolve counts its work as if it were the first: what it does must not depend
        on earlier ones."""
        self._charged = set()

    def end(self) -> None:
        """Nobody holds tables of the presolve that ends, so that what takes too much room may be
        forgotten."""
        if self._held_bytes > _MAX_KEPT_BYTES:
            self._canonical, self._held_bytes, self._ids, self._memo = {}, 0, set(), {}

    def intern(self, array: np.ndarray) -> np.ndarray:
        """The one array equal to this one."""
        if id(array) in self._ids or (
            array.nbytes > _SMALL_BYTES and self._held_bytes > _MAX_HELD_BYTES
        ):
            return array
        array = np.ascontiguousarray(array)
        key = (array.shape, array.dtype.char, blake2b(array.data, digest_size=16).digest())
        canonical = self._canonical.setdefault(key, array)
        if canonical is array:
            self._held_bytes += array.nbytes
        self._ids.add(id(canonical))
        return canonical

    def transpose(self, table: np.ndarray) -> np.ndarray:
        known = self._memo.get(("transpose", id(table)))
        if known is not None:
            return known  # type: ignore[return-value]
        turned = self.intern(np.ascontiguousarray(table.T))
        if self._ids.issuperset((id(table), id(turned))):
            # Who has the one asks for the other next.
            self._memo["transpose", id(table)] = turned
            self._memo["transpose", id(turned)] = table
        return turned

    def take_rows(self, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._remember("take_rows", (table, rows), lambda: self.intern(table[rows]))

    def add(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return self._remember("add", (first, second), lambda: self.intern(first + second))

    def analyse(self, table: np.ndarray) -> Analysis:
        return self._remember("analyse", (table,), lambda: _analyse(table))

    def regret(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Entry `[row[s2], row[s]]` is the most that s2 instead of s can add on this edge; see
        `_regret`. Equal rows of the table (strategies with one sharding of the value) have one row
        number: `[d, d]` and `row[k]`."""
        return self._remember("regret", (table,), lambda: self._regret(table))

    def charge(self, tables: Iterable[np.ndarray]) -> None:
        """Count what `regret` takes for these as done."""
        self._charged.update(id(table) for table in tables if id(table) in self._ids)

    def regret_work(self, table: np.ndarray) -> int:
        """What `regret` takes, in entries: nothing if this presolve has been charged for it."""
        if id(table) in self._charged:
            return 0
        core, _ = self._core(table)
        return int(core.size * len(core))

    def _core(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows and columns, and the distinct row that each row is."""
        return self._remember("core", (table,), lambda: self._cut(table))

    def _cut(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The neighbour asks for the same with the table turned.
        rows, row = self._rows(table)
        columns, _ = self._rows(self.transpose(table))
        return table.take(columns, axis=1).take(rows, axis=0), row

    def _rows(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._remember("rows", (table,), lambda: distinct_rows(table))

    def _regret(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        core, row = self._core(table)
        return _regret(core), row

    def dominators(
        self, cost: np.ndarray, tables: Sequence[np.ndarray], compute: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """`compute()`, once for each cost and tables."""
        return self._remember("dominators", (self.intern(cost), *tables), compute)

    def min_plus(
        self, left: np.ndarray, middle: np.ndarray, right: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Minimum and argmin over s of `left[p, s] + middle[s] + right[s, q]`: two arrays `[p,
        q]`."""
        middle = self.intern(middle)
        return self._remember(
            "min_plus", (left, middle, right), lambda: self._min_plus(left, middle, right)
        )

    def _min_plus(
        self, left: np.ndarray, middle: np.ndarray, right: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # The minimised axis is last: numpy reduces contiguous rows several times faster.
        total = (left + middle)[:, None, :] + np.ascontiguousarray(right.T)[None, :, :]
        # Kept as long as the table, and no node has billions of strategies.
        return self.intern(total.min(axis=2)), total.argmin(axis=2).astype(np.int32)

    def _remember(
        self, operation: str, arrays: tuple[np.ndarray, ...], compute: Callable[[], _T]
    ) -> _T:
        key = (operation, *map(id, arrays))
        known = self._memo.get(key)
        if known is not None:
            return known  # type: ignore[return-value]
        value = compute()
        if self._ids.issuperset(key[1:]):
            self._memo[key] = value
        return value


def _analyse(table: np.ndarray) -> Analysis:
    if table.max() < np.inf:
        row_part, column_part = table[:, 0], table[0] - table[0, 0]
        error = np.abs(table - row_part[:, None] - column_part).max()
        if error <= _SEPARABLE_TOLERANCE * np.abs(table).max():
            return Analysis(row_part=row_part, column_part=column_part)
        return Analysis()
    finite = table < np.inf
    in_row, in_column = finite.sum(axis=1), finite.sum(axis=0)
    if not in_row.all() or not in_column.all():
        return Analysis(dead_rows=in_row == 0, dead_columns=in_column == 0)
    return Analysis(
        column_of_row=finite.argmax(axis=1) if in_row.max() == 1 else None,
        row_of_column=finite.argmax(axis=0) if in_column.max() == 1 else None,
    )


def _regret(table: np.ndarray) -> np.ndarray:
    """max over t of table[s2, t] - table[s, t], where t counts only if (s, t) is allowed; +inf if
    (s2, t) is not."""
    possible = table < np.inf
    taken = np.where(possible, table, -np.inf)
    # The axis that goes is first: numpy takes maxima of whole rows many times faster.
    mine, others = np.ascontiguousarray(taken.T), np.ascontiguousarray(table.T)
    rows = max(_MAX_AT_ONCE // table.size, 1)
    most = np.concatenate(
        [
            (mine[:, begin : begin + rows, None] - others[:, None, :]).max(axis=0)
            for begin in range(0, len(table), rows)
        ]
    )
    if not possible.all():
        counts = possible.astype(np.float32)
        most[(1 - counts) @ counts.T > 0] = np.inf
    return most

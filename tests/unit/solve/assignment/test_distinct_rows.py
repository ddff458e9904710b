"""Equal rows of tables, and what tables say of pairs of rows."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.solve.assignment.distinct_rows import distinct_rows
from shardopt.solve.assignment.problem import Edge, Problem
from shardopt.solve.assignment.sharing.table_classes import table_classes
from shardopt.solve.assignment.table_store import TableStore


def random_table(seed: int, rows: int = 12, columns: int = 9) -> np.ndarray:
    """With equal rows and columns, and forbidden pairs."""
    rng = np.random.default_rng(seed)
    core = rng.integers(0, 3, (5, 4)).astype(float)
    core[rng.random(core.shape) < 0.2] = np.inf
    return core[np.ix_(rng.integers(0, 5, rows), rng.integers(0, 4, columns))]


@pytest.mark.parametrize("seed", range(8))
def test_the_first_of_equal_rows_stands_for_them(seed: int) -> None:
    table = random_table(seed)
    first, group = distinct_rows(table)
    assert first.tolist() == sorted(first.tolist())
    rows = [tuple(row) for row in table.tolist()]
    assert first.tolist() == [rows.index(row) for row in dict.fromkeys(rows)]
    np.testing.assert_array_equal(table[first][group], table)


@pytest.mark.parametrize("seed", range(8))
def test_classes_stand_in_order_and_make_up_the_table(seed: int) -> None:
    table = random_table(seed)
    core, row, column = table_classes(table)
    np.testing.assert_array_equal(core[np.ix_(row, column)], table)
    assert core.shape == (len(np.unique(table, axis=0)), len(np.unique(table.T, axis=0)))
    for numbers in (row, column):
        assert list(dict.fromkeys(numbers.tolist())) == list(range(numbers.max() + 1))


@pytest.mark.parametrize(("seed", "rows"), [*((seed, 12) for seed in range(6)), (0, 200)])
def test_the_regret_of_a_row_is_the_most_that_it_adds(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.random((rows, 40))  # of 200 rows, more than are taken at once
    table[rng.random(table.shape) < 0.02] = np.inf
    store = TableStore()
    most, row = store.regret(store.intern(table))
    for new in range(0, rows, 1 + rows // 12):
        for old in range(0, rows, 1 + rows // 12):
            possible = table[old] < np.inf
            expected = (table[new, possible] - table[old, possible]).max(initial=-np.inf)
            assert most[row[new], row[old]] == expected


@pytest.mark.parametrize("size", [2, 300])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_wrong_entries_are_found_in_tables_of_any_size(size: int, wrong: float) -> None:
    table = np.full((size, size), np.inf)
    Problem((np.zeros(size),) * 2, (Edge(0, 1, table),))
    table[-1, -1] = wrong
    with pytest.raises(ValueError, match=r"edge \(0, 1\): costs must be finite or inf"):
        Problem((np.zeros(size),) * 2, (Edge(0, 1, np.zeros((size, size))), Edge(0, 1, table)))

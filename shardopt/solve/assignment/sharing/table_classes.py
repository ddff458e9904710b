"""Strategies that look alike over an edge, as one class."""

from __future__ import annotations

import numpy as np

from shardopt.solve.assignment.distinct_rows import distinct_rows


def table_classes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct rows and columns of a table, and which of them each row and column is."""
    rows, row = _sorted_rows(table)
    columns, column = _sorted_rows(rows.T)
    return np.ascontiguousarray(columns.T), row, column


def _sorted_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, group = distinct_rows(table)
    rows, row = np.unique(table[first], axis=0, return_inverse=True)
    return rows, row.reshape(-1)[group]

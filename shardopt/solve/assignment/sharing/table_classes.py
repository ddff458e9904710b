"""Strategies that look alike over an edge, as one class."""

from __future__ import annotations

import numpy as np

from shardopt.solve.assignment.distinct_rows import distinct_rows


def table_classes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct rows and columns of a table in order, and which of them each row and column
    is."""
    first, row = distinct_rows(table)
    columns = np.ascontiguousarray(table[first].T)
    first, column = distinct_rows(columns)
    return np.ascontiguousarray(columns[first].T), row, column

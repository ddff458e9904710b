"""Strategies that look alike over an edge, as one class."""

from __future__ import annotations

import numpy as np


def table_classes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct rows and columns of a table, and which of them each row and column is."""
    rows, row = np.unique(table, axis=0, return_inverse=True)
    columns, column = np.unique(rows.T, axis=0, return_inverse=True)
    return np.ascontiguousarray(columns.T), row.reshape(-1), column.reshape(-1)

"""Equal rows of a table."""

from __future__ import annotations

import numpy as np


def distinct_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each group of rows that are equal bit by bit, in order, and the group of each
    row: int64 `[groups]` and `[rows]`.

    A dict of bytes: `numpy.unique` sorts rows, which takes ten times as long."""
    data, first = table.tobytes(), dict[bytes, int]()
    width = table.shape[1] * table.itemsize
    lines = [data[start : start + width] for start in range(0, len(data), width)]
    for number, line in enumerate(lines):
        first.setdefault(line, number)
    group = {line: number for number, line in enumerate(first)}
    return np.array(list(first.values())), np.array([group[line] for line in lines])

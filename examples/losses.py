"""Losses of a plan beside those of plain JAX, as all examples print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

TOLERANCE = 1e-4
Scalar: TypeAlias = "float | jax.Array | np.ndarray"


def compare(
    console: Console,
    title: str,
    plain: Sequence[Scalar],
    planned: Sequence[Scalar],
) -> bool:
    """Print the losses of every step, and tell whether all are within `TOLERANCE`, relative, of
    plain JAX."""
    table = Table("step", "plain JAX", "shardopt", "difference", title=f"loss: {title}")
    differences = []
    for step, (expected, loss) in enumerate(zip(plain, planned, strict=True)):
        differences.append(abs(float(loss) - float(expected)) / abs(float(expected)))
        numbers = (f"{float(expected):.6f}", f"{float(loss):.6f}", f"{differences[-1]:.1e}")
        table.add_row(str(step), *numbers)
    console.print(table)
    return all(difference <= TOLERANCE for difference in differences)  # not if one is NaN

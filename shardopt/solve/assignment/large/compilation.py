"""Loading and compiling the kernels for large problems within a time limit.

numba caches compiled code beside the source (or in the user's cache folder), so only the first call
on a machine takes seconds. Compilation cannot be interrupted; it runs in a thread, so that a
deadline can pass without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Thread
from time import monotonic

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage


def compiled_by(deadline: float | None, use_kernels: Callable[[], None] | None = None) -> bool:
    """Whether the kernels that `use_kernels` calls (by default, those for large problems) are
    ready; waits for them until `deadline` (seconds of `monotonic`), or for ever if None."""
    if deadline is not None and monotonic() >= deadline:
        return False
    thread = _compiler(use_kernels or _use_all_kernels)
    thread.join(None if deadline is None else max(deadline - monotonic(), 0.0))
    return not thread.is_alive()


@cache
def _compiler(use_kernels: Callable[[], None]) -> Thread:
    thread = Thread(target=use_kernels, daemon=True)
    thread.start()
    return thread


def _use_all_kernels() -> None:
    """Solve a triangle with tight memory: it calls every kernel."""
    from shardopt.solve.assignment.large.large_problem import solve_large

    table = np.array([[0.0, 2.0], [3.0, 0.0]])
    edges = (Edge(0, 1, table), Edge(1, 2, table), Edge(0, 2, table.T[::-1]))
    usage = (Usage(0, 1, np.array([2, 1])),)
    solve_large(Problem((np.array([0.0, 1.0]),) * 3, edges, (usage,) * 3, 4, 1), work=3_000_000)

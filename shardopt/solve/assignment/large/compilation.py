"""Loading and compiling the kernels for large problems within a time limit.

numba caches compiled code beside the source (or in the user's cache folder), so only the first call
on a machine takes seconds. Compilation cannot be interrupted; it runs in a thread, so that a
deadline can pass without waiting for it."""

from __future__ import annotations

from functools import cache
from threading import Thread
from time import monotonic

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage
from shardopt.solve.assignment.sharing.shared_edges import Arcs, SharedEdges, Sharing


def compiled_by(deadline: float | None) -> bool:
    """Whether the kernels are ready; waits for them until `deadline` (seconds of `monotonic`), or
    for ever if None."""
    if deadline is not None and monotonic() >= deadline:
        return False
    thread = _compiler()
    thread.join(None if deadline is None else max(deadline - monotonic(), 0.0))
    return not thread.is_alive()


@cache
def _compiler() -> Thread:
    thread = Thread(target=_use_all_kernels, daemon=True)
    thread.start()
    return thread


def _use_all_kernels() -> None:
    """Solve a triangle with tight memory, and share a step among two readers: that calls every
    kernel."""
    from shardopt.solve.assignment.large.large_problem import solve_large
    from shardopt.solve.assignment.sharing.share_ascent import ShareAscent

    table = np.array([[0.0, 2.0], [3.0, 0.0]])
    edges = (Edge(0, 1, table), Edge(1, 2, table), Edge(0, 2, table.T[::-1]))
    usage = (Usage(0, 1, np.array([2, 1])),)
    solve_large(Problem((np.array([0.0, 1.0]),) * 3, edges, (usage,) * 3, 4, 1), work=3_000_000)
    ascent = ShareAscent(sharing := _two_readers(), sharing.equal_shares(), 4.0)
    ascent.run(2, 0.0, None)
    ascent.decide()


def _two_readers() -> Sharing:
    """Both need the same step where they take the second strategy and their value the first."""
    each, path = np.arange(2), np.array([[[1], [0]], [[1], [1]]])
    missing = np.zeros((2, 2), dtype=bool)
    arcs = Arcs(np.array([2.0]), (path,) * 2, (missing,) * 2, (each,) * 2, (each,) * 2)
    costs = np.array([0.0, 3.0]), np.array([3.0, 0.0]), np.array([1.0, 0.0])
    edges = tuple(map(Edge, (0, 0), (1, 2), arcs.tables(arcs.usable.astype(float))))
    return Sharing(Problem(costs, edges), (SharedEdges(arcs, (0, 0), (1, 2), (0, 1)),))

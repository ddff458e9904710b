"""Loading and compiling the kernels for large problems within a time limit.

numba caches compiled code beside the source (or in the user's cache folder), so only the first call
on a machine takes seconds, 20 of them for all kernels. Compilation cannot be interrupted; it runs
in a thread, so that a deadline can pass without waiting for it. Who knows early that kernels will
be needed has another process compile them (`compile_elsewhere`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage

# Where numba asks for BLAS, and by what.
_BLAS, _ASK = "numba.np.linalg", "ensure_blas"
_one_at_a_time = Lock()


def compiled_by(deadline: float | None, use_kernels: Callable[[], None] | None = None) -> bool:
    """Whether the kernels that `use_kernels` calls (by default, those for large problems) are
    ready; waits for them until `deadline` (seconds of `monotonic`), or for ever if None."""
    if deadline is not None and monotonic() >= deadline:
        return False
    thread = _compiler(use_kernels or use_kernels_for_large)
    thread.join(None if deadline is None else max(deadline - monotonic(), 0.0))
    return not thread.is_alive()


@cache
def _compiler(use_kernels: Callable[[], None]) -> Thread:
    def work() -> None:
        _wait_for_other()
        with _blas_unasked():
            use_kernels()

    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


@contextmanager
def _blas_unasked() -> Iterator[None]:
    """With its first kernel numba asks whether SciPy's linear algebra is there, by importing it:
    half of the time that loading all kernels takes. It asks again when it compiles what calls that,
    as none of our kernels does."""
    if find_spec("scipy") is None or not hasattr(linalg := import_module(_BLAS), _ASK):
        yield
        return
    with _one_at_a_time:
        ask = getattr(linalg, _ASK)
        setattr(linalg, _ASK, lambda: None)
        try:
            yield
        finally:
            setattr(linalg, _ASK, ask)


_other: subprocess.Popen | None = None


def compile_elsewhere(code: str) -> None:
    """Run Python code that calls kernels, and so compiles them for this process as well, in another
    process, while this one goes on; nothing where kernels were compiled before, or are not kept
    beside the source."""
    global _other
    if _other is None and _keeps_none_yet(Path(__file__).parent):
        _other = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


def _wait_for_other() -> None:
    """Before kernels are called: what another process is about to compile need not be compiled
    here. If it fails, it is."""
    if _other is not None:
        _other.wait()


def _keeps_none_yet(folder: Path) -> bool:
    """Whether numba will keep what it compiles in this folder, and has kept nothing so far."""
    elsewhere = "NUMBA_CACHE_DIR" in os.environ or not os.access(folder, os.W_OK)
    return not elsewhere and next(folder.glob("__pycache__/*.nbi"), None) is None


def use_kernels_for_large() -> None:
    """Solve a triangle with tight memory: it calls every kernel."""
    from shardopt.solve.assignment.large.large_problem import solve_large

    table = np.array([[0.0, 2.0], [3.0, 0.0]])
    edges = (Edge(0, 1, table), Edge(1, 2, table), Edge(0, 2, table.T[::-1]))
    usage = (Usage(0, 1, np.array([2, 1])),)
    solve_large(Problem((np.array([0.0, 1.0]),) * 3, edges, (usage,) * 3, 4, 1), work=3_000_000)

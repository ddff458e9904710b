"""Kernels that another process compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from shardopt.passes.kernels import use_all
from shardopt.solve.assignment.large import compilation


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process compiles, and numba keeps what it compiles beside the source."""
    monkeypatch.setattr(compilation, "_other", None)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


@pytest.mark.usefixtures("nobody")
def test_what_was_compiled_before_is_not_compiled_again(tmp_path: Path) -> None:
    assert compilation._keeps_none_yet(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "kernels.sweep-1.py311.nbi").touch()
    assert not compilation._keeps_none_yet(tmp_path)


@pytest.mark.usefixtures("nobody")
def test_what_is_kept_elsewhere_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not compilation._keeps_none_yet(tmp_path)


@pytest.mark.usefixtures("nobody")
def test_kernels_are_called_when_the_other_process_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, seen = tmp_path / "done", list[bool]()
    monkeypatch.setattr(compilation, "_keeps_none_yet", lambda folder: True)
    compilation.compile_elsewhere(f"import time; time.sleep(0.3); open({str(done)!r}, 'w')")
    assert compilation.compiled_by(None, lambda: seen.append(done.exists()))
    assert seen == [True]


@pytest.mark.slow
def test_every_kernel_is_compiled(tmp_path: Path) -> None:
    """Numba keeps an index for each function that it has compiled."""
    code = f"from {use_all.__module__} import use_all; use_all()"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    compiled = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")}
    root = Path(compilation.__file__).parents[3]
    declared = {
        f"{path.stem}.{line.removeprefix('def ').partition('(')[0]}"
        for path in root.rglob("*.py")
        for before, line in pairwise(path.read_text().splitlines())
        if before.startswith("@njit(**CALLED")
    }
    assert compiled == declared


def test_linear_algebra_is_loaded_by_who_calls_it() -> None:
    code = """
import sys
from shardopt.solve.assignment.large.compilation import compiled_by
assert compiled_by(None)
assert "scipy.linalg" not in sys.modules
import numba, numpy
product = numba.njit(lambda a, b: a @ b)
assert (product(2 * numpy.eye(2), numpy.ones((2, 2))) == 2).all()
assert "scipy.linalg" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)

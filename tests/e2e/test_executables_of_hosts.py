"""Executables of a mesh over several processes: each finds its own again, and they still speak to
each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardopt.runtime.driver import open_run
from tests.e2e.exported_model import example, inputs


def test_hosts_find_their_executables_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDOPT_CACHE", str(tmp_path))
    results: list[list[np.ndarray]] = []
    entries: list[dict[Path, int]] = []
    for _ in range(2):
        with open_run(example(), "process", devices_per_host=1, quick_compile=True) as run:
            run.load(inputs())
            results.append(list(run.step()))
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        entries.append({path: path.stat().st_ino for path in files})
    assert len(entries[0]) == 2 * len({f.name for part in example().meshes for f in part.functions})
    assert entries[0] == entries[1], "nothing was written again"
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)

"""Runs the lit suite as one test, so that `pytest` alone runs everything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent


@pytest.mark.skipif(
    not shutil.which("FileCheck", path=str(TOOLS)),
    reason="FileCheck has no wheel for this platform",
)
def test_lit_suite(tmp_path: Path, warm_socket: str) -> None:
    """Every test under tests/lit passes; lit's own output, with the failing commands, is shown
    otherwise."""
    report = tmp_path / "lit.json"
    run = subprocess.run(
        [str(TOOLS / "lit"), "-sv", "-j2", f"--output={report}", str(ROOT / "tests" / "lit")],
        env={
            **os.environ,
            "SHARDOPT_LIT_OUTPUT": str(tmp_path / "lit"),
            "SHARDOPT_LIT_SOCKET": warm_socket,
        },
        capture_output=True,
        text=True,
    )
    print(run.stdout, run.stderr, sep="\n")
    assert report.exists(), "lit did not run"
    tests = json.loads(report.read_text())["tests"]
    failed = [
        test["name"] for test in tests if test["code"] not in ("PASS", "XFAIL", "UNSUPPORTED")
    ]
    assert not failed, f"{len(failed)} of {len(tests)} lit tests failed: {', '.join(failed)}"
    assert tests and run.returncode == 0

"""`shardopt size` as a user runs it: the table, JSON, the plan that is written, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardopt.frontend.plans.plan import Plan
from shardopt.tools.shardopt import main

MODEL = str(Path(__file__).parents[1] / "frontend/planning/two_products.mlir")


def size(*arguments: str) -> int:
    return main(["size", MODEL, "--no-cache", "--cluster", "cpu-test:1x4", *arguments])


def test_the_best_plan_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "plan"
    assert size("--objective", "step", "--json", "-o", str(folder)) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["cluster"] for row in rows] == [f"cpu-test:1x{count}" for count in (1, 2, 4)]
    best = min(rows, key=lambda row: float(row["step_seconds"]))
    assert [row["best"] for row in rows] == [row is best for row in rows]
    assert Plan.load(folder).summary.step_seconds == best["step_seconds"]


def test_a_limit_that_nothing_keeps_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size("--step-seconds", "1e-9", "-o", str(tmp_path / "plan")) == 1
    said = capsys.readouterr()
    assert "cpu-test:1x4" in said.out and "predicted to take a step in 1e-09 s" in said.err
    assert not (tmp_path / "plan").exists()


def test_a_plan_file_has_a_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.plan.json"
    file.write_text('{"version": 1, "options": {"cluster": "cpu-test:1x2"}}')
    assert size("--plan", str(file)) == 1
    assert "plan" in capsys.readouterr().err


def test_most_of_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert size("--objective", "batch") == 0
    out = capsys.readouterr().out
    assert "rows at a time" in out
    [row] = [line for line in out.splitlines() if "→" in line]
    assert "│       4 │              6 │" in row

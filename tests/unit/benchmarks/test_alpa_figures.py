"""What the commands of single figures keep, count and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.alpa import case_study, figure8
from benchmarks.alpa.kept import Result, fill
from benchmarks.alpa.pages import write_part
from shardopt.support.errors import UserError


def test_cells_that_were_run_are_kept(tmp_path: Path) -> None:
    file, ran = tmp_path / "cells.jsonl", []

    def run(cell: str) -> Result:
        ran.append(cell)
        if cell == "b":
            raise UserError("model.py:3:1: error: too large\nnote: by a lot")
        return {"step_seconds": 1.0}

    first = fill(file, ["a", "b"], run)
    assert first["b"]["reason"] == "too large"
    assert fill(file, ["a", "b", "c"], run)["a"]["step_seconds"] == 1.0
    assert ran == ["a", "b", "c"]


def test_a_part_of_a_page_is_written_in_its_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- part -->\nold\n<!-- end of part -->\nbehind\n")
    for _ in range(2):
        write_part("part", "new", page)
    assert page.read_text() == "before\n<!-- part -->\nnew\n<!-- end of part -->\nbehind\n"
    with pytest.raises(ValueError, match="expected '<!-- other -->'"):
        write_part("other", "new", page)


def test_figure_8_has_sixty_cells_with_the_best_of_several_shapes() -> None:
    rows = figure8.published()
    assert len(rows) == 3 * 4 * 5
    assert rows["gpt-4-auto_sharding"].step_s == 0.43313  # of three shapes
    assert sum(row.step_s is None for row in rows.values()) == 11


def test_what_fits_is_counted_apart_from_errors() -> None:
    rows = figure8.published()
    half = rows["gpt-2-zero_2"]
    assert half.step_s is not None and half.mem_GiB is not None
    results: dict[str, Result] = {
        "gpt-2-data_parallel": {"fits": False, "reason": "too large"},
        "gpt-2-zero_3": {"fits": False, "reason": "too large"},
        "gpt-2-zero_2": {
            "fits": True,
            "step_seconds": 1.1 * half.step_s,
            "memory_bytes": 0.8 * half.mem_GiB * 2**30,
        },
    }
    [line] = [line for line in figure8.report(rows, results).splitlines() if line[:7] == "| all |"]
    assert line == "| all | 3 of 60 | 2 of 3 | 10.0%, 10.0%, +10.0% | 20.0%, 20.0%, -20.0% |"
    assert "OOM (OOM)" in figure8.report(rows, results)
    assert figure8.picture(rows, results).count("<svg") == 1


def test_splits_are_counted_by_stage() -> None:
    convolutions = [{"weight": "w", "parts": parts} for parts in ([4, 1, 1], [4, 1, 1], [1, 1, 1])]
    result: Result = {"stages": [{"mesh": "m0[x=4]", "convolutions": convolutions}]}
    lines = case_study.table({"wresnet-1b": result}).splitlines()
    assert lines[2] == "| wresnet-1b | 4 | 0 | [x=4] | batch 4 | 2 |"
    assert lines[3] == "| wresnet-1b | 4 | 0 | [x=4] | whole on every device | 1 |"
    drawn = case_study.picture({"wresnet-1b": result})
    assert drawn.count("<rect") == 9 and drawn.count(">4</text>") == 2
    assert ">stage 0: 4 GPUs</text>" in drawn

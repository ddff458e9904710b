"""`shardopt compare-measured` on a small table: figures, groups and reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardopt.tools.shardopt import main

HEADER = "id,group,arch,hardware,precision,devices,layers,hidden,heads,vocab,seq,dp,tp,pp,recompute"
ROWS = """
small-1,small,gpt,A100,bf16,2,2,256,4,512,64,2,1,1,none,4,8,0.01
small-2,small,gpt,A100,bf16,2,2,256,4,512,64,1,2,1,none,8,8,0.01
int8,other,gpt,A100,int8,2,2,256,4,512,64,2,1,1,none,4,8,0.01
"""


def _table(folder: Path) -> str:
    file = folder / "steps.csv"
    file.write_text(f"{HEADER},mbs,gbs,step_s{ROWS}")
    return str(file)


@pytest.mark.slow
def test_json_has_every_row(tmp_path: Path, capsys: Any) -> None:
    assert main(["compare-measured", _table(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, second, third = document["rows"]
    assert first["step_seconds"] > 0 and first["memory_bytes"] > 0
    assert second["step_seconds"] > 0 and first["measured_step_seconds"] == 0.01
    assert third["reason"] == "products in int8 are not built" and third["step_seconds"] is None
    (steps,) = document["steps"]
    assert (steps["group"], steps["rows"]) == ("small", 2) and document["memory"] == []


def test_groups_and_reasons_are_printed(tmp_path: Path, capsys: Any) -> None:
    table = _table(tmp_path)
    assert main(["compare-measured", table, "--group", "other"]) == 0
    out = capsys.readouterr().out
    assert "products in int8 are not built" in out and "median error" not in out
    assert main(["compare-measured", table, "--group", "no-such"]) == 1
    assert "expected one of other, small" in capsys.readouterr().err

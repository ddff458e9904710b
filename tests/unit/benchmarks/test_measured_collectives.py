"""Collectives of a table, predicted by the preset that a machine's name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cost.measured_collectives import errors, main

# The first is of stas00/ml-engineering, network/README.md; the others have no preset, or no size.
TABLE = """hardware,nodes,gpus,collective,bytes,time_us,busbw_GBps
A100-SXM4 NVLink3,1,8,all_reduce,8589934592,64074.0,234.61
A100-SXM4 NVLink3,1,8,all_reduce,8589934592,,234.61
abacus,1,8,all_reduce,1024,1.0,
A100,1,8,all_reduce,0,,154.2
"""


def test_seconds_and_rates_of_the_bus_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "collectives.csv"
    file.write_text(TABLE)
    (first, by_seconds), (second, by_rate) = errors(file)
    assert first == second == ("A100-SXM4 NVLink3", 8, "64 MB and more")
    assert by_seconds == pytest.approx(by_rate, abs=1e-4) and abs(by_seconds) < 0.05
    assert main([str(file)]) == 0

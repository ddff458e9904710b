"""Predictions for published steps, one or two a framework, stay what the page of evidence was
written with: whoever moves one says so in `predicted_s` of the table, and on the page."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardopt.measured.case import case_of
from shardopt.measured.figures import measured_seconds
from shardopt.measured.predict import prediction
from shardopt.measured.rows import Row, read_rows

TABLE = Path(__file__).parents[2] / "benchmarks" / "cost" / "published_steps.csv"
QUICK = {"torchtitan-t3-eager"}
# The page has none of these groups further from what was measured.
FARTHEST = 0.2


def _cases() -> Iterator[Any]:
    with TABLE.open(newline="") as file:
        accepted = [float(cells["predicted_s"]) for cells in csv.DictReader(file)]
    for row, seconds in zip(read_rows(TABLE), accepted, strict=True):
        marks = () if row.id in QUICK else pytest.mark.slow
        yield pytest.param(row, seconds, id=row.id, marks=marks)


@pytest.mark.parametrize(("row", "accepted"), list(_cases()))
def test_a_prediction_moves_only_where_the_table_says_so(row: Row, accepted: float) -> None:
    seconds, measured = prediction(case_of(row)).step_seconds, measured_seconds(row)
    assert measured is not None
    assert seconds == pytest.approx(accepted, rel=0.005), (
        f"{row.id}: predicted {seconds:.4g} s, {accepted:.4g} s before, {measured:.4g} s measured: "
        "if that is meant, write it into the table, and say on the page what moved it"
    )
    assert abs(seconds / measured - 1) < FARTHEST

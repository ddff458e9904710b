"""Stage phase and finished plan are one account."""

from __future__ import annotations

import pytest

from benchmarks.solve.stage_account import main


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "method"), [("1", "zero3"), ("2", "ilp")])
def test_the_stage_phase_counts_what_the_finished_plan_says(stages: str, method: str) -> None:
    """Seconds of every stage and the peak of a device within a hundredth."""
    assert main(["gpt-tiny", "--stages", stages, "--methods", method]) == 0

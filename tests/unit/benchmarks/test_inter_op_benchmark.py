"""What `benchmarks.solve.inter_op` makes of the figures of planners."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from benchmarks.solve.inter_op import shorter, stages, table


def planned(seconds: float) -> dict[str, Any]:
    return {
        "step_seconds": seconds,
        "stages": [{"layers": 2, "shape": (1, 2)}, {"layers": 2, "shape": (1, 2)}],
    }


def test_planners_are_compared_with_the_stage_dp() -> None:
    rows = {
        "dp": planned(2.0),
        "piper": planned(3.0),
        "mcmc": planned(1.99),
        "megatron": {"error": "too large"},
    }
    assert shorter(rows) == ()
    assert shorter({**rows, "pp-dp": planned(1.9)}) == ("pp-dp",)
    assert shorter({**rows, "dp": {"error": "too large"}}) == ("piper", "mcmc"), (
        "the stage DP has a plan if one has"
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(
            table({"gpt": rows, "moe": {**rows, "dp": {"crash": "ended by SIGKILL"}}}, tuple(rows))
        )
    drawn = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in captured.get().splitlines()
        if "│" in line
    ]
    assert drawn == [["gpt", "2 s", "1.500", "0.995", "–"], ["moe", "crash", "3 s", "1.99 s", "–"]]


def test_equal_neighbours_are_told_together() -> None:
    row = planned(1.0)
    assert stages(row) == "2× 2 layers on 1x2"
    assert (
        stages({"stages": [*row["stages"], {"layers": 1, "shape": (2, 4)}]})
        == "2× 2 layers on 1x2, 1 layers on 2x4"
    )

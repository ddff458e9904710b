"""Short runs of the fuzzers on every change; `python -m benchmarks.tools.fuzz_opt` and
`fuzz_phases` are the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tools import fuzz_phases
from benchmarks.tools.fuzz_opt import PIPELINE, main, make_inputs


def test_inputs_are_the_same_for_the_same_seed() -> None:
    first, second = (list(make_inputs(60, seed=3)) for _ in range(2))
    assert first == second
    assert {item.kind for item in first} == {"text", "bytecode", "portable", PIPELINE}
    assert first != list(make_inputs(60, seed=4))


@pytest.mark.slow
def test_mutated_inputs_run_or_are_refused(tmp_path: Path) -> None:
    assert main(["--inputs", "300", "--seed", "11", "--keep", str(tmp_path)]) == 0, sorted(
        tmp_path.iterdir()
    )


@pytest.mark.slow
def test_mutated_dumps_compute_the_same_or_are_refused(tmp_path: Path) -> None:
    assert fuzz_phases.main(["--inputs", "10", "--seed", "11", "--keep", str(tmp_path)]) == 0, (
        sorted(tmp_path.iterdir())
    )

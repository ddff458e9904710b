"""A few programs of the table (`benchmarks.programs`), of different kinds and libraries: in two
stages with microbatches they are equal to the library's own jit, or refused with what to do."""

from __future__ import annotations

import re

import pytest

from benchmarks.programs.one import outcome, run
from benchmarks.programs.program import LIBRARIES, Program

SETTING = "2xB"
QUICK = {
    "plain_steps": ("static arguments",),
    "plain_loops": ("cond on a counter",),
    "plain_arrays": ("LoRA beside the product",),
    "nnx_steps": ("Dropout with rngs",),
}
SLOW = {
    "plain_steps": ("typed keys in the state, dropout",),
    "plain_loops": (
        "scan over layers, rolled",
        "accumulation by scan",
        "gradient of a scan over parts",
    ),
    "plain_arrays": ("images, convolutions NHWC", "decoding step with caches"),
    "optax_steps": ("clip_by_global_norm",),
    "equinox_steps": ("filter_value_and_grad",),
}
REFUSED = {
    ("plain_arrays", "contrastive loss"): r"pairs every row .* compare rows of groups",
    ("plain_loops", "cond on activations"): r"plain_loops\.py:\d+.*batch_coupling='per-microbatch'",
}


def program(module: str, feature: str) -> Program:
    library = next(each for each in LIBRARIES if each.module == module)
    if not library.is_installed():
        pytest.skip(f"needs {', '.join(library.needs)}")
    return next(each for each in library.programs() if each.feature == feature)


@pytest.mark.parametrize(
    ("module", "feature"),
    [
        pytest.param(module, feature, marks=marks)
        for programs, marks in ((QUICK, ()), (SLOW, pytest.mark.slow))
        for module, features in programs.items()
        for feature in features
    ],
)
def test_a_program_is_equal_to_its_own_jit(module: str, feature: str) -> None:
    chosen = program(module, feature)
    trial = chosen.make()
    found = outcome(chosen, SETTING, run(trial, trial.jit(trial.step, **trial.options)))
    assert (found.kind, found.message) == ("works", "")
    assert found.difference <= trial.tolerance


@pytest.mark.parametrize(("module", "feature"), REFUSED)
def test_a_program_is_refused_with_advice(module: str, feature: str) -> None:
    found = outcome(program(module, feature), SETTING, [])
    assert found.kind == "refused"
    assert re.search(REFUSED[module, feature], found.message)

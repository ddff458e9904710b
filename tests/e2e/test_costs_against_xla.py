"""FLOPs and bytes of whole steps, against what XLA's cost analysis says of the compiled module.

Of single operations see tests/unit/operations/test_op_flops.py; of modules of public libraries
docs/reference/costs.md."""

from __future__ import annotations

from functools import cache
from math import log

import pytest

from benchmarks.cost.op_costs import measure
from tests.e2e.models import convolution, gpt, mixture, mlp, transformer_layer

MODELS = {
    "convolution": convolution,
    "gpt": gpt,
    "mixture": mixture,
    "mlp": mlp,
    "transformer": transformer_layer,
}
each_model = pytest.mark.parametrize(
    "name",
    [
        "convolution",
        "mlp",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt", "mixture", "transformer")),
    ],
)


@cache
def ratios(name: str) -> dict[str, float]:
    """Ours divided by XLA's."""
    return {
        key: value
        for key, value in measure(MODELS[name]()[0], 0).items()
        if isinstance(value, float)
    }


@each_model
def test_flops_of_a_step(name: str) -> None:
    """Before XLA optimizes, but for what it simplifies while it reads a module, and after."""
    ratio = ratios(name)
    assert 1 <= ratio["flops"] <= 1.05
    assert ratio["transcendentals"] == pytest.approx(1, abs=0.01)
    assert 0.85 <= ratio["compiled_flops"] <= 1.1


@each_model
def test_bytes_of_a_step_are_those_of_its_kernels(name: str) -> None:
    ratio = ratios(name)
    # The least is that of convolutions, 0.593: what reads one value often reads it once.
    assert 0.58 <= ratio["bytes"] <= 1.35
    assert abs(log(ratio["bytes"])) <= abs(log(ratio["bytes_alone"])) + 0.01, (
        "no worse than without fusion"
    )

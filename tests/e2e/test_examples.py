"""The examples as a reader runs them: each in a process of its own, which compares its losses with
those of plain JAX and says so with its exit code."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples.losses import compare

ROOT = Path(__file__).parents[2]

NEEDS = {
    "nnx_transformer": ("flax",),
    "equinox_mlp": ("equinox",),
    "hf_flax": ("flax", "transformers", "transformers.modeling_flax_utils"),  # not in version 5
    "finetune": (),
    "moe": (),
}
SMALLER = dict.fromkeys(("nnx_transformer", "hf_flax"), ("--layers", "2", "--hidden", "16"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_like_plain_jax(name: str) -> None:
    for needs in NEEDS[name]:  # a package before what is inside of it
        if importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed")
    run = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *SMALLER.get(name, ())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "plain JAX" in run.stdout


@pytest.mark.parametrize(
    ("losses", "same"), [((2.0, 1.0), True), ((2.0, 1.001), False), ((2.0, float("nan")), False)]
)
def test_losses_that_differ_fail_an_example(losses: tuple[float, ...], same: bool) -> None:
    assert compare(Console(quiet=True), "training", (2.0, 1.0), losses) is same


@pytest.mark.parametrize("name", NEEDS)
def test_examples_use_public_names_only(name: str) -> None:
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert "\nimport shardopt\n" in source
    assert "from shardopt" not in source and "import shardopt." not in source

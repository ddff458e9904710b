"""Every command of the page of systems: it plans, and what it plans runs and gives the numbers of
one device."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.alpa.specs import TINY
from shardopt.models.build import bytecode
from shardopt.tools.shardopt import main
from tests.e2e.models import export_step, mixture

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "systems.md"
COMMANDS = re.findall(r"^\|[^|]*\| `shardopt ([^`]*)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)
_WITH_EXPERTS = re.compile(r"--intra-op expert|deepspeed")
_WITH_SEQUENCES = re.compile(r"--intra-op (sequence|summa-2d|2.5d|3d|ulysses|ring)|terapipe")


def momentum_step(layers: int = 4, width: int = 16) -> bytes:
    """A step of an MLP: it has optimizer state, and a layer for each device."""

    def loss_fn(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x * x)

    def step(weights: list[jax.Array], means: list[jax.Array], x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(weights, x)
        means = [0.9 * mean + grad for mean, grad in zip(means, grads, strict=True)]
        weights = [weight - 0.1 * mean for weight, mean in zip(weights, means, strict=True)]
        return weights, means, loss

    state = [jnp.ones((width, width)) / width] * layers
    return export_step(step, (state, state), (jnp.ones((2 * width, width)),))[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "mlp": momentum_step(),
        "block": bytecode(replace(TINY["gpt-tiny"], layers=1), "f32"),
        "experts": mixture()[0],
    }
    for name, model in made.items():
        (folder / name).write_bytes(model)
    return {name: str(folder / name) for name in made}


def model_of(command: str) -> str:
    """An MLP, but where the method asks for experts or for sequences."""
    if _WITH_EXPERTS.search(command):
        return "experts"
    return "block" if _WITH_SEQUENCES.search(command) else "mlp"


def test_the_page_has_its_tables() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(COMMANDS) == len([row for row in rows if "shardopt" in row])
    assert len(set(COMMANDS)) == len(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_system_plans_and_its_plan_runs(
    command: str, models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        models[model_of(command)] if word == "MODEL" else word for word in shlex.split(command)
    ]
    plan = str(tmp_path / "plan")
    writes = ["-o", plan] if words[0] in ("plan", "size") else []
    assert main([*words, *writes]) == 0, capsys.readouterr().err
    if writes:
        assert main(["run", plan, "--check", "--quick-compile"]) == 0, capsys.readouterr().out

"""A cluster with two groups of hosts: the faster one gets more layers, and the plan runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.hardware.cluster_file import describe, load_cluster
from shardopt.tools.shardopt import main
from tests.e2e.models import export_step

LAYERS, WIDTH, ROWS = 6, 64, 512


def deep_mlp(layers: int = LAYERS) -> bytes:
    """Equal layers, SGD."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(
        weights: list[jax.Array], x: jax.Array, y: jax.Array
    ) -> tuple[list[jax.Array], jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    keys = jax.random.split(jax.random.key(0), layers + 2)
    weights = [0.1 * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[:layers]]
    return export_step(
        step, (weights,), tuple(jax.random.normal(key, (ROWS, WIDTH)) for key in keys[layers:])
    )[0]


def two_groups(folder: Path, speeds: tuple[float, float], memory: tuple[int, int]) -> str:
    """Hosts of two devices like those of `cpu-test`, so many times as fast, with links that cost
    little."""
    base = describe(load_cluster("cpu-test:1x2"))
    groups = []
    for name, speed, size in zip(("first", "second"), speeds, memory, strict=True):
        rates = {dtype: speed * rate for dtype, rate in base["device"]["peak_flops"].items()}
        device = {
            **base["device"],
            "peak_flops": rates,
            "memory_bytes": size,
            "memory_bandwidth": speed * 10e9,
        }
        link = {"latency_seconds": 1e-6, "bandwidth_bytes_per_second": 1e11}
        groups.append(
            {**base, "name": name, "device": device, "intra_host": link, "inter_host": link}
        )
    path = folder / "groups.json"
    path.write_text(json.dumps({"name": "groups", "groups": groups}))
    return str(path)


def layers_of(cluster: str, **options: object) -> dict[int, int]:
    """How many layers the stages on the devices of each group have, by the group's first device."""
    plan = make_plan(
        deep_mlp(), PlanOptions(cluster, microbatches=4, layers=LAYERS, stages=2, **options)
    )  # type: ignore[arg-type]
    return {stage.devices[0]: len(stage.layers) for stage in plan.summary.stages}


BIG = 2**31


@pytest.mark.slow
def test_equal_groups_share_the_layers(tmp_path: Path) -> None:
    assert layers_of(two_groups(tmp_path, (1, 1), (BIG, BIG))) == {0: LAYERS // 2, 2: LAYERS // 2}


@pytest.mark.parametrize("speeds", [(1, 3), pytest.param((3, 1), marks=pytest.mark.slow)])
def test_the_faster_group_gets_more_layers(tmp_path: Path, speeds: tuple[float, float]) -> None:
    layers = layers_of(two_groups(tmp_path, speeds, (BIG, BIG)))
    slow, fast = (0, 2) if speeds[0] < speeds[1] else (2, 0)
    assert layers[fast] in (4, 5) and layers[slow] + layers[fast] == LAYERS


def test_the_group_with_more_memory_gets_more_layers(tmp_path: Path) -> None:
    """A layer needs about 300 KB on each of two devices: weights, accumulators and the activations
    in flight."""
    layers = layers_of(two_groups(tmp_path, (1, 1), (310_000, BIG)))
    assert 0 < layers[0] < LAYERS // 2 and layers[0] + layers[2] == LAYERS


def test_a_plan_over_two_groups_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mlp.bin").write_bytes(deep_mlp())
    plan, cluster = str(tmp_path / "plan"), two_groups(tmp_path, (1, 3), (BIG, BIG))
    options = ["--cluster", cluster, "--microbatches", "4", "--layers", "4", "--stages", "2"]
    assert main(["plan", str(tmp_path / "mlp.bin"), *options, "-o", plan]) == 0
    assert "groups:1x2+1x2" in capsys.readouterr().out
    assert main(["run", plan, "--check"]) == 0
    assert "check passed" in capsys.readouterr().out

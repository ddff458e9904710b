"""GSPMD's annotations and Shardy's constraints of one plan: XLA makes the same collectives of
both."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.cost.traffic import Traffic, comparable
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.mesh.mesh import parse_mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_text
from shardopt.xla_text.hlo import module_traffic
from tests.e2e.models import export_step, mlp

Model = tuple[bytes, list[np.ndarray]]


@cache
def attention() -> Model:
    """A training step of one transformer layer: attention with four heads, then two products."""

    def layer(params: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, params[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), axis=-1)
        x = x + jnp.einsum("bhst,bthk,hkd->bsd", weights, v, params["o"])
        return x + jax.nn.gelu(x @ params["up"]) @ params["down"]

    def step(params: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(layer(p, x) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    keys = iter(jax.random.split(jax.random.key(0), 8))
    shapes = dict.fromkeys("qkv", (32, 4, 8)) | {
        "o": (4, 8, 32),
        "up": (32, 128),
        "down": (128, 32),
    }
    params = {name: 0.1 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
    return export_step(step, (params,), (jax.random.normal(next(keys), (8, 16, 32)),))


@cache
def convolution() -> Model:
    """A training step of two convolutions."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for kernel in params:
            x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return jnp.mean(x**2)

    def step(params: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = [0.1 * jax.random.normal(jax.random.key(k), (16, 16, 3, 3)) for k in range(2)]
    return export_step(step, (params,), (jax.random.normal(jax.random.key(2), (8, 16, 8, 8)),))


def collectives(
    artifact: bytes, options: str, mesh: str, sharding_format: str
) -> tuple[Traffic, ...]:
    """Those of the compiled module, by kind and axes."""
    pipeline = (
        f"shardopt-intra{{cluster=cpu-test:1x4 mesh={mesh} "
        f"sharding-format={sharding_format} {options}}}"
    )
    with make_context() as context:
        module = load_module(artifact, context)
        run_pipeline(module, f"builtin.module({pipeline})")
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    shape = parse_mesh(mesh)
    text = compiled_text(buffer.getvalue(), shape.size, shardy=sharding_format == "sdy")
    return module_traffic(text, shape)


@pytest.mark.parametrize(
    ("model", "mesh", "preset"),
    [
        pytest.param(lambda: mlp(256, 32, 2), "4", "data", id="mlp-data"),
        pytest.param(lambda: mlp(32, 64, 2), "4", "megatron", id="mlp-tensor"),
        pytest.param(lambda: mlp(64, 64, 2), "2x2", "heuristic", id="mlp-2d"),
        pytest.param(attention, "2x2", "megatron", id="attention", marks=pytest.mark.slow),
        pytest.param(convolution, "2x2", "heuristic", id="convolution", marks=pytest.mark.slow),
    ],
)
def test_both_formats_exchange_the_same(model: Callable[[], Model], mesh: str, preset: str) -> None:
    # sums that stay open can be said in Shardy's form only, and would make another plan
    options = f"intra-op={preset} unreduced=off"
    gspmd, shardy = (collectives(model()[0], options, mesh, form) for form in ("mhlo", "sdy"))
    assert gspmd, "the plan of this test must exchange something"
    assert comparable(gspmd) == comparable(shardy)

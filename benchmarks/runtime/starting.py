"""What it takes until the workers of each backend can do their first step."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.instructions import Program

_LAYERS, _HIDDEN, _BATCH = 4, 64, 32


def start_seconds(backends: tuple[str, ...], steps: int) -> list[dict[str, object]]:
    """An MLP's train step on two meshes of two devices, with one host a mesh and with two;
    executables are not kept.

    Seconds until the workers are ready (`open`), of loading and the first step, and the least of
    further steps."""
    program, inputs = _mlp()
    rows: list[dict[str, object]] = []
    for backend in backends:
        for devices_per_host in (None,) if backend == "local" else (None, 1):
            begin = perf_counter()
            with open_run(
                program, backend, devices_per_host=devices_per_host, compile_cache=False
            ) as run:
                opened = perf_counter()
                run.load(inputs)
                run.step()
                stepped = perf_counter()
                rows.append(
                    {
                        "backend": backend,
                        "hosts a mesh": 1 if devices_per_host is None else 2,
                        "open": opened - begin,
                        "load and first step": stepped - opened,
                        "least step": min(_seconds(run) for _ in range(steps)),
                    }
                )
    return rows


def _seconds(run: Any) -> float:
    begin = perf_counter()
    run.step()
    return perf_counter() - begin


def _mlp() -> tuple[Program, list[np.ndarray]]:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(weights: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    shapes = [jax.ShapeDtypeStruct((_HIDDEN, _HIDDEN), jnp.float32)] * _LAYERS
    batch = jax.ShapeDtypeStruct((_BATCH, _HIDDEN), jnp.float32)
    exported = jax.export.export(jax.jit(step, donate_argnums=0))(shapes, batch, batch)
    options = PlanOptions("cpu-test:1x4", stages=2, submesh="1x2", microbatches=2)
    plan = make_plan(bytes(exported.mlir_module_serialized), options)
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    generator = np.random.default_rng(0)
    return program, [
        0.1 * generator.random(each.shape, np.float32) for each in (*shapes, batch, batch)
    ]

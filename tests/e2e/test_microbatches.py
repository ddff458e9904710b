"""Steps cut into microbatches and run as two stages: they compute what one device does from the
whole batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare, run_reference
from tests.e2e.models import export_step

Model = tuple[bytes, list[np.ndarray]]

ROWS, WIDTH = 8, 16


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape) * 0.3


def layers(params: Any, x: jax.Array) -> jax.Array:
    for weight, bias in params:
        x = x + jnp.tanh(x @ weight + bias)
    return x


@cache
def double() -> Model:
    """All in double precision: Adam, skipped by a conditional where a gradient is not finite,
    clipping by the global norm, weights of examples, an output for each of them."""
    with jax.enable_x64(True):
        optimizer = optax.apply_if_finite(
            optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.01)), 3
        )

        def loss(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
            losses = jnp.sum((layers(params, batch["x"]) - batch["y"]) ** 2, axis=-1)
            return jnp.average(losses, weights=batch["weight"]), losses

        def step(params: Any, memory: Any, batch: Any) -> Any:
            (value, losses), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
            updates, memory = optimizer.update(grads, memory, params)
            return optax.apply_updates(params, updates), memory, value, losses

        params = [(jnp.asarray(normal(k, WIDTH, WIDTH)), jnp.zeros(WIDTH)) for k in range(2)]
        batch = {
            "x": normal(4, ROWS, WIDTH),
            "y": normal(5, ROWS, WIDTH),
            "weight": normal(6, ROWS) ** 2,
        }
        return export_step(step, (params, optimizer.init(params)), (batch,))


@cache
def random_bits() -> Model:
    """Dropout by the generator of the hardware (`rng_bit_generator`) and by threefry, and dynamic
    loss scaling."""

    def loss(params: Any, x: jax.Array, scale: jax.Array, keys: Any) -> jax.Array:
        for k, (weight, bias) in enumerate(params):
            key = jax.random.fold_in(keys[k % 2], k)
            x = x + jnp.tanh(x @ weight + bias) * jax.random.bernoulli(key, 0.8, x.shape)
        return jnp.mean(x**2) * scale

    def step(state: Any, batch: jax.Array, rbg: jax.Array, threefry: jax.Array) -> Any:
        params, scale = state
        keys = (jax.random.wrap_key_data(rbg, impl="rbg"), jax.random.wrap_key_data(threefry))
        value, grads = jax.value_and_grad(loss)(params, batch, scale, keys)
        finite = jnp.all(
            jnp.stack([jnp.all(jnp.isfinite(grad)) for grad in jax.tree.leaves(grads)])
        )
        params = jax.tree.map(
            lambda p, grad: jnp.where(finite, p - 0.1 * grad / scale, p), params, grads
        )
        return (params, jnp.where(finite, 2 * scale, scale / 2)), value, finite

    params = [
        (normal(k, WIDTH, WIDTH).astype(np.float32), np.zeros(WIDTH, np.float32)) for k in range(2)
    ]
    state = params, np.float32(64)
    keys = np.asarray([1, 2, 3, 4], np.uint32), np.asarray([5, 6], np.uint32)
    return export_step(step, (state,), (normal(5, ROWS, WIDTH).astype(np.float32), *keys))


@cache
def evaluation() -> Model:
    """No gradients: logits of each example, the loss, and a count of right answers."""

    def step(params: Any, batch: Any) -> Any:
        logits = layers(params, batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return logits, losses.mean(), jnp.sum(jnp.argmax(logits, -1) == batch["label"])

    params = [
        (normal(k, WIDTH, WIDTH).astype(np.float32), np.zeros(WIDTH, np.float32)) for k in range(2)
    ]
    labels = np.arange(ROWS, dtype=np.int32)
    return export_step(
        step, (), (params, {"x": normal(5, ROWS, WIDTH).astype(np.float32), "label": labels})
    )


@cache
def normalized() -> Model:
    """Batch normalization with running statistics, of a batch whose quarters are equal."""

    def step(state: Any, batch: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            x, statistics = batch, []
            for weight, scale in params:
                x = x @ weight
                statistics.append((x.mean(0), x.var(0)))
                x = jnp.tanh(
                    (x - statistics[-1][0]) * jax.lax.rsqrt(statistics[-1][1] + 1e-2) * scale
                )
            return jnp.mean((x - batch) ** 2), statistics

        params, running = state
        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(params)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, statistics)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), running), value

    params = [
        (normal(k, WIDTH, WIDTH).astype(np.float32), np.ones(WIDTH, np.float32)) for k in range(2)
    ]
    running = [(np.ones(WIDTH, np.float32), np.ones(WIDTH, np.float32)) for _ in params]
    rows = np.tile(normal(5, ROWS // 2, WIDTH).astype(np.float32), (4, 1))
    return export_step(step, ((params, running),), (rows,))


@cache
def parts() -> Model:
    """The rows of the last layer in two parts, one after the other, with an output for each row:
    a microbatch has rows of both."""

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = layers(params[:-1], batch["x"])

            def part(total: jax.Array, rows: Any) -> Any:
                losses = jnp.mean((layers(params[-1:], rows[0]) - rows[1]) ** 2, axis=-1)
                return total + losses.sum(), losses

            rows = tuple(each.reshape(2, -1, WIDTH) for each in (hidden, batch["y"]))
            total, losses = jax.lax.scan(jax.checkpoint(part), jnp.float32(0), rows)
            return total / ROWS, losses.reshape(-1)

        (value, losses), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value, losses

    params = [
        (normal(k, WIDTH, WIDTH).astype(np.float32), np.zeros(WIDTH, np.float32)) for k in range(3)
    ]
    batch = {name: normal(k, ROWS, WIDTH).astype(np.float32) for k, name in ((4, "x"), (5, "y"))}
    return export_step(step, (params,), (batch,))


CASES = {
    "double": (double, 1e-10, {"batch_args": "batch"}),
    "random-bits": (random_bits, 1e-5, {"batch_args": "batch"}),
    "evaluation": (evaluation, 1e-5, {"batch_args": "batch", "schedule": "inference"}),
    "parts": (parts, 1e-5, {}),
    "normalized": (normalized, 1e-5, {"batch_coupling": "per-microbatch"}),
}
FAST = {("double", 4), ("random-bits", 2), ("evaluation", 2), ("parts", 2)}


@pytest.mark.parametrize(
    ("name", "microbatches"),
    [
        pytest.param(name, count, marks=[] if (name, count) in FAST else [pytest.mark.slow])
        for name in CASES
        for count in (1, 2, 4)
    ],
)
def test_the_step_is_that_of_one_device(name: str, microbatches: int) -> None:
    model, tolerance, options = CASES[name]
    artifact, inputs = model()
    all_options: dict[str, Any] = {
        "microbatches": microbatches,
        "stages": 2,
        "submesh": "1x2",
        **options,
    }
    plan = make_plan(artifact, PlanOptions("cpu-test:1x4", **all_options), cache=False)
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
        reference = run_reference(load_module(artifact, context), inputs)
    with open_run(program, quick_compile=True) as run:
        run.load(inputs)
        rows = compare(list(run.step()), reference)
    assert [row for row in rows if not row.within(tolerance)] == []

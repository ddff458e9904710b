"""Arrays and small models that programs of several libraries share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.program import STEPS

BATCH, WIDTH = 8, 16


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def weights(seed: int, *shape: int) -> jax.Array:
    return normal(seed, *shape) / shape[-2] ** 0.5


def mlp(layers: int = 4) -> list[dict[str, jax.Array]]:
    """Parameters of `apply_mlp`."""
    return [{"w": weights(k, WIDTH, WIDTH), "b": jnp.zeros(WIDTH)} for k in range(layers)]


def apply_mlp(params: Any, x: jax.Array) -> jax.Array:
    for layer in params:
        x = x + jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def squared_error(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((apply_mlp(params, x) - y) ** 2)


def descend(params: Any, grads: Any, rate: float = 0.1) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g.astype(p.dtype), params, grads)


def sgd_step(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return descend(params, grads), value

    return step


def rows(*shape: int, batch: int = BATCH) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """Inputs and targets of every step, `[batch, *shape]`."""
    shape = shape or (WIDTH,)
    return tuple(
        (normal(100 + k, batch, *shape), normal(200 + k, batch, *shape)) for k in range(STEPS)
    )


def tokens(length: int, vocab: int = 32) -> tuple[tuple[jax.Array], ...]:
    """Token numbers of every step, `[BATCH, length]`."""
    keys = jax.random.split(jax.random.key(7), STEPS)
    return tuple((jax.random.randint(key, (BATCH, length), 0, vocab),) for key in keys)


def images(size: int = 8, channels: int = 3) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """Images `[BATCH, size, size, channels]` and their classes, of four."""
    keys = jax.random.split(jax.random.key(8), STEPS)
    return tuple(
        (normal(300 + k, BATCH, size, size, channels), jax.random.randint(key, (BATCH,), 0, 4))
        for k, key in enumerate(keys)
    )


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(chosen)

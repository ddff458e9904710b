"""Steps of Haiku."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH
from benchmarks.programs.program import Trial

_KEY = jax.random.PRNGKey(0)


def _mse(out: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((out - y) ** 2)


def _with_state(function: Callable[..., Any], batches: Any) -> Trial:
    """`transform_with_state` of a loss, trained with Adam."""
    loss = hk.transform_with_state(function)
    params, state = loss.init(_KEY, *batches[0])
    optimizer = optax.adam(1e-2)

    def step(params: Any, state: Any, moments: Any, key: jax.Array, *batch: Any) -> Any:
        key, mine = jax.random.split(key)
        compute = jax.value_and_grad(loss.apply, has_aux=True)
        (value, state), grads = compute(params, state, mine, *batch)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), state, moments, key, value

    return Trial(step, (params, state, optimizer.init(params), _KEY), batches)


def perceptron() -> Trial:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return _mse(hk.nets.MLP([WIDTH] * 4, activation=jnp.tanh)(x), y)

    return _with_state(loss, models.rows())


def dropout() -> Trial:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        x = jnp.tanh(hk.Linear(WIDTH)(x))
        return _mse(hk.Linear(WIDTH)(hk.dropout(hk.next_rng_key(), 0.2, x)), y)

    return _with_state(loss, models.rows())


def batch_norm() -> Trial:
    def loss(x: jax.Array, labels: jax.Array) -> jax.Array:
        x = hk.Conv2D(8, 3, stride=2)(x)
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training=True))
        return models.cross_entropy(hk.Linear(4)(x.mean((1, 2))), labels)

    return _with_state(loss, models.images())


def transformer() -> Trial:
    def loss(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(32, WIDTH)(tokens[:, :-1])
        mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1])))
        initial = hk.initializers.VarianceScaling(1.0)
        for _ in range(2):
            norm = hk.LayerNorm(-1, True, True)
            x = x + hk.MultiHeadAttention(2, 8, model_size=WIDTH, w_init=initial)(
                *[norm(x)] * 3, mask=mask
            )
            x = x + hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(2 * WIDTH)(x)))
        return models.cross_entropy(hk.Linear(32)(x), tokens[:, 1:])

    return _with_state(loss, models.tokens(9))


def layer_stack() -> Trial:
    """`hk.layer_stack`: a scan over layers with stacked parameters."""

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        @hk.layer_stack(3)
        def layers(x: jax.Array) -> jax.Array:
            return x + jnp.tanh(hk.Linear(WIDTH)(x))

        return _mse(layers(x), y)

    return _with_state(loss, models.rows())


def remat() -> Trial:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        for _ in range(3):
            x = hk.remat(lambda x: x + jnp.tanh(hk.Linear(WIDTH)(x)))(x)
        return _mse(x, y)

    return _with_state(loss, models.rows())


def recurrent() -> Trial:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        cell = hk.LSTM(WIDTH)
        out, _ = hk.dynamic_unroll(cell, x, cell.initial_state(BATCH), time_major=False)
        return _mse(out, y)

    return _with_state(loss, models.rows(6, WIDTH))


def averaged() -> Trial:
    """An exponential average in the state of modules."""

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        value = _mse(hk.nets.MLP([WIDTH] * 3, activation=jnp.tanh)(x), y)
        hk.ExponentialMovingAverage(0.9)(value)
        return value

    return _with_state(loss, models.rows())


PROGRAMS = {
    "MLP": perceptron,
    "dropout": dropout,
    "BatchNorm on images": batch_norm,
    "transformer": transformer,
    "layer_stack": layer_stack,
    "remat": remat,
    "LSTM, dynamic_unroll": recurrent,
    "ExponentialMovingAverage": averaged,
}

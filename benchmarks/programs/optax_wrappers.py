"""What Optax wraps around optimizers, and optimizers that look at the loss themselves."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.programs import models
from benchmarks.programs.optax_steps import trial
from benchmarks.programs.program import Trial


def _multi_steps() -> Any:
    return optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)


def _apply_if_finite() -> Any:
    return optax.apply_if_finite(optax.adam(1e-2), max_consecutive_errors=3)


def _skip_large() -> Any:
    return optax.MultiSteps(
        optax.adam(1e-2),
        2,
        should_skip_update_fn=functools.partial(optax.skip_large_updates, max_squared_norm=10.0),
    )


def _plateau() -> Any:
    return optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau(patience=1))


def plateau() -> Trial:
    """Shrinks the steps where the loss, which it is told, does not fall."""
    optimizer, params = _plateau(), models.mlp()

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        updates, state = optimizer.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state, value

    return Trial(step, (params, optimizer.init(params)), models.rows())


def ema_of_params() -> Trial:
    """An average of the weights in the state."""
    optimizer, params = optax.adam(1e-2), models.mlp()

    def step(params: Any, average: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 0.1), state, value

    return Trial(step, (params, models.mlp(), optimizer.init(params)), models.rows())


def lookahead() -> Trial:
    optimizer = optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(models.mlp())

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params.fast, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return Trial(step, (params, optimizer.init(params)), models.rows())


def sam() -> Trial:
    """Gradients at weights that the gradient has moved."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        norm = optax.global_norm(grads)
        moved = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, grads)
        return models.descend(params, jax.grad(models.squared_error)(moved, x, y)), value

    return Trial(step, (models.mlp(),), models.rows())


def sam_of_optax() -> Trial:
    """`contrib.sam` in its opaque mode, which asks for gradients itself."""
    optimizer = optax.contrib.sam(
        optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), 2, opaque_mode=True
    )
    params = models.mlp()

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        gradient = jax.grad(models.squared_error)
        grads = gradient(params, x, y)
        updates, state = optimizer.update(
            grads, state, params, grad_fn=lambda params, _: gradient(params, x, y)
        )
        return optax.apply_updates(params, updates), state

    return Trial(step, (params, optimizer.init(params)), models.rows())


def lbfgs() -> Trial:
    optimizer, params = optax.lbfgs(), models.mlp(2)

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return models.squared_error(params, x, y)

        value, grads = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = optimizer.update(
            grads, state, params, value=value, grad=grads, value_fn=loss
        )
        return optax.apply_updates(params, updates), state, value

    x, y = models.rows()[0]
    return Trial(step, (params, optimizer.init(params)), ((x, y),) * 3, tolerance=1e-4)


def _with_value(make: Any) -> Trial:
    """An optimizer that is told the loss."""
    optimizer, params = make(), models.mlp()

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        updates, state = optimizer.update(grads, state, params, value=value, grad=grads)
        return optax.apply_updates(params, updates), state, value

    return Trial(step, (params, optimizer.init(params)), models.rows(), tolerance=1e-4)


def private() -> Trial:
    """Gradients of single rows, clipped, summed, and with noise (DP-SGD)."""
    optimizer, params = optax.contrib.dpsgd(0.1, 0.5, 0.1, 0), models.mlp()

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        grads = jax.vmap(jax.grad(models.squared_error), (None, 0, 0))(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Trial(step, (params, optimizer.init(params)), models.rows())


def speech() -> Trial:
    """Connectionist temporal classification of padded frames and labels."""

    def loss(params: Any, frames: jax.Array, ends: jax.Array, labels: jax.Array) -> jax.Array:
        logits = models.apply_mlp(params, frames)
        late = (jnp.arange(frames.shape[1]) >= ends[:, None]).astype(frames.dtype)
        padded = (labels == 0).astype(frames.dtype)
        return optax.ctc_loss(logits, late, labels, padded).mean()

    batches = tuple(
        (
            models.normal(100 + k, models.BATCH, 9, models.WIDTH),
            jnp.arange(models.BATCH) % 3 + 7,
            jnp.pad(
                jax.random.randint(jax.random.key(k), (models.BATCH, 3), 1, 16), ((0, 0), (0, 1))
            ),
        )
        for k in range(3)
    )
    return Trial(models.sgd_step(loss), (models.mlp(2),), batches)


PROGRAMS = {
    "MultiSteps": functools.partial(trial, _multi_steps),
    "MultiSteps, skip_large_updates": functools.partial(trial, _skip_large),
    "apply_if_finite": functools.partial(trial, _apply_if_finite),
    "reduce_on_plateau": plateau,
    "average of the weights": ema_of_params,
    "lookahead": lookahead,
    "SAM, by hand": sam,
    "contrib.sam, opaque": sam_of_optax,
    "L-BFGS with line search": lbfgs,
    "polyak_sgd": functools.partial(_with_value, lambda: optax.polyak_sgd(0.5)),
    "contrib.dpsgd, gradients of rows": private,
    "ctc_loss": speech,
}

"""Optimizers of Optax on one model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks.programs import models
from benchmarks.programs.program import Trial


def trial(make: Callable[[], Any]) -> Trial:
    """A step with an optimizer, whose state follows the weights."""
    optimizer, params = make(), models.mlp()

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return Trial(step, (params, optimizer.init(params)), models.rows())


def _is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _adamw() -> Any:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    return optax.adamw(schedule, weight_decay=0.1, mask=_is_matrix)


def _clipped() -> Any:
    return optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))


def _masked() -> Any:
    return optax.chain(optax.sgd(0.1), optax.masked(optax.add_decayed_weights(0.01), _is_matrix))


def _partitioned() -> Any:
    def labels(params: Any) -> Any:
        return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)

    return optax.partition({"matrix": optax.adam(1e-2), "vector": optax.set_to_zero()}, labels)


def _injected() -> Any:
    return optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)


def _adafactor() -> Any:
    return optax.adafactor(1e-2, min_dim_size_to_factor=8)


def _ema() -> Any:
    return optax.chain(optax.adam(1e-2), optax.ema(0.9))


def _agc() -> Any:
    return optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1))


def _noisy() -> Any:
    return optax.chain(optax.add_noise(0.01, 0.5, 0), optax.sgd(0.1))


_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw, schedule, decay mask": _adamw,
    "clip_by_global_norm": _clipped,
    "masked": _masked,
    "multi_transform (partition)": _partitioned,
    "inject_hyperparams": _injected,
    "adafactor": _adafactor,
    "lion": functools.partial(optax.lion, 1e-3),
    "lamb": functools.partial(optax.lamb, 1e-2),
    "rmsprop with momentum": functools.partial(optax.rmsprop, 1e-3, momentum=0.9),
    "optax.ema": _ema,
    "adaptive_grad_clip": _agc,
    "add_noise": _noisy,
    "contrib.muon": functools.partial(optax.contrib.muon, 1e-2),
    "contrib.prodigy": functools.partial(optax.contrib.prodigy, 0.1),
    "contrib.ademamix": functools.partial(optax.contrib.ademamix, 1e-2),
    "contrib.galore": functools.partial(optax.contrib.galore, 1e-2, rank=4),
    "novograd": functools.partial(optax.novograd, 1e-2),
    "contrib.schedule_free": functools.partial(optax.contrib.schedule_free_adamw, 1e-2),
}
PROGRAMS = {name: functools.partial(trial, make) for name, make in _OPTIMIZERS.items()}

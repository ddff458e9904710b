"""Steps of Flax linen."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import dynamic_scale, train_state

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH
from benchmarks.programs.program import Trial

_KEY = jax.random.key(0)


class _Mlp(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        for _ in range(3):
            x = x + nn.tanh(nn.Dense(WIDTH)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(WIDTH)(x)


def _mse(out: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((out - y) ** 2)


def _of_state(model: Any, params: Any) -> train_state.TrainState:
    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))


def train_state_step() -> Trial:
    """`TrainState`, whose functions are part of the tree."""
    model = _Mlp()
    state = _of_state(model, model.init(_KEY, models.rows()[0][0])["params"])

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return _mse(state.apply_fn({"params": params}, x), y)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return Trial(step, (state,), models.rows())


def dropout() -> Trial:
    model = _Mlp(dropout=0.2)
    state = _of_state(model, model.init(_KEY, models.rows()[0][0], train=False)["params"])

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        rngs = {"dropout": jax.random.fold_in(_KEY, state.step)}

        def loss(params: Any) -> jax.Array:
            return _mse(state.apply_fn({"params": params}, x, rngs=rngs), y)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return Trial(step, (state,), models.rows())


class _ResNet(nn.Module):
    norm: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(8, (3, 3), strides=2)(x)
        for _ in range(2):
            norm = nn.BatchNorm(use_running_average=not train) if self.norm else nn.GroupNorm(2)
            x = x + nn.relu(norm(nn.Conv(8, (3, 3), use_bias=False)(x)))
        return nn.Dense(4)(x.mean((1, 2)))


def _images(norm: bool) -> Trial:
    model = _ResNet(norm)
    variables = model.init(_KEY, models.images()[0][0], train=False)

    def step(params: Any, stats: Any, x: jax.Array, labels: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = model.apply(
                {"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"]
            )
            return models.cross_entropy(logits, labels), new.get("batch_stats", {})

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return models.descend(params, grads), new, value

    state = (variables["params"], variables.get("batch_stats", {}))
    return Trial(step, state, models.images())


def batch_norm() -> Trial:
    return _images(norm=True)


def group_norm() -> Trial:
    return _images(norm=False)


class _Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: Any = None) -> Any:
        h = nn.SelfAttention(2, deterministic=True)(nn.LayerNorm()(x))
        x = x + h
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x)))), None


class _Transformer(nn.Module):
    scanned: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(32, WIDTH)
        x = embed(tokens)
        block = nn.remat(_Block, prevent_cse=not self.scanned) if self.remat else _Block
        if self.scanned:
            scan = nn.scan(
                block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x = scan()(x, None)[0]
        else:
            for _ in range(3):
                x = block()(x)[0]
        return embed.attend(nn.LayerNorm()(x))


def _language(scanned: bool, remat: bool) -> Trial:
    model = _Transformer(scanned, remat)
    batches = models.tokens(8)
    params = model.init(_KEY, batches[0][0])

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return models.cross_entropy(model.apply(params, tokens[:, :-1]), tokens[:, 1:])

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    optimizer = optax.adamw(1e-2)
    return Trial(step, (params, optimizer.init(params)), batches)


def transformer() -> Trial:
    return _language(scanned=False, remat=False)


def transformer_remat() -> Trial:
    return _language(scanned=False, remat=True)


def transformer_scan() -> Trial:
    return _language(scanned=True, remat=True)


def recurrent() -> Trial:
    model = nn.RNN(nn.OptimizedLSTMCell(WIDTH))
    params = model.init(_KEY, models.rows(6, WIDTH)[0][0])

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return _mse(model.apply(params, x), y)

    return Trial(models.sgd_step(loss), (params,), models.rows(6, WIDTH))


def scaled_gradients() -> Trial:
    """`DynamicScale`, which is part of the state."""
    model = _Mlp()
    params = model.init(_KEY, models.rows()[0][0])

    def step(params: Any, scale: Any, x: jax.Array, y: jax.Array) -> Any:
        compute = scale.value_and_grad(lambda params: _mse(model.apply(params, x), y))
        scale, finite, value, grads = compute(params)
        new = models.descend(params, grads)
        return jax.tree.map(lambda p, q: jnp.where(finite, q, p), params, new), scale, value

    return Trial(step, (params, dynamic_scale.DynamicScale()), models.rows())


def decoding() -> Trial:
    """Attention with `decode=True`: a cache that is a collection of variables."""
    model = nn.SelfAttention(2, decode=True, deterministic=True)
    variables = model.init(_KEY, models.normal(0, BATCH, 6, WIDTH))

    def step(cache: Any, params: Any, x: jax.Array) -> Any:
        out, new = model.apply({"params": params, "cache": cache}, x, mutable=["cache"])
        return new["cache"], out

    batches = tuple((variables["params"], x) for x, _ in models.rows(1, WIDTH))
    return Trial(step, (variables["cache"],), batches)


PROGRAMS = {
    "TrainState": train_state_step,
    "Dropout": dropout,
    "BatchNorm on images": batch_norm,
    "GroupNorm on images": group_norm,
    "transformer": transformer,
    "transformer, nn.remat": transformer_remat,
    "transformer, nn.scan of nn.remat": transformer_scan,
    "LSTM by nn.RNN": recurrent,
    "DynamicScale": scaled_gradients,
    "decoding with a cache": decoding,
}

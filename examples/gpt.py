"""A small GPT in plain JAX with an Adam train step from optax: nothing in it knows about
shardopt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Sizes of the model; `heads` divides `hidden`."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    vocab: int = 128
    length: int = 32

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def init_params(config: Config, key: jax.Array) -> Params:
    """Weights as a tree; matrices are drawn from a normal distribution scaled by their input
    size."""

    def matrix(key: jax.Array, rows: int, columns: int) -> jax.Array:
        return jax.random.normal(key, (rows, columns)) / jnp.sqrt(rows)

    keys = iter(jax.random.split(key, 2 + 4 * config.layers))
    h = config.hidden
    blocks = [
        {
            "norm1": jnp.ones(h),
            "qkv": matrix(next(keys), h, 3 * h),
            "out": matrix(next(keys), h, h),
            "norm2": jnp.ones(h),
            "up": matrix(next(keys), h, 4 * h),
            "down": matrix(next(keys), 4 * h, h),
        }
        for _ in range(config.layers)
    ]
    return {
        "embed": matrix(next(keys), config.vocab, h),
        "position": 0.02 * jax.random.normal(next(keys), (config.length, h)),
        "blocks": blocks,
        "norm": jnp.ones(h),
    }


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(x: jax.Array, block: Params, config: Config) -> jax.Array:
    batch, length, hidden = x.shape
    q, k, v = jnp.split(x @ block["qkv"], 3, axis=-1)
    q, k, v = (t.reshape(batch, length, config.heads, config.head_size) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(config.head_size)
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, hidden) @ block["out"]


def loss_fn(params: Params, tokens: jax.Array, config: Config) -> jax.Array:
    """Mean next-token cross entropy of `tokens`, int32 `[batch, length + 1]`."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embed"][inputs] + params["position"]
    for block in params["blocks"]:
        x = x + _attention(_norm(x, block["norm1"]), block, config)
        x = x + jax.nn.gelu(_norm(x, block["norm2"]) @ block["up"]) @ block["down"]
    logits = _norm(x, params["norm"]) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def make_train_step(
    config: Config, learning_rate: float = 1e-3
) -> tuple[optax.GradientTransformation, Any]:
    """The optimizer, and `train_step(params, opt_state, tokens) -> (params, opt_state, loss)`."""
    optimizer = optax.adam(learning_rate)

    def train_step(
        params: Params, opt_state: Any, tokens: jax.Array
    ) -> tuple[Params, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, config)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return optimizer, train_step

"""Train steps on which the known methods have known collectives: a transformer with one product for
queries, keys and values, and a mixture of experts that dispatches by one-hot products."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.e2e.models import export_step

LAYERS, BATCH, LENGTH, HIDDEN, HEADS, EXPERTS = 2, 8, 8, 32, 4, 4


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _layer(x: jax.Array, p: Any) -> jax.Array:
    q, k, v = jnp.moveaxis(jnp.einsum("bsh,hcnd->bscnd", _norm(x, p["norm1"]), p["qkv"]), 2, 0)
    weights = jax.nn.softmax(jnp.einsum("bqnd,bknd->bnqk", q, k), axis=-1)
    x = x + jnp.einsum("bqnd,ndh->bqh", jnp.einsum("bnqk,bknd->bqnd", weights, v), p["out"])
    return x + jax.nn.gelu(_norm(x, p["norm2"]) @ p["up"]) @ p["down"]


def adam_step(loss_fn: Any) -> Any:
    """A step of Adam without bias correction: two slots a weight."""

    def step(params: Any, mean: Any, square: Any, *batch: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
        params = jax.tree.map(
            lambda p, m, s: p - 0.1 * m / (jnp.sqrt(s) + 1e-3), params, mean, square
        )
        return params, mean, square, loss

    return step


@cache
def transformer(layers: int = LAYERS) -> tuple[bytes, list[np.ndarray]]:
    """Positions, layers of attention and MLP, squared error."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = x + params["position"]
        for layer in params["layers"]:
            x = _layer(x, layer)
        return jnp.mean((x - y) ** 2)

    shapes = {
        "norm1": (HIDDEN,),
        "qkv": (HIDDEN, 3, HEADS, HIDDEN // HEADS),
        "out": (HEADS, HIDDEN // HEADS, HIDDEN),
        "norm2": (HIDDEN,),
        "up": (HIDDEN, 4 * HIDDEN),
        "down": (4 * HIDDEN, HIDDEN),
    }
    rng = np.random.default_rng(0)
    blocks = [{name: _values(rng, shape) for name, shape in shapes.items()} for _ in range(layers)]
    return _exported(loss_fn, {"layers": blocks, "position": _values(rng, (LENGTH, HIDDEN))}, rng)


@cache
def mixture() -> tuple[bytes, list[np.ndarray]]:
    """One layer of experts (GShard: dispatch and combine are products with one-hot choices) behind
    a shared layer."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = jnp.tanh(x @ params["shared"])
        gates = jax.nn.softmax(x @ params["gate"], axis=-1)  # [b, s, e]
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), EXPERTS)
        # As much room as tokens, so that none is dropped.
        place = jax.nn.one_hot(jnp.arange(LENGTH), LENGTH)
        dispatch = chosen[:, :, :, None] * place[None, :, None, :]  # [b, s, e, c]
        sent = jnp.einsum("bsec,bsh->ebch", dispatch, x)
        made = jnp.einsum(
            "ebcf,efh->ebch",
            jnp.tanh(jnp.einsum("ebch,ehf->ebcf", sent, params["up"])),
            params["down"],
        )
        return jnp.mean(
            (x + jnp.einsum("bsec,ebch->bsh", dispatch * gates[..., None], made) - y) ** 2
        )

    rng = np.random.default_rng(0)
    shapes = {
        "shared": (HIDDEN, HIDDEN),
        "gate": (HIDDEN, EXPERTS),
        "up": (EXPERTS, HIDDEN, 2 * HIDDEN),
        "down": (EXPERTS, 2 * HIDDEN, HIDDEN),
    }
    return _exported(loss_fn, {name: _values(rng, shape) for name, shape in shapes.items()}, rng)


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(0.2 * rng.standard_normal(shape), jnp.float32)


def _exported(
    loss_fn: Any, params: Any, rng: np.random.Generator
) -> tuple[bytes, list[np.ndarray]]:
    state = (params, *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))
    batch = tuple(_values(rng, (BATCH, LENGTH, HIDDEN)) for _ in range(2))
    return export_step(adam_step(loss_fn), state, batch)

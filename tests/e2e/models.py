"""Train steps that the end-to-end tests plan and run: exported once a session, small enough for any machine."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.gpt import Config, init_params, make_train_step

GPT = Config(layers=2, hidden=16, heads=2, vocab=32, length=8)
BATCH = 4


def export_step(step: Any, state: tuple[Any, ...], batch: tuple[Any, ...]) -> tuple[bytes, list[np.ndarray]]:
    """The exported artifact of `step(*state, *batch)`, state donated, and its flat inputs."""
    jitted = jax.jit(step, donate_argnums=tuple(range(len(state))), keep_unused=True)
    exported = jax.export.export(jitted)(*state, *batch)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves((*state, *batch))]
    return bytes(exported.mlir_module_serialized), inputs


@cache
def gpt() -> tuple[bytes, list[np.ndarray]]:
    """The example GPT with tied embeddings and Adam."""
    optimizer, step = make_train_step(GPT)
    params = init_params(GPT, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (BATCH, GPT.length + 1), 0, GPT.vocab)
    return export_step(step, (params, optimizer.init(params)), (tokens,))


@cache
def scanned() -> tuple[bytes, list[np.ndarray]]:
    """A residual MLP whose layers are a `lax.scan` over stacked weights, SGD, and a metric beside the loss."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, params["layers"])
        prediction = out @ params["head"]
        return jnp.mean((prediction - y) ** 2), jnp.max(jnp.abs(prediction))

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        (loss, peak), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, peak

    keys = jax.random.split(jax.random.key(0), 4)
    params = {"layers": 0.3 * jax.random.normal(keys[0], (4, 16, 16)), "head": jax.random.normal(keys[1], (16, 4))}
    batch = (jax.random.normal(keys[2], (8, 16)), jax.random.normal(keys[3], (8, 4)))
    return export_step(step, (params,), batch)


@cache
def clipped() -> tuple[bytes, list[np.ndarray]]:
    """A classifier with dropout, a masked loss, global-norm clipping and momentum: couples all layers in the update."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))

    def loss_fn(params: Any, x: jax.Array, labels: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
        h = x
        for k, w in enumerate(params):
            h = h @ w
            if k + 1 < len(params):
                h = jax.nn.relu(h) * jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, h.shape)
        losses = optax.softmax_cross_entropy_with_integer_labels(h, labels)
        return jnp.sum(losses * mask) / jnp.sum(mask)

    def step(params: Any, opt_state: Any, x: jax.Array, labels: jax.Array, mask: jax.Array, key: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, labels, mask, jax.random.wrap_key_data(key))
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    keys = jax.random.split(jax.random.key(0), 6)
    sizes = (16, 32, 32, 8)
    params = [0.2 * jax.random.normal(k, s) for k, s in zip(keys, pairwise(sizes), strict=False)]
    batch = (
        jax.random.normal(keys[3], (8, 16)),
        jax.random.randint(keys[4], (8,), 0, 8),
        jnp.array([1, 1, 0, 1, 1, 1, 1, 0], jnp.float32),
        jax.random.key_data(keys[5]),
    )
    return export_step(step, (params, optimizer.init(params)), batch)


MODELS = {"gpt": gpt, "scanned": scanned, "clipped": clipped}
# Arguments that hold the batch, where they cannot be told from the shapes alone.
BATCH_ARGS = {"clipped": ("-4", "-3", "-2")}


def batch_args(name: str) -> str:
    """The `batch_args` option for a model."""
    if name not in BATCH_ARGS:
        return "auto"
    count = len(MODELS[name]()[1])
    return ",".join(str(count + int(k)) for k in BATCH_ARGS[name])

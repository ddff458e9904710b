"""Train steps that the end-to-end tests plan and run: exported once a session, small enough for any
machine."""

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


def export_step(
    step: Any, state: tuple[Any, ...], batch: tuple[Any, ...]
) -> tuple[bytes, list[np.ndarray]]:
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
    """A residual MLP whose layers are a `lax.scan` over stacked weights, SGD, and a metric beside
    the loss."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, params["layers"])
        prediction = out @ params["head"]
        return jnp.mean((prediction - y) ** 2), jnp.max(jnp.abs(prediction))

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        (loss, peak), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, peak

    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "layers": 0.3 * jax.random.normal(keys[0], (4, 16, 16)),
        "head": jax.random.normal(keys[1], (16, 4)),
    }
    batch = (jax.random.normal(keys[2], (8, 16)), jax.random.normal(keys[3], (8, 4)))
    return export_step(step, (params,), batch)


@cache
def clipped() -> tuple[bytes, list[np.ndarray]]:
    """A classifier with dropout, a masked loss, global-norm clipping and momentum: couples all
    layers in the update."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))

    def loss_fn(
        params: Any, x: jax.Array, labels: jax.Array, mask: jax.Array, key: jax.Array
    ) -> jax.Array:
        h = x
        for k, w in enumerate(params):
            h = h @ w
            if k + 1 < len(params):
                h = jax.nn.relu(h) * jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, h.shape)
        losses = optax.softmax_cross_entropy_with_integer_labels(h, labels)
        return jnp.sum(losses * mask) / jnp.sum(mask)

    def step(
        params: Any,
        opt_state: Any,
        x: jax.Array,
        labels: jax.Array,
        mask: jax.Array,
        key: jax.Array,
    ) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(
            params, x, labels, mask, jax.random.wrap_key_data(key)
        )
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


@cache
def mlp(batch: int = 64, hidden: int = 32, layers: int = 6) -> tuple[bytes, list[np.ndarray]]:
    """A training step of a plain MLP with biases, SGD."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight, bias in params:
            x = jax.nn.relu(x @ weight + bias)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    keys = jax.random.split(jax.random.key(0), layers + 2)
    params = [
        (0.2 * jax.random.normal(key, (hidden, hidden)), jnp.zeros(hidden)) for key in keys[2:]
    ]
    return export_step(
        step, (params,), tuple(jax.random.normal(key, (batch, hidden)) for key in keys[:2])
    )


@cache
def transformer_layer(
    batch: int = 8, length: int = 16, width: int = 32, heads: int = 4
) -> tuple[bytes, list[np.ndarray]]:
    """Attention and a gated MLP with residuals and RMS norms, SGD: weights of their own for all
    that is multiplied."""

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale

    def layer(p: Any, x: jax.Array) -> jax.Array:
        h = norm(x, p["scale1"])
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, p[name]) for name in "qkv")
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / np.sqrt(width // heads)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        x = x + jnp.einsum("bhts,bshk,hkd->btd", jax.nn.softmax(scores), v, p["out"])
        h = norm(x, p["scale2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((layer(p, x) - y) ** 2))(p)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), loss

    shapes = dict.fromkeys("qkv", (width, heads, width // heads)) | {
        "out": (heads, width // heads, width)
    }
    shapes |= dict.fromkeys(("gate", "up"), (width, 4 * width)) | {"down": (4 * width, width)}
    keys = jax.random.split(jax.random.key(0), len(shapes) + 2)
    params = {
        name: 0.1 * jax.random.normal(key, shapes[name])
        for name, key in zip(shapes, keys, strict=False)
    }
    params |= {"scale1": jnp.ones(width), "scale2": jnp.ones(width)}
    return export_step(
        step, (params,), tuple(jax.random.normal(key, (batch, length, width)) for key in keys[-2:])
    )


@cache
def convolution(batch: int = 8, size: int = 16) -> tuple[bytes, list[np.ndarray]]:
    """Two convolutions, one with a stride, batch statistics, pooling and a classifier, SGD."""

    def apply(p: Any, x: jax.Array) -> jax.Array:
        for name, stride in (("conv1", 1), ("conv2", 2)):
            names = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, p[name], (stride, stride), "SAME", dimension_numbers=names
            )
            x = jax.nn.relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return x.mean((1, 2)) @ p["head"]

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((apply(p, x) - y) ** 2))(p)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), loss

    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"conv1": (3, 3, 4, 16), "conv2": (3, 3, 16, 32), "head": (32, 8)}
    params = {
        name: 0.2 * jax.random.normal(key, shapes[name])
        for name, key in zip(shapes, keys, strict=False)
    }
    batch_arrays = (
        jax.random.normal(keys[3], (batch, size, size, 4)),
        jax.random.normal(keys[4], (batch, 8)),
    )
    return export_step(step, (params,), batch_arrays)


@cache
def mixture(tokens: int = 64, width: int = 32, experts: int = 8) -> tuple[bytes, list[np.ndarray]]:
    """A mixture of experts: the two best of eight for each token, tokens sent and fetched by
    one-hot products, SGD."""

    def layer(p: Any, x: jax.Array) -> jax.Array:
        weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        hot = jax.nn.one_hot(chosen, experts)  # [tokens, 2, experts]
        place = (jnp.cumsum(hot.reshape(-1, experts), axis=0) - 1).reshape(hot.shape) * hot
        # Nothing for those without room.
        room = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), tokens // 2)
        sent = jnp.einsum("nke,nkc->nec", hot, room)
        h = jax.nn.relu(jnp.einsum("nec,nd,edf->ecf", sent, x, p["up"]))
        return jnp.einsum("nec,ecf,efd,nke,nk->nd", sent, h, p["down"], hot, weights)

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((layer(p, x) - y) ** 2))(p)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), loss

    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {
        "router": (width, experts),
        "up": (experts, width, 2 * width),
        "down": (experts, 2 * width, width),
    }
    params = {
        name: 0.2 * jax.random.normal(key, shapes[name])
        for name, key in zip(shapes, keys, strict=False)
    }
    return export_step(
        step, (params,), tuple(jax.random.normal(key, (tokens, width)) for key in keys[3:])
    )


@cache
def accumulated(
    microbatches: int = 4, batch: int = 16, width: int = 32
) -> tuple[bytes, list[np.ndarray]]:
    """An MLP whose gradients are summed over microbatches in a `lax.scan`, then Adam."""
    import optax

    optimizer = optax.adam(1e-2)

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def add(total: Any, part: Any) -> tuple[Any, jax.Array]:
            loss, grads = jax.value_and_grad(loss_fn)(params, *part)
            return jax.tree.map(jnp.add, total, grads), loss

        grads, losses = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (x, y))
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, losses.mean()

    keys = jax.random.split(jax.random.key(0), 4)
    params = [0.3 * jax.random.normal(key, (width, width)) for key in keys[:2]]
    batches = tuple(jax.random.normal(key, (microbatches, batch, width)) for key in keys[2:])
    return export_step(step, (params, optimizer.init(params)), batches)


MODELS = {"gpt": gpt, "scanned": scanned, "clipped": clipped}
# Arguments that hold the batch, where they cannot be told from the shapes alone.
BATCH_ARGS = {"clipped": ("-4", "-3", "-2")}


def batch_args(name: str) -> str:
    """The `batch_args` option for a model."""
    if name not in BATCH_ARGS:
        return "auto"
    count = len(MODELS[name]()[1])
    return ",".join(str(count + int(k)) for k in BATCH_ARGS[name])

"""Steps of plain JAX: state of many kinds, narrow numbers, and what is kept for the backward."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.programs import models
from benchmarks.programs.models import WIDTH, normal, weights
from benchmarks.programs.program import Trial


def _named(params: Any, x: jax.Array, y: jax.Array, policy: Any) -> jax.Array:
    @functools.partial(jax.checkpoint, policy=policy)
    def layer(x: jax.Array, layer: Any) -> jax.Array:
        hidden = checkpoint_name(x @ layer["w"] + layer["b"], "hidden")
        return x + checkpoint_name(jnp.tanh(hidden), "mixed")

    for each in params:
        x = layer(x, each)
    return jnp.mean((x - y) ** 2)


def saved_names() -> Trial:
    policy = jax.checkpoint_policies.save_only_these_names("hidden")
    return Trial(
        models.sgd_step(functools.partial(_named, policy=policy)), (models.mlp(),), models.rows()
    )


def offloaded_names() -> Trial:
    """What one name says is kept in the memory of the host."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["mixed"],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    return Trial(
        models.sgd_step(functools.partial(_named, policy=policy)), (models.mlp(),), models.rows()
    )


def dropped_attention() -> Trial:
    """Attention with dropout, computed again in the backward, a key for each layer."""

    def step(params: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        key, mine = jax.random.split(key)

        @jax.checkpoint
        def layer(x: jax.Array, layer: Any, key: jax.Array) -> jax.Array:
            scores = (x @ layer["w"]) @ x.swapaxes(1, 2) / WIDTH**0.5
            chances = jax.nn.softmax(scores)
            kept = jax.random.bernoulli(key, 0.8, chances.shape)
            return x + jnp.where(kept, chances / 0.8, 0.0) @ x

        def loss(params: Any) -> jax.Array:
            out = x
            for each, own in zip(params, jax.random.split(mine, len(params)), strict=True):
                out = layer(out, each, own)
            return jnp.mean((out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), key, value

    return Trial(step, (models.mlp(3), jax.random.key(3)), models.rows(6, WIDTH))


def scan_with_names() -> Trial:
    """A scan over layers whose backward has what a name says, with dropout keys of new style."""

    def loss(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        policy = jax.checkpoint_policies.save_only_these_names("hidden")

        @functools.partial(jax.checkpoint, policy=policy)
        def layer(x: jax.Array, at: Any) -> Any:
            w, key = at
            hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
            return x + hidden * jax.random.bernoulli(key, 0.9, hidden.shape), jnp.mean(hidden**2)

        keys = jax.random.split(key, len(params))
        out, sizes = lax.scan(layer, x, (params, keys))
        return jnp.mean((out - y) ** 2) + 1e-2 * sizes.sum()

    stacked = jnp.stack([weights(k, WIDTH, WIDTH) for k in range(4)])
    batches = tuple((*batch, jax.random.key(k)) for k, batch in enumerate(models.rows()))
    return Trial(models.sgd_step(loss), (stacked,), batches)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "momentum", "count", "key", "metrics"),
    meta_fields=("rate", "name"),
)
@dataclasses.dataclass(frozen=True)
class _State:
    params: Any
    momentum: Any
    count: jax.Array
    key: jax.Array
    metrics: dict[str, Any]
    rate: float = 0.1
    name: str = "run"


def dataclass_state() -> Trial:
    """A state with fields that are no arrays, metrics that go on, and None among them."""

    def step(state: _State, x: jax.Array, y: jax.Array) -> Any:
        key = jax.random.fold_in(state.key, state.count)
        noisy = x + 0.1 * jax.random.normal(key, x.shape)
        value, grads = jax.value_and_grad(models.squared_error)(state.params, noisy, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, grads)
        params = models.descend(state.params, momentum, state.rate)
        count = state.count + 1
        metrics = {"mean": state.metrics["mean"] + (value - state.metrics["mean"]) / count,
                   "worst": jnp.maximum(state.metrics["worst"], value), "none": None}  # fmt: skip
        state = dataclasses.replace(
            state, params=params, momentum=momentum, count=count, metrics=metrics
        )
        return state, {"loss": value, "nothing": None, "pair": (count, metrics["worst"])}

    params = models.mlp()
    metrics = {"mean": jnp.zeros(()), "worst": jnp.zeros(()), "none": None}
    state = _State(
        params, jax.tree.map(jnp.zeros_like, params), jnp.int32(0), jax.random.key(1), metrics
    )
    return Trial(step, (state,), models.rows())


def master_copies() -> Trial:
    """Weights in bfloat16 beside copies in float32 that the update is added to."""

    def step(params: Any, master: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        master = models.descend(master, jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        return jax.tree.map(lambda p: p.astype(jnp.bfloat16), master), master, value

    master = models.mlp()
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), master)
    batches = tuple((x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)) for x, y in models.rows())
    return Trial(step, (params, master), batches, tolerance=3e-2)


def eight_bits() -> Trial:
    """Products of float8 with a scale for each weight, which follows the largest elements of the
    last steps."""

    def narrow(x: jax.Array, scale: jax.Array, kind: Any) -> jax.Array:
        largest = jnp.finfo(kind).max.astype(x.dtype)
        return jnp.clip(x / scale, -largest, largest).astype(kind).astype(x.dtype) * scale

    def step(params: Any, history: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        scales = history.max(0) / 448.0

        def loss(params: Any) -> jax.Array:
            h = x
            for layer, scale in zip(params, scales, strict=True):
                w = layer["w"]
                rounded = narrow(w, scale, jnp.float8_e4m3fn)
                h = h + jnp.tanh(h @ (w + lax.stop_gradient(rounded - w)) + layer["b"])
            return jnp.mean((h - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        params = models.descend(params, grads)
        largest = jnp.stack([jnp.abs(layer["w"]).max() for layer in params])
        return params, jnp.concatenate([history[1:], largest[None]]), value

    # What is rounded to 8 bits turns the last bit of a weight into a sixteenth of it.
    return Trial(step, (models.mlp(), jnp.ones((3, 4))), models.rows(), tolerance=1e-3)


def clipped_layers() -> Trial:
    """The gradient of each layer has a largest norm, and noise of a key in the state."""

    def step(params: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)

        def clip(layer: Any) -> Any:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(layer)))
            return jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.1 / norm), layer)

        leaves, tree = jax.tree.flatten([clip(layer) for layer in grads])
        key, *keys = jax.random.split(key, len(leaves) + 1)
        noisy = [
            g + 1e-3 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)
        ]
        return models.descend(params, jax.tree.unflatten(tree, noisy)), key, value

    return Trial(step, (models.mlp(), jax.random.key(3)), models.rows())


def spectral_norm() -> Trial:
    """Weights are divided by their largest singular value, by a power iteration in the state."""

    def step(params: Any, vectors: Any, x: jax.Array, y: jax.Array) -> Any:
        def unit(v: jax.Array) -> jax.Array:
            return v / jnp.linalg.norm(v)

        def loss(params: Any) -> Any:
            h, new = x, []
            for layer, vector in zip(params, vectors, strict=True):
                w = lax.stop_gradient(layer["w"])
                left = unit(w @ vector)
                right = unit(left @ w)
                new.append(right)
                h = h + jnp.tanh(h @ layer["w"] / (left @ layer["w"] @ right) + layer["b"])
            return jnp.mean((h - y) ** 2), new

        (value, vectors), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return models.descend(params, grads), vectors, value

    vectors = [normal(50 + k, WIDTH) for k in range(4)]
    return Trial(step, (models.mlp(), vectors), models.rows())


def running_statistics() -> Trial:
    """Rows are normalised with statistics of those of the steps before, which go on in the
    state."""

    def step(params: Any, statistics: Any, x: jax.Array, y: jax.Array) -> Any:
        count, mean, squares = statistics
        spread = jnp.sqrt(squares / count + 1e-3)
        value, grads = jax.value_and_grad(models.squared_error)(params, (x - mean) / spread, y)
        total = count + len(x)
        moved = x.mean(0) - mean
        squares = squares + ((x - x.mean(0)) ** 2).sum(0) + moved**2 * count * len(x) / total
        return models.descend(params, grads), (total, mean + moved * len(x) / total, squares), value

    statistics = (jnp.float32(1), jnp.zeros(WIDTH), jnp.ones(WIDTH))
    return Trial(step, (models.mlp(), statistics), models.rows())


def confusion() -> Trial:
    """Counts of classes that are taken for others, and a histogram of scores, beside the loss."""

    def step(params: Any, counts: jax.Array, x: jax.Array, labels: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits = models.apply_mlp(params, x.reshape(len(x), -1)[:, :WIDTH])[:, :4]
            return models.cross_entropy(logits, labels), logits

        (value, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
        guess = logits.argmax(-1)
        counts = counts.at[labels, guess].add(1)
        surest = jax.nn.softmax(logits).max(-1)
        histogram = jnp.histogram(surest, bins=4, range=(0.0, 1.0))[0]
        _, hits = lax.top_k(logits, 2)
        second = jnp.any(hits == labels[:, None], -1)
        return models.descend(params, grads), counts, value, histogram, second.mean(), surest

    return Trial(step, (models.mlp(), jnp.zeros((4, 4), jnp.int32)), models.images())


def shuffled_positions() -> Trial:
    """A window of tokens at a place that a counter in the state says, out of rows that stay."""

    def step(params: Any, at: jax.Array, corpus: jax.Array) -> Any:
        window = lax.dynamic_slice_in_dim(corpus, at, 7, axis=1)

        def loss(params: Any) -> jax.Array:
            hidden = models.apply_mlp(params["layers"], params["table"][window[:, :-1]])
            return models.cross_entropy(hidden @ params["table"].T, window[:, 1:])

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), (at + 6) % 10, value

    params = {"table": weights(7, 32, WIDTH), "layers": models.mlp(3)}
    return Trial(step, (params, jnp.int32(0)), models.tokens(17))


def whitened_gradients() -> Trial:
    """Gradients of matrices in the basis of their averages' eigenvectors (Shampoo, SOAP)."""

    def step(params: Any, left: Any, right: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        left = [0.9 * a + g @ g.T for a, g in zip(left, grads, strict=True)]
        right = [0.9 * a + g.T @ g for a, g in zip(right, grads, strict=True)]

        def root(a: jax.Array) -> jax.Array:
            values, vectors = jnp.linalg.eigh(a + 1e-2 * jnp.eye(WIDTH))
            return (vectors * values**-0.25) @ vectors.T

        moved = [root(a) @ g @ root(b) for a, g, b in zip(left, grads, right, strict=True)]
        return models.descend(params, moved, 0.03), left, right, value

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in params:
            x = x + jnp.tanh(x @ w)
        return jnp.mean((x - y) ** 2)

    params = [weights(k, WIDTH, WIDTH) for k in range(2)]
    zeros = [jnp.zeros((WIDTH, WIDTH))] * 2
    return Trial(step, (params, zeros, zeros), models.rows(), tolerance=1e-3)


PROGRAMS = {
    "checkpoint, save_only_these_names": saved_names,
    "checkpoint, names on the host": offloaded_names,
    "checkpoint, attention with dropout": dropped_attention,
    "scan with names and keys": scan_with_names,
    "dataclass as state": dataclass_state,
    "bfloat16 beside float32 copies": master_copies,
    "float8 with scales in the state": eight_bits,
    "clipped layers, noise": clipped_layers,
    "spectral norm": spectral_norm,
    "statistics of rows in the state": running_statistics,
    "confusion matrix, histogram": confusion,
    "window at a counter": shuffled_positions,
    "eigenvectors of averages (Shampoo)": whitened_gradients,
}

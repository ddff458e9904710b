"""Steps of plain JAX over arrays of all kinds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH, normal, weights
from benchmarks.programs.program import STEPS, Trial


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def convolutions() -> Trial:
    params = [0.2 * normal(0, 3, 3, 3, 8), 0.2 * normal(1, 3, 3, 8, 8), weights(2, 128, 4)]

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = jax.nn.relu(_conv(x, params[0], 2))
        x = x + jax.nn.relu(_conv(x, params[1]))
        return models.cross_entropy(x.reshape(x.shape[0], -1) @ params[2], labels)

    return Trial(models.sgd_step(loss), (params,), models.images())


def diffusion() -> Trial:
    """Latents and times as batch, noise of a key."""
    params = [0.2 * normal(0, 3, 3, 5, 8), 0.2 * normal(1, 3, 3, 8, 4)]

    def step(params: Any, latents: jax.Array, times: jax.Array, key: jax.Array) -> Any:
        noise = jax.random.normal(key, latents.shape)
        level = times[:, None, None, None]
        noisy = jnp.sqrt(1 - level) * latents + jnp.sqrt(level) * noise

        def loss(params: Any) -> jax.Array:
            x = jnp.concatenate([noisy, jnp.broadcast_to(level, (*noisy.shape[:3], 1))], -1)
            return jnp.mean((_conv(jax.nn.silu(_conv(x, params[0])), params[1]) - noise) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), value

    batches = tuple(
        (
            normal(k, BATCH, 8, 8, 4),
            jax.random.uniform(jax.random.key(k), (BATCH,)),
            jax.random.key(9 + k),
        )
        for k in range(STEPS)
    )
    return Trial(step, (params,), batches)


def embeddings() -> Trial:
    """Tokens, a table that is tied to the head, and attention."""
    params = {
        "table": normal(0, 32, WIDTH),
        "qkv": weights(1, WIDTH, 3 * WIDTH),
        "o": weights(2, WIDTH, WIDTH),
    }

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["table"][tokens[:, :-1]]
        q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
        x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) @ params["o"]
        return models.cross_entropy(x @ params["table"].T, tokens[:, 1:])

    return Trial(models.sgd_step(loss), (params,), models.tokens(9))


def _attend(params: Any, cache: Any, x: jax.Array, position: jax.Array) -> Any:
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    keys = cache["k"].at[:, position].set(k)
    values = cache["v"].at[:, position].set(v)
    scores = jnp.einsum("bd,btd->bt", q, keys) / WIDTH**0.5
    scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e9)
    out = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values)
    return out @ params["o"], {"k": keys, "v": values}


def _decoder() -> tuple[Any, Any]:
    params = [
        {"qkv": weights(k, WIDTH, 3 * WIDTH), "o": weights(9 + k, WIDTH, WIDTH)} for k in range(2)
    ]
    caches = [{name: jnp.zeros((BATCH, 6, WIDTH)) for name in "kv"} for _ in params]
    return params, caches


def decoding() -> Trial:
    """One token of every row, with caches that the step replaces."""
    params, caches = _decoder()
    table = normal(3, 32, WIDTH)

    def step(caches: Any, token: jax.Array, position: jax.Array, params: Any, table: Any) -> Any:
        x, new = table[token], []
        for layer, cache in zip(params, caches, strict=True):
            out, cache = _attend(layer, cache, x, position)
            x = x + out
            new.append(cache)
        return new, jnp.argmax(x @ table.T, axis=-1)

    batches = tuple(
        (token[:, 0], jnp.int32(k), params, table) for k, (token,) in enumerate(models.tokens(1))
    )
    return Trial(step, (caches,), batches)


def quantised() -> Trial:
    """Weights of 8 bits with a scale for each column, at inference."""

    def quantise(w: jax.Array) -> Any:
        scale = jnp.max(jnp.abs(w), axis=0) / 127
        return jnp.round(w / scale).astype(jnp.int8), scale

    def step(params: Any, x: jax.Array) -> jax.Array:
        for q, scale in params:
            x = x + jnp.tanh((x @ q.astype(x.dtype)) * scale)
        return x

    params = [quantise(layer["w"]) for layer in models.mlp()]
    return Trial(step, (params,), tuple((x,) for x, _ in models.rows()), after="kept")


def lora() -> Trial:
    """Frozen weights, and adapters that are trained: W + A B."""
    frozen = models.mlp()
    adapters = [
        {"a": weights(20 + k, WIDTH, 2), "b": 0.1 * normal(30 + k, 2, WIDTH)} for k in range(4)
    ]

    def loss(adapters: Any, frozen: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer, pair in zip(frozen, adapters, strict=True):
            x = x + jnp.tanh(x @ (layer["w"] + pair["a"] @ pair["b"]) + layer["b"])
        return jnp.mean((x - y) ** 2)

    def step(adapters: Any, frozen: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(adapters, frozen, x, y)
        return models.descend(adapters, grads), value

    batches = tuple((frozen, *batch) for batch in models.rows())
    return Trial(step, (adapters,), batches)


def lora_by_side() -> Trial:
    """Adapters beside the frozen product: x W + (x A) B."""
    trial = lora()

    def loss(adapters: Any, frozen: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer, pair in zip(frozen, adapters, strict=True):
            x = x + jnp.tanh(x @ layer["w"] + (x @ pair["a"]) @ pair["b"] + layer["b"])
        return jnp.mean((x - y) ** 2)

    def step(adapters: Any, frozen: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(adapters, frozen, x, y)
        return models.descend(adapters, grads), value

    return Trial(step, trial.state, trial.batches)


def stacked_weights() -> Trial:
    """All layers in one array, which a loop of Python indexes."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for k in range(4):
            x = x + jnp.tanh(x @ params["w"][k] + params["b"][k])
        return jnp.mean((x - y) ** 2)

    layers = models.mlp()
    params = {name: jnp.stack([layer[name] for layer in layers]) for name in ("w", "b")}
    return Trial(models.sgd_step(loss), (params,), models.rows())


def weight_norm() -> Trial:
    """Weights are direction times length."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            w = layer["g"] * layer["v"] / jnp.linalg.norm(layer["v"], axis=0)
            x = x + jnp.tanh(x @ w)
        return jnp.mean((x - y) ** 2)

    params = [{"v": weights(k, WIDTH, WIDTH), "g": jnp.ones(WIDTH)} for k in range(4)]
    return Trial(models.sgd_step(loss), (params,), models.rows())


def bfloat16() -> Trial:
    """All weights and rows in bfloat16."""
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), models.mlp())
    batches = tuple(tuple(a.astype(jnp.bfloat16) for a in batch) for batch in models.rows())
    return Trial(models.sgd_step(models.squared_error), (params,), batches, tolerance=2e-2)


def mixed_precision() -> Trial:
    """Weights in float32, computed with in bfloat16, under a loss scale."""

    def step(params: Any, scale: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            out = models.apply_mlp(half, x.astype(jnp.bfloat16)).astype(jnp.float32)
            return scale * jnp.mean((out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        new = models.descend(params, grads)
        params = jax.tree.map(lambda p, q: jnp.where(finite, q, p), params, new)
        return params, jnp.where(finite, scale * 2, scale / 2), value / scale

    return Trial(step, (models.mlp(), jnp.float32(8.0)), models.rows(), tolerance=2e-2)


def tied_weights() -> Trial:
    """One matrix for all layers and, transposed, for the head."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for _ in range(3):
            x = x + jnp.tanh(x @ params["w"])
        return jnp.mean((x @ params["w"].T - y) ** 2)

    return Trial(models.sgd_step(loss), ({"w": weights(0, WIDTH, WIDTH)},), models.rows())


def experts() -> Trial:
    """Two of four experts for every token, dispatched and combined by einsum, with a balance
    loss."""
    params = {
        "gate": weights(0, WIDTH, 4),
        "in": weights(1, 4, WIDTH, 2 * WIDTH),
        "out": weights(2, 4, 2 * WIDTH, WIDTH),
    }

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        share = jax.nn.softmax(x @ params["gate"])
        best, number = jax.lax.top_k(share, 2)
        chosen = jax.nn.one_hot(number, 4) * best[..., None]
        place = jnp.cumsum(jax.nn.one_hot(number, 4).sum(2), axis=1)
        slot = jax.nn.one_hot(place.astype(jnp.int32) - 1, 8) * (chosen.sum(2) > 0)[..., None]
        inside = jnp.einsum("gtes,gtd->egsd", slot, x)
        inside = jax.nn.relu(jnp.einsum("egsd,edh->egsh", inside, params["in"]))
        inside = jnp.einsum("egsh,ehd->egsd", inside, params["out"])
        out = jnp.einsum("gtes,egsd->gtd", slot * chosen.sum(2)[..., None], inside)
        return jnp.mean((out - y) ** 2) + 0.01 * jnp.sum(share.mean((0, 1)) ** 2)

    return Trial(models.sgd_step(loss), (params,), models.rows(8, WIDTH))


def fourier() -> Trial:
    """A spectral layer: forward and inverse transforms with complex weights."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            modes = jnp.fft.rfft(x, axis=1)
            low = jnp.einsum("bmd,mde->bme", modes[:, :4], layer["re"] + 1j * layer["im"])
            modes = jnp.zeros_like(modes).at[:, :4].set(low)
            x = x + jnp.tanh(jnp.fft.irfft(modes, n=x.shape[1], axis=1))
        return jnp.mean((x - y) ** 2)

    params = [
        {"re": 0.1 * normal(k, 4, WIDTH, WIDTH), "im": 0.1 * normal(9 + k, 4, WIDTH, WIDTH)}
        for k in range(2)
    ]
    return Trial(models.sgd_step(loss), (params,), models.rows(16, WIDTH))


def token_mixing() -> Trial:
    """FNet: real parts of a transform over positions and features."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            x = x + jnp.fft.fft2(x, axes=(-2, -1)).real / WIDTH
            x = x + jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x - y) ** 2)

    return Trial(models.sgd_step(loss), (models.mlp(2),), models.rows(8, WIDTH))


def segments() -> Trial:
    """Packed sequences: segment numbers mask the attention."""
    params = {"qkv": weights(1, WIDTH, 3 * WIDTH), "o": weights(2, WIDTH, WIDTH)}

    def loss(params: Any, x: jax.Array, y: jax.Array, segment: jax.Array) -> jax.Array:
        q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5
        scores = jnp.where(segment[:, :, None] == segment[:, None, :], scores, -1e9)
        out = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) @ params["o"]
        return jnp.mean((x + out - y) ** 2)

    numbers = jnp.broadcast_to(jnp.arange(8) // 3, (BATCH, 8))
    batches = tuple((*batch, numbers) for batch in models.rows(8, WIDTH))
    return Trial(models.sgd_step(loss), (params,), batches)


def graph() -> Trial:
    """A graph network: messages are gathered by edges and summed with segment_sum; no batch."""

    def loss(params: Any, x: jax.Array, y: jax.Array, sources: Any, targets: Any) -> jax.Array:
        for layer in params:
            messages = (x @ layer["w"])[sources]
            x = x + jnp.tanh(jax.ops.segment_sum(messages, targets, x.shape[0]) + layer["b"])
        return jnp.mean((x - y) ** 2)

    edges = jax.random.randint(jax.random.key(4), (2, 24), 0, BATCH)
    batches = tuple((*batch, *edges) for batch in models.rows())
    return Trial(models.sgd_step(loss), (models.mlp(2),), batches)


def scattered() -> Trial:
    """Bags of tokens: rows of a table are summed into each example by a scatter."""
    params = {
        "table": normal(0, 32, WIDTH),
        "w": weights(1, WIDTH, WIDTH),
        "v": weights(2, WIDTH, WIDTH),
    }

    def loss(params: Any, tokens: jax.Array, y: jax.Array) -> jax.Array:
        counts = jax.vmap(lambda row: jnp.zeros(32).at[row].add(1.0))(tokens)
        x = counts @ params["table"]
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

    batches = tuple((t, y) for (t,), (_, y) in zip(models.tokens(5), models.rows(), strict=True))
    return Trial(models.sgd_step(loss), (params,), batches)


def contrastive() -> Trial:
    """Every row is compared with every other: microbatches cannot be told apart."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        left, right = models.apply_mlp(params["x"], x), models.apply_mlp(params["y"], y)
        return models.cross_entropy(left @ right.T, jnp.arange(x.shape[0]))

    params = {"x": models.mlp(2), "y": models.mlp(2)}
    return Trial(models.sgd_step(loss), (params,), models.rows())


def generator_and_critic() -> Trial:
    """Two losses and two sets of weights in one step."""

    def step(generator: Any, critic: Any, noise: jax.Array, real: jax.Array) -> Any:
        def critic_loss(critic: Any) -> jax.Array:
            fake = models.apply_mlp(generator, noise)
            scores = [models.apply_mlp(critic, each).mean(-1) for each in (real, fake)]
            return jnp.mean(jax.nn.softplus(-scores[0])) + jnp.mean(jax.nn.softplus(scores[1]))

        def generator_loss(generator: Any) -> jax.Array:
            fake = models.apply_mlp(generator, noise)
            return jnp.mean(jax.nn.softplus(-models.apply_mlp(critic, fake).mean(-1)))

        first, critic_grads = jax.value_and_grad(critic_loss)(critic)
        second, generator_grads = jax.value_and_grad(generator_loss)(generator)
        new = models.descend(generator, generator_grads), models.descend(critic, critic_grads)
        return *new, first, second

    return Trial(step, (models.mlp(2), models.mlp(2)), models.rows())


def gradient_penalty() -> Trial:
    """Gradients of gradients."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        slope = jax.grad(lambda x: jnp.sum(models.apply_mlp(params, x)))(x)
        return models.squared_error(params, x, y) + jnp.mean((jnp.sum(slope**2, -1) - 1) ** 2)

    return Trial(models.sgd_step(loss), (models.mlp(2),), models.rows())


PROGRAMS = {
    "images, convolutions NHWC": convolutions,
    "latents, times and noise": diffusion,
    "tokens, tied table, attention": embeddings,
    "decoding step with caches": decoding,
    "int8 weights": quantised,
    "LoRA, W + A B": lora,
    "LoRA beside the product": lora_by_side,
    "stacked weights, indexed": stacked_weights,
    "weight normalization": weight_norm,
    "bfloat16": bfloat16,
    "mixed precision with loss scale": mixed_precision,
    "tied weights": tied_weights,
    "experts by einsum, top_k": experts,
    "Fourier layer, complex": fourier,
    "FNet": token_mixing,
    "packed segments": segments,
    "graph network, segment_sum": graph,
    "scatter of tokens": scattered,
    "contrastive loss": contrastive,
    "generator and critic": generator_and_critic,
    "gradient penalty": gradient_penalty,
}

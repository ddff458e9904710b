"""Steps of plain JAX with losses that are more than a mean over single rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH, normal, weights
from benchmarks.programs.program import STEPS, Trial

_VOCABULARY, _LENGTH, _CHUNKS = 32, 8, 4


def _language_model(layers: int = 3) -> Any:
    return {"table": weights(7, _VOCABULARY, WIDTH), "layers": models.mlp(layers)}


def _hidden(params: Any, tokens: jax.Array) -> jax.Array:
    return models.apply_mlp(params["layers"], params["table"][tokens])


def _chosen(params: Any, tokens: jax.Array) -> jax.Array:
    """Logarithms of the probabilities of all tokens but the first, [rows, length - 1]."""
    logits = jax.nn.log_softmax(_hidden(params, tokens[..., :-1]) @ params["table"].T)
    return jnp.take_along_axis(logits, tokens[..., 1:, None], axis=-1)[..., 0]


def chunked_cross_entropy() -> Trial:
    """Logits of a few flattened rows at a time, so that those of all rows are never held."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        def chunk(total: jax.Array, rows: Any) -> Any:
            logits = rows[0] @ params["table"].T
            return total + models.cross_entropy(logits, rows[1]), None

        hidden = _hidden(params, tokens[:, :-1]).reshape(_CHUNKS, -1, WIDTH)
        labels = tokens[:, 1:].reshape(_CHUNKS, -1)
        total, _ = lax.scan(jax.checkpoint(chunk), jnp.zeros(()), (hidden, labels))
        return total / _CHUNKS

    return Trial(models.sgd_step(loss), (_language_model(),), models.tokens(_LENGTH + 1))


def preferences() -> Trial:
    """Pairs of answers run as one batch, and are compared with what a frozen model says (DPO)."""

    def loss(params: Any, frozen: Any, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        both = jnp.concatenate([chosen, rejected])
        gain = (_chosen(params, both) - _chosen(frozen, both)).sum(-1)
        return -jax.nn.log_sigmoid(0.1 * (gain[: len(chosen)] - gain[len(chosen) :])).mean()

    def step(params: Any, frozen: Any, *pair: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, frozen, *pair)
        return models.descend(params, grads), frozen, value

    batches = models.tokens(_LENGTH)
    pairs = tuple((tokens, tokens[::-1]) for (tokens,) in batches)
    return Trial(step, (_language_model(), _language_model(2)), pairs)


def few_labels() -> Trial:
    """Rows with labels and three times as many without, which take those that the model is sure
    of."""

    def loss(params: Any, x: jax.Array, y: jax.Array, more: jax.Array) -> jax.Array:
        logits = models.apply_mlp(params, jnp.concatenate([x, more, more + 0.1]))
        labelled, weak, strong = jnp.split(logits, [len(x), len(x) + len(more)])
        guess = lax.stop_gradient(jax.nn.softmax(weak))
        sure = guess.max(-1) > 0.2
        losses = -jnp.take_along_axis(jax.nn.log_softmax(strong), guess.argmax(-1)[:, None], 1)
        return models.cross_entropy(labelled, y.argmax(-1)) + jnp.mean(sure * losses[:, 0])

    rows = zip(models.rows(), models.rows(batch=3 * BATCH), strict=True)
    batches = tuple((x, y, more) for (x, y), (more, _) in rows)
    return Trial(models.sgd_step(loss), (models.mlp(),), batches)


def distillation() -> Trial:
    """A student learns what a deeper, frozen teacher says, and labels."""

    def step(student: Any, teacher: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(student: Any) -> jax.Array:
            own = models.apply_mlp(student, x)
            told = lax.stop_gradient(jax.nn.softmax(models.apply_mlp(teacher, x) / 2))
            soft = -jnp.sum(told * jax.nn.log_softmax(own / 2), -1).mean()
            return 2 * soft + 0.5 * models.cross_entropy(own, y.argmax(-1))

        value, grads = jax.value_and_grad(loss)(student)
        return models.descend(student, grads), teacher, value

    return Trial(step, (models.mlp(2), models.mlp(5)), models.rows())


def groups_of_answers() -> Trial:
    """Clipped ratios of policies, with rewards normalized in groups of answers (GRPO)."""

    def loss(params: Any, tokens: jax.Array, old: jax.Array, reward: jax.Array) -> jax.Array:
        advantage = reward - reward.mean(1, keepdims=True)
        advantage = (advantage / (reward.std(1, keepdims=True) + 1e-4))[..., None]
        ratio = jnp.exp(_chosen(params, tokens) - old)
        return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()

    keys = jax.random.split(jax.random.key(7), STEPS)
    batches = tuple(
        (
            jax.random.randint(key, (BATCH, 4, _LENGTH), 0, _VOCABULARY),
            -3 + 0.1 * normal(100 + k, BATCH, 4, _LENGTH - 1),
            normal(200 + k, BATCH, 4),
        )
        for k, key in enumerate(keys)
    )
    return Trial(models.sgd_step(loss), (_language_model(),), batches)


def flooding() -> Trial:
    """A loss that turns around below a bound: the gradient of each row needs the mean."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.abs(models.squared_error(params, x, y) - 1) + 1

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def root_of_the_mean() -> Trial:
    """Through a scan over layers that are computed again."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, layer: Any) -> Any:
            return x + jnp.tanh(x @ layer["w"] + layer["b"]), None

        return jnp.sqrt(jnp.mean((lax.scan(layer, x, params)[0] - y) ** 2))

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models.mlp())
    return Trial(models.sgd_step(loss), (stacked,), models.rows())


def perplexity() -> Trial:
    """The exponential of a mean over the tokens that count, whose table is tied."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        counts = (tokens[:, 1:] != 0).astype(jnp.float32)
        return jnp.exp(-jnp.sum(_chosen(params, tokens) * counts) / counts.sum())

    return Trial(models.sgd_step(loss), (_language_model(),), models.tokens(_LENGTH))


def hard_examples() -> Trial:
    """The mean of the largest losses alone."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        losses = jnp.mean((models.apply_mlp(params, x) - y) ** 2, -1)
        return lax.top_k(losses, BATCH // 4)[0].mean()

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


PROGRAMS = {
    "cross-entropy in chunks": chunked_cross_entropy,
    "pairs of answers (DPO)": preferences,
    "few rows with labels": few_labels,
    "distillation": distillation,
    "groups of answers (GRPO)": groups_of_answers,
    "flooding": flooding,
    "root of the mean": root_of_the_mean,
    "perplexity": perplexity,
    "largest losses alone": hard_examples,
}

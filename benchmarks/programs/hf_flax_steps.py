"""Steps of the Flax models of Hugging Face's transformers (before version 5), tiny and with random
weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import transformers

from benchmarks.programs import models
from benchmarks.programs.program import STEPS, Trial

_SIZES = {"vocab_size": 64, "max_position_embeddings": 16}


def _fine_tuning(model: Any, loss: Callable[..., jax.Array], batches: Any) -> Trial:
    """AdamW with dropout, as the examples of transformers have it."""
    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any, key: jax.Array, *batch: Any) -> Any:
        key, mine = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, mine, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, key, value

    state = (model.params, optimizer.init(model.params), jax.random.PRNGKey(1))
    return Trial(step, state, batches)


def _labelled() -> tuple[tuple[jax.Array, ...], ...]:
    """Tokens, a mask with padding, and classes."""
    mask = jnp.broadcast_to(jnp.arange(8) < 6, (models.BATCH, 8)).astype(jnp.int32)
    return tuple((tokens, mask, tokens[:, 0] % 2) for (tokens,) in models.tokens(8, 64))


def bert() -> Trial:
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **_SIZES
    )
    model = transformers.FlaxBertForSequenceClassification(config, seed=0)

    def loss(params: Any, key: jax.Array, tokens: Any, mask: Any, labels: Any) -> jax.Array:
        out = model(tokens, mask, params=params, dropout_rng=key, train=True)
        return models.cross_entropy(out.logits, labels)

    return _fine_tuning(model, loss, _labelled())


def _causal(model: Any) -> Trial:
    def loss(params: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = model(tokens, params=params, dropout_rng=key, train=True).logits
        return models.cross_entropy(logits[:, :-1], tokens[:, 1:])

    return _fine_tuning(model, loss, models.tokens(8, 64))


def gpt2() -> Trial:
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=64)
    return _causal(transformers.FlaxGPT2LMHeadModel(config, seed=0))


def gpt2_remat() -> Trial:
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=64)
    model = transformers.FlaxGPT2LMHeadModel(config, seed=0)
    model.enable_gradient_checkpointing()
    return _causal(model)


def llama() -> Trial:
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **_SIZES
    )
    return _causal(transformers.FlaxLlamaForCausalLM(config, seed=0))


def t5() -> Trial:
    config = transformers.T5Config(
        d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2, vocab_size=64,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.FlaxT5ForConditionalGeneration(config, seed=0)

    def loss(params: Any, key: jax.Array, tokens: Any, targets: Any) -> jax.Array:
        out = model(tokens, decoder_input_ids=targets, params=params, dropout_rng=key, train=True)
        return models.cross_entropy(out.logits[:, :-1], targets[:, 1:])

    batches = tuple((tokens[:, :8], tokens[:, 8:]) for (tokens,) in models.tokens(14, 64))
    return _fine_tuning(model, loss, batches)


def vit() -> Trial:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=8, patch_size=4, num_labels=4,
    )  # fmt: skip
    model = transformers.FlaxViTForImageClassification(config, seed=0)

    def loss(params: Any, key: jax.Array, pixels: Any, labels: Any) -> jax.Array:
        out = model(pixels, params=params, dropout_rng=key, train=True)
        return models.cross_entropy(out.logits, labels)

    batches = tuple((x.transpose(0, 3, 1, 2), labels) for x, labels in models.images())
    return _fine_tuning(model, loss, batches)


def gpt2_decoding() -> Trial:
    """One token of every row with `past_key_values`."""
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=64)
    model = transformers.FlaxGPT2LMHeadModel(config, seed=0)
    mask = jnp.ones((models.BATCH, 8), jnp.int32)

    def step(cache: Any, params: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        out = model(
            tokens, attention_mask=mask, position_ids=positions, params=params,
            past_key_values=cache,
        )  # fmt: skip
        return out.past_key_values, out.logits

    positions = [jnp.full((models.BATCH, 1), k, jnp.int32) for k in range(STEPS)]
    batches = tuple(
        (model.params, tokens, place)
        for (tokens,), place in zip(models.tokens(1, 64), positions, strict=True)
    )
    return Trial(step, (model.init_cache(models.BATCH, 8),), batches)


PROGRAMS = {
    "BERT, classification": bert,
    "GPT-2": gpt2,
    "GPT-2, gradient checkpointing": gpt2_remat,
    "GPT-2, decoding with a cache": gpt2_decoding,
    "LLaMA": llama,
    "T5": t5,
    "ViT": vit,
}

"""GPT-3 as in the paper: normalisation before each part, learned positions, GELU, a feed forward
four times as wide.

Not as there: the artifact's blocks come from BERT and normalise after each part, without a causal
mask. FLOPs and sizes are the same."""

from __future__ import annotations

from functools import partial

import jax

from shardopt.models.blocks import block
from shardopt.models.computing import PLAIN, Computing
from shardopt.models.specs import GptSpec
from shardopt.models.transformer import (
    Batch,
    Tree,
    attention,
    attention_weights,
    embed,
    embedding_weights,
    feed_forward,
    feed_forward_weights,
    named_blocks,
    norm,
    norm_weights,
    token_loss,
)


def weights(spec: GptSpec) -> Tree:
    block = {
        "norm1": norm_weights(spec.hidden),
        "attention": attention_weights(spec.hidden, spec.heads),
        "norm2": norm_weights(spec.hidden),
        "feed_forward": feed_forward_weights(spec.hidden, spec.width),
    }
    ends = embedding_weights(spec.vocab, spec.sequence, spec.hidden, spec.tied)
    return {"ends": ends, "blocks": [block] * spec.layers}


def loss(params: Tree, batch: Batch, how: Computing = PLAIN) -> jax.Array:
    x = embed(params["ends"], batch["tokens"], how)
    step = block(how, partial(_block, how=how))
    for name, weights in named_blocks(params["blocks"]):
        with jax.named_scope(name):
            x = step(x, weights)
    return token_loss(x, params["ends"], batch["labels"], how)


def _block(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    x = x + attention(norm(x, weights["norm1"]), weights["attention"], how)
    return x + feed_forward(norm(x, weights["norm2"]), weights["feed_forward"], how)

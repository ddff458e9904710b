"""GPT-3 as in the paper: normalisation before each part, learned positions, GELU, a feed forward
four times as wide.

Not as there: the artifact's blocks come from BERT and normalise after each part, without a causal
mask. FLOPs and sizes are the same."""

from __future__ import annotations

import jax

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


def loss(params: Tree, batch: Batch) -> jax.Array:
    x = embed(params["ends"], batch["tokens"])
    for name, block in named_blocks(params["blocks"]):
        with jax.named_scope(name):
            x = x + attention(norm(x, block["norm1"]), block["attention"])
            x = x + feed_forward(norm(x, block["norm2"]), block["feed_forward"])
    return token_loss(x, params["ends"], batch["labels"])

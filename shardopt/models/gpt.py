"""GPT-3 as in the paper: normalisation before each part, learned positions, GELU, a feed forward
four times as wide.

Not as there: the artifact's blocks come from BERT, without a causal mask, which changes neither
FLOPs nor sizes, and normalise after each part, as `Computing.normalizes_sums` says."""

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
    norm_weights,
    residual,
    token_loss,
)


def weights(spec: GptSpec) -> Tree:
    block = {
        "norm1": norm_weights(spec.hidden),
        "attention": attention_weights(spec.hidden, spec.heads, spec.kv_heads),
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
    attend = partial(attention, weights=weights["attention"], how=how)
    feed = partial(feed_forward, weights=weights["feed_forward"], how=how)
    x = residual(how, x, attend, weights["norm1"])
    return residual(how, x, feed, weights["norm2"])

"""GShard's mixture of experts as in the paper: every even layer sends each token to two of its
experts.

`group` tokens are routed together, of which an expert takes at most `capacity` (GShard, algorithm
1). Dispatch and combination are products with `[group, token, expert, slot]`. As in the artifact
(`alpa/model/moe.py`) there is no auxiliary loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardopt.models.blocks import block, plain_product, product
from shardopt.models.computing import PLAIN, Computing
from shardopt.models.specs import MoeSpec
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
from shardopt.models.weights import matrix


def weights(spec: MoeSpec) -> Tree:
    hidden, wide = spec.hidden, spec.width * spec.hidden
    experts = {
        "gate": matrix(hidden, spec.experts, inputs=hidden),
        "up": matrix(spec.experts, hidden, wide, inputs=hidden),
        "down": matrix(spec.experts, wide, hidden, inputs=wide),
    }
    shared = {
        "norm1": norm_weights(hidden),
        "attention": attention_weights(hidden, spec.heads),
        "norm2": norm_weights(hidden),
    }
    sparse = {**shared, "experts": experts}
    dense = {**shared, "feed_forward": feed_forward_weights(hidden, spec.width)}
    ends = embedding_weights(spec.vocab, spec.sequence, hidden, spec.tied)
    return {"ends": ends, "blocks": [sparse, dense] * (spec.layers // 2)}


def loss(params: Tree, batch: Batch, spec: MoeSpec, how: Computing = PLAIN) -> jax.Array:
    x = embed(params["ends"], batch["tokens"], how)
    step = block(how, partial(_block, spec=spec, how=how))
    for name, weights in named_blocks(params["blocks"]):
        with jax.named_scope(name):
            x = step(x, weights)
    return token_loss(x, params["ends"], batch["labels"], how)


def _block(x: jax.Array, weights: Tree, spec: MoeSpec, how: Computing) -> jax.Array:
    attend = partial(attention, weights=weights["attention"], how=how)
    x = residual(how, x, attend, weights["norm1"])
    if "experts" in weights:
        feed = partial(mixture, weights=weights["experts"], spec=spec, how=how)
    else:
        feed = partial(feed_forward, weights=weights["feed_forward"], how=how)
    return residual(how, x, feed, weights["norm2"])


def mixture(x: jax.Array, weights: Tree, spec: MoeSpec, how: Computing = PLAIN) -> jax.Array:
    """The experts' answer to `x` `[batch, sequence, hidden]`; tokens beyond an expert's capacity
    get none."""
    grouped = x.reshape(-1, spec.group, spec.hidden)
    scores = plain_product("gsm,me->gse", grouped, weights["gate"]).astype(jnp.float32)
    combine = routing(jax.nn.softmax(scores, axis=-1), spec.capacity, x.dtype)
    dispatch = (combine > 0).astype(x.dtype)
    inputs = jnp.einsum("gsec,gsm->egcm", dispatch, grouped)
    inner = jax.nn.relu(product(how, "egcm,emh->egch", inputs, weights["up"]))
    outputs = product(how, "egch,ehm->egcm", inner, weights["down"], again=True)
    return jnp.einsum("gsec,egcm->gsm", combine, outputs).reshape(x.shape)


def routing(shares: jax.Array, capacity: int, dtype: Any) -> jax.Array:
    """Weights `[group, token, expert, slot]` of a token's two best experts, from `shares` `[group,
    token, expert]`.

    A token's first expert comes before every token's second one when slots are given out, in the
    order of the tokens."""
    first = _best(shares)
    second = _best(jnp.where(first > 0, -1.0, shares))
    before = jnp.sum(first, axis=-2, keepdims=True)
    place_1 = _earlier(first)
    place_2 = _earlier(second) + before
    kept_1 = first * (place_1 < capacity)
    kept_2 = second * (place_2 < capacity)
    share_1 = jnp.sum(shares * kept_1, axis=-1)
    share_2 = jnp.sum(shares * kept_2, axis=-1)
    total = share_1 + share_2
    total = jnp.where(total > 0, total, 1)
    weight_1, weight_2 = (share_1 / total).astype(dtype), (share_2 / total).astype(dtype)
    return _slots(kept_1, place_1, weight_1, capacity) + _slots(kept_2, place_2, weight_2, capacity)


def _best(shares: jax.Array) -> jax.Array:
    """1 at the largest share of a token, 0 elsewhere: int32."""
    experts = jax.lax.broadcasted_iota(jnp.int32, shares.shape, 2)
    return (experts == jnp.argmax(shares, axis=-1, keepdims=True)).astype(jnp.int32)


def _earlier(chosen: jax.Array) -> jax.Array:
    """How many earlier tokens of the group chose the same expert."""
    tokens = chosen.shape[1]
    window, ones = (1, tokens, 1), (1, 1, 1)
    padding = ((0, 0), (tokens - 1, 0), (0, 0))
    return jax.lax.reduce_window(chosen, 0, jax.lax.add, window, ones, padding) - chosen


def _slots(kept: jax.Array, place: jax.Array, share: jax.Array, capacity: int) -> jax.Array:
    """`share` of a token at its expert and slot; the large tensor has the type of `share`."""
    slot = jnp.sum(kept * place, axis=-1)
    slots = jax.lax.broadcasted_iota(jnp.int32, (*slot.shape, capacity), 2)
    taken = (slots == slot[..., None]).astype(share.dtype)
    by_expert = share[..., None] * kept.astype(share.dtype)
    return by_expert[..., None] * taken[:, :, None, :]

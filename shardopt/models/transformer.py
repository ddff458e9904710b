"""What decoders have in common: embeddings, attention, feed forward, loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardopt.models.blocks import attended, dropped, plain_product, product
from shardopt.models.computing import Computing, Entropy
from shardopt.models.kernels import cross_entropy, gelu, layer_norm, softmax
from shardopt.models.passes import cross_entropy_in_passes, wide_cross_entropy
from shardopt.models.weights import Weight, matrix

Tree = dict[str, Any]
Batch = dict[str, jax.Array]

_ENTROPIES: dict[Entropy, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "merged": cross_entropy,
    "wide": wide_cross_entropy,
    "in-passes": cross_entropy_in_passes,
}


def named_blocks(blocks: Sequence[Tree]) -> Iterator[tuple[str, Tree]]:
    """Blocks with the names that locations of their operations have, `block_0` and so on: a plan
    file can say where layers begin by them."""
    return ((f"block_{number}", block) for number, block in enumerate(blocks))


def norm_weights(hidden: int) -> Tree:
    return {"gain": Weight((hidden,), fill=1.0), "bias": Weight((hidden,))}


def norm(x: jax.Array, weights: Tree) -> jax.Array:
    return layer_norm(x, weights["gain"], weights["bias"])


def residual(
    how: Computing, x: jax.Array, part: Callable[[jax.Array], jax.Array], weights: Tree
) -> jax.Array:
    """`x` with what a part of a block makes of it."""
    if how.normalizes_sums:
        return norm(x + part(x), weights)
    return x + part(norm(x, weights))


def attention_weights(hidden: int, heads: int, kv_heads: int = 0) -> Tree:
    """Heads are a dimension of their own, so that a split of heads is a split of a dimension; where
    `kv_heads` of keys and values serve several heads of queries each, those are groups."""
    size = hidden // heads
    if kv_heads not in (0, heads):
        shared = heads // kv_heads
        return {
            "query": matrix(hidden, kv_heads, shared, size, inputs=hidden),
            "query_bias": Weight((kv_heads, shared, size)),
            "key_value": matrix(hidden, 2, kv_heads, size, inputs=hidden),
            "key_value_bias": Weight((2, kv_heads, size)),
            "out": matrix(kv_heads, shared, size, hidden, inputs=hidden),
            "out_bias": Weight((hidden,)),
        }
    return {
        "qkv": matrix(hidden, 3, heads, size, inputs=hidden),
        "qkv_bias": Weight((3, heads, size)),
        "out": matrix(heads, size, hidden, inputs=hidden),
        "out_bias": Weight((hidden,)),
    }


def attention(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    """Causal self attention of `x` `[batch, sequence, hidden]`."""
    if "query" in weights:
        return _grouped_attention(x, weights, how)
    joined = product(how, "bsh,hcnd->bscnd", x, weights["qkv"]) + weights["qkv_bias"]
    mixed = attended(how, partial(_attend, how), joined[:, :, 0], joined[:, :, 1], joined[:, :, 2])
    out = product(how, "bqnd,ndh->bqh", mixed, weights["out"], again=True)
    added = out + weights["out_bias"]
    return dropped(how, added, seed=2)


def _attend(how: Computing, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqnd,bknd->bnqk", query * query.shape[-1] ** -0.5, key)
    return jnp.einsum("bnqk,bknd->bqnd", _kept_shares(how, scores), value)


def _grouped_attention(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    query = product(how, "bsh,hgmd->bsgmd", x, weights["query"]) + weights["query_bias"]
    both = product(how, "bsh,hcgd->bscgd", x, weights["key_value"]) + weights["key_value_bias"]
    mixed = attended(how, partial(attend_in_groups, how), query, both[:, :, 0], both[:, :, 1])
    out = product(how, "bqgmd,gmdh->bqh", mixed, weights["out"], again=True)
    return dropped(how, out + weights["out_bias"], seed=2)


def attend_in_groups(
    how: Computing, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    """What queries `[batch, sequence, group, head, size]` make of the keys and values of their
    group, `[batch, sequence, group, size]`."""
    scores = jnp.einsum("bqgmd,bkgd->bgmqk", query * query.shape[-1] ** -0.5, key)
    return jnp.einsum("bgmqk,bkgd->bqgmd", _kept_shares(how, scores), value)


def attend_alone(how: Computing, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The same where each query has keys and values of its own, all `[batch, sequence, group, head,
    size]`."""
    scores = jnp.einsum("bqgmd,bkgmd->bgmqk", query * query.shape[-1] ** -0.5, key)
    return jnp.einsum("bgmqk,bkgmd->bqgmd", _kept_shares(how, scores), value)


def _kept_shares(how: Computing, scores: jax.Array) -> jax.Array:
    shares = shares_of(how, scores)
    if not how.drops:
        return shares
    # By a kernel of its own: frameworks merge softmax with the mask before it.
    return dropped(how, jax.lax.optimization_barrier(shares), seed=1)


def shares_of(how: Computing, scores: jax.Array) -> jax.Array:
    """`causal_shares`, in the type of the scores."""
    wide = scores.astype(jnp.float32) if how.wide_softmax else scores
    return causal_shares(wide, softmax if how.keeps_shares else jax.nn.softmax).astype(scores.dtype)


def causal_shares(
    scores: jax.Array, softmax: Callable[[jax.Array], jax.Array] = jax.nn.softmax
) -> jax.Array:
    """How much each token takes of those up to itself: the softmax of `scores` `[…, token, other
    token]`."""
    row = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
    column = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
    return softmax(jnp.where(row >= column, scores, -1e4))


def feed_forward_weights(hidden: int, width: int) -> Tree:
    return {
        "up": matrix(hidden, width * hidden, inputs=hidden),
        "up_bias": Weight((width * hidden,)),
        "down": matrix(width * hidden, hidden, inputs=width * hidden),
        "down_bias": Weight((hidden,)),
    }


def feed_forward(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    wide = gelu(product(how, "bsh,hw->bsw", x, weights["up"]) + weights["up_bias"])
    down = product(how, "bsw,wh->bsh", wide, weights["down"], again=True)
    added = down + weights["down_bias"]
    return dropped(how, added, seed=3)


def embedding_weights(vocab: int, sequence: int, hidden: int, tied: bool = False) -> Tree:
    """Tokens and positions, the normalisation of what they sum up to or of the last block's result,
    and the product that makes logits."""
    weights = {
        "tokens": Weight((vocab, hidden), 0.02),
        "positions": Weight((sequence, hidden), 0.02),
        "norm": norm_weights(hidden),
        "head_bias": Weight((vocab,)),
    }
    return weights if tied else {**weights, "head": matrix(hidden, vocab, inputs=hidden)}


def embed(weights: Tree, tokens: jax.Array, how: Computing) -> jax.Array:
    x = looked_up(weights["tokens"], tokens, how) + weights["positions"]
    return norm(x, weights["norm"]) if how.normalizes_sums else x


def looked_up(table: jax.Array, tokens: jax.Array, how: Computing) -> jax.Array:
    """The rows of a table that tokens stand for."""
    if how.looks_up_by_product:
        rows = jax.nn.one_hot(tokens, table.shape[0], dtype=table.dtype)
        return jnp.einsum("bsv,vh->bsh", rows, table)
    return jnp.take(table, tokens, axis=0, mode="clip")


def token_loss(x: jax.Array, weights: Tree, labels: jax.Array, how: Computing) -> jax.Array:
    """Mean cross entropy of the next token; the head is the embedding where it has no weight of its
    own."""
    x = x if how.normalizes_sums else norm(x, weights["norm"])
    if "head" in weights:
        logits = plain_product("bsh,hv->bsv", x, weights["head"])
    else:
        logits = jnp.einsum("bsh,vh->bsv", x, weights["tokens"])
    return mean_entropy(logits + weights["head_bias"], labels, how)


def mean_entropy(logits: jax.Array, labels: jax.Array, how: Computing) -> jax.Array:
    return jnp.mean(_ENTROPIES[how.entropy](logits, labels))


def token_batch(batch: int, sequence: int) -> dict[str, Any]:
    """Shapes of the inputs of a step."""
    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return {"tokens": tokens, "labels": tokens}

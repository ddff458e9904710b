"""DeepSeek-V3 as in arXiv 2412.19437, section 2.1: attention whose keys and values are made from a
short vector a token (multi-head latent attention), and routed experts beside one that every token
passes.

A token goes to the experts of its largest scores. `group` tokens are routed together, of which an
expert takes at most `capacity`, as in GShard: DeepSeek's own kernels drop none. The bias that
balances experts without a loss, node-limited routing and the prediction of a second token are left
out."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from shardopt.models.blocks import attended, block, plain_product, product
from shardopt.models.computing import PLAIN, Computing
from shardopt.models.kernels import gated_silu, rms_norm
from shardopt.models.llama import rotated
from shardopt.models.specs import DeepseekSpec
from shardopt.models.transformer import (
    Batch,
    Tree,
    looked_up,
    mean_entropy,
    named_blocks,
    shares_of,
)
from shardopt.models.weights import Weight, matrix


def weights(spec: DeepseekSpec) -> Tree:
    hidden = spec.hidden
    dense = _block_weights(spec) | {"feed_forward": _gated(hidden, spec.ffn)}
    sparse = _block_weights(spec) | {
        "feed_forward": _gated(hidden, spec.shared * spec.expert_ffn),
        "router": matrix(hidden, spec.experts, inputs=hidden),
        "experts": _gated(hidden, spec.expert_ffn, spec.experts),
    }
    ends = {
        "tokens": Weight((spec.vocab, hidden), 0.02),
        "norm": Weight((hidden,), fill=1.0),
        "head": matrix(hidden, spec.vocab, inputs=hidden),
    }
    sparse_layers = spec.layers - spec.dense_layers
    return {"ends": ends, "blocks": [dense] * spec.dense_layers + [sparse] * sparse_layers}


def _block_weights(spec: DeepseekSpec) -> Tree:
    """Norms and attention."""
    hidden, queries, latent = spec.hidden, spec.query_rank, spec.latent_rank
    return {
        "norm1": Weight((hidden,), fill=1.0),
        "query_down": matrix(hidden, queries, inputs=hidden),
        "query_norm": Weight((queries,), fill=1.0),
        "query_up": matrix(queries, spec.heads, spec.head + spec.rotary, inputs=queries),
        "latent_down": matrix(hidden, latent + spec.rotary, inputs=hidden),
        "latent_norm": Weight((latent,), fill=1.0),
        "key_up": matrix(latent, spec.heads, spec.head, inputs=latent),
        "value_up": matrix(latent, spec.heads, spec.head, inputs=latent),
        "out": matrix(spec.heads, spec.head, hidden, inputs=spec.heads * spec.head),
        "norm2": Weight((hidden,), fill=1.0),
    }


def _gated(hidden: int, width: int, *experts: int) -> Tree:
    return {
        "gate": matrix(*experts, hidden, width, inputs=hidden),
        "up": matrix(*experts, hidden, width, inputs=hidden),
        "down": matrix(*experts, width, hidden, inputs=width),
    }


def loss(params: Tree, batch: Batch, spec: DeepseekSpec, how: Computing = PLAIN) -> jax.Array:
    ends = params["ends"]
    x = looked_up(ends["tokens"], batch["tokens"], how)
    step = block(how, partial(_block, spec=spec, how=how))
    for name, weights in named_blocks(params["blocks"]):
        with jax.named_scope(name):
            x = step(x, weights)
    logits = plain_product("bsh,hv->bsv", rms_norm(x, ends["norm"]), ends["head"])
    return mean_entropy(logits, batch["labels"], how)


def _block(x: jax.Array, weights: Tree, spec: DeepseekSpec, how: Computing) -> jax.Array:
    x = x + _attention(rms_norm(x, weights["norm1"]), weights, spec, how)
    y = rms_norm(x, weights["norm2"])
    passed = _feed_forward(y, weights["feed_forward"], how)
    if "experts" in weights:
        passed = passed + _mixture(y, weights, spec, how)
    return x + passed


def _attention(x: jax.Array, weights: Tree, spec: DeepseekSpec, how: Computing) -> jax.Array:
    """Causal self attention of `x` `[batch, sequence, hidden]`: a part of each query and key knows
    positions, and of the keys that part is one for all heads (equations 1 to 11)."""
    queries = rms_norm(product(how, "bsh,hr->bsr", x, weights["query_down"]), weights["query_norm"])
    query = product(how, "bsr,rnd->bsnd", queries, weights["query_up"])
    joined = product(how, "bsh,hr->bsr", x, weights["latent_down"])
    latent = rms_norm(joined[..., : spec.latent_rank], weights["latent_norm"])
    key, value = (product(how, "bsr,rnd->bsnd", latent, weights[n]) for n in ("key_up", "value_up"))
    mixed = attended(
        how,
        partial(_attend, how),
        query[..., : spec.head],
        rotated(query[..., spec.head :]),
        key,
        rotated(joined[..., spec.latent_rank :]),
        value,
    )
    return product(how, "bsnd,ndh->bsh", mixed, weights["out"])


def _attend(
    how: Computing,
    query: jax.Array,
    turned_query: jax.Array,
    key: jax.Array,
    turned_key: jax.Array,
    value: jax.Array,
) -> jax.Array:
    scores = jnp.einsum("bqnd,bknd->bnqk", query, key)
    scores = scores + jnp.einsum("bqnr,bkr->bnqk", turned_query, turned_key)
    scale = (query.shape[-1] + turned_query.shape[-1]) ** -0.5
    return jnp.einsum("bnqk,bknd->bqnd", shares_of(how, scores * scale), value)


def _feed_forward(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    gate, up = (product(how, "bsh,hw->bsw", x, weights[name]) for name in ("gate", "up"))
    return product(how, "bsw,wh->bsh", gated_silu(gate, up), weights["down"])


def _mixture(x: jax.Array, weights: Tree, spec: DeepseekSpec, how: Computing) -> jax.Array:
    """The routed experts' answer to `x` `[batch, sequence, hidden]`."""
    grouped = x.reshape(-1, spec.group, spec.hidden)
    scores = plain_product("gsm,me->gse", grouped, weights["router"]).astype(jnp.float32)
    combine = _routing(jax.nn.sigmoid(scores), spec).astype(x.dtype)
    dispatch = (combine > 0).astype(x.dtype)
    experts = weights["experts"]
    inputs = jnp.einsum("gsec,gsm->egcm", dispatch, grouped)
    gate, up = (product(how, "egcm,emw->egcw", inputs, experts[name]) for name in ("gate", "up"))
    outputs = product(how, "egcw,ewm->egcm", gated_silu(gate, up), experts["down"])
    return jnp.einsum("gsec,egcm->gsm", combine, outputs).reshape(x.shape)


def _routing(scores: jax.Array, spec: DeepseekSpec) -> jax.Array:
    """Weights `[group, token, expert, slot]` of the `active` experts of each token, from `scores`
    `[group, token, expert]`; they add up to 1 before tokens are dropped. Slots are given out in the
    order of the tokens."""
    least = jax.lax.stop_gradient(jnp.sort(scores, axis=-1)[..., -spec.active, None])
    chosen = scores >= least
    kept = jnp.where(chosen, scores, 0.0)
    shares = kept / jnp.sum(kept, axis=-1, keepdims=True)
    place = jnp.cumsum(chosen.astype(jnp.int32), axis=1) - 1
    slots = jax.lax.broadcasted_iota(jnp.int32, (*place.shape, spec.capacity), 3)
    return jnp.where(slots == place[..., None], shares[..., None], 0.0)

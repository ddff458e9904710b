"""LLaMA as in arXiv 2302.13971 and 2307.09288: root-mean-square norms, rotary positions, a feed
forward part gated by SiLU, and heads of keys and values that several heads of queries share."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from shardopt.models.blocks import attended, block, plain_product, product
from shardopt.models.computing import PLAIN, Computing
from shardopt.models.kernels import gated_silu, rms_norm
from shardopt.models.passes import alone, gated_silu_in_passes, rms_norm_in_passes
from shardopt.models.specs import LlamaSpec
from shardopt.models.transformer import (
    Batch,
    Tree,
    attend_alone,
    attend_in_groups,
    looked_up,
    mean_entropy,
    named_blocks,
)
from shardopt.models.weights import Weight, matrix

# The angle of a pair of numbers turns once in so many tokens, at the slowest.
_ROTARY_BASE = 10000.0


def weights(spec: LlamaSpec) -> Tree:
    hidden, size = spec.hidden, spec.head_size
    shared = spec.heads // spec.kv_heads
    block = {
        "norm1": Weight((hidden,), fill=1.0),
        "query": matrix(hidden, spec.kv_heads, shared, size, inputs=hidden),
        "key": matrix(hidden, spec.kv_heads, size, inputs=hidden),
        "value": matrix(hidden, spec.kv_heads, size, inputs=hidden),
        "out": matrix(spec.kv_heads, shared, size, hidden, inputs=hidden),
        "norm2": Weight((hidden,), fill=1.0),
        "gate": matrix(hidden, spec.ffn, inputs=hidden),
        "up": matrix(hidden, spec.ffn, inputs=hidden),
        "down": matrix(spec.ffn, hidden, inputs=spec.ffn),
    }
    ends = {
        "tokens": Weight((spec.vocab, hidden), 0.02),
        "norm": Weight((hidden,), fill=1.0),
        "head": matrix(hidden, spec.vocab, inputs=hidden),
    }
    return {"ends": ends, "blocks": [block] * spec.layers}


def loss(params: Tree, batch: Batch, how: Computing = PLAIN) -> jax.Array:
    ends = params["ends"]
    x = looked_up(ends["tokens"], batch["tokens"], how)
    step = block(how, partial(_block, how=how))
    for name, weights in named_blocks(params["blocks"]):
        with jax.named_scope(name):
            x = step(x, weights)
    logits = plain_product("bsh,hv->bsv", _normalized(how, x, ends["norm"]), ends["head"])
    return mean_entropy(logits, batch["labels"], how)


def _block(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    x = _added(how, x, _attention(_normalized(how, x, weights["norm1"]), weights, how))
    y = _normalized(how, x, weights["norm2"])
    gate = product(how, "bsh,hw->bsw", y, weights["gate"])
    up = product(how, "bsh,hw->bsw", y, weights["up"], again=True)
    gated = gated_silu_in_passes(gate, up) if how.in_passes else gated_silu(gate, up)
    return _added(how, x, product(how, "bsw,wh->bsh", gated, weights["down"]))


def _added(how: Computing, x: jax.Array, part: jax.Array) -> jax.Array:
    return alone(x + part) if how.in_passes else x + part


def _normalized(how: Computing, x: jax.Array, gain: jax.Array) -> jax.Array:
    return rms_norm_in_passes(x, gain) if how.in_passes else rms_norm(x, gain)


def _attention(x: jax.Array, weights: Tree, how: Computing) -> jax.Array:
    """Causal self attention of `x` `[batch, sequence, hidden]`; group g of the queries reads keys
    and values g."""
    query = product(how, "bsh,hgmd->bsgmd", x, weights["query"])
    key = product(how, "bsh,hgd->bsgd", x, weights["key"], again=True)
    value = product(how, "bsh,hgd->bsgd", x, weights["value"])
    turned = (_turned(how, query), _turned(how, key))
    if how.repeats_keys and query.shape[-2] > 1:
        heads = query.shape[-2]
        each = (turned[0], _repeated(turned[1], heads), _repeated(value, heads))
        mixed = attended(how, partial(attend_alone, how), *each)
    else:
        mixed = attended(how, partial(attend_in_groups, how), *turned, value)
    return product(how, "bqgmd,gmdh->bqh", mixed, weights["out"], again=True)


def _repeated(x: jax.Array, heads: int) -> jax.Array:
    """Keys or values `[batch, sequence, group, size]` for so many heads of each group, written."""
    shape = (*x.shape[:-1], heads, x.shape[-1])
    return alone(jnp.broadcast_to(x[..., None, :], shape))


def _turned(how: Computing, x: jax.Array) -> jax.Array:
    if not how.rotates_in_passes:
        return rotated(x)
    turned = alone(rotated(alone(x.astype(jnp.float32))))
    return alone(turned.astype(x.dtype)) if how.in_passes else turned.astype(x.dtype)


def rotated(x: jax.Array) -> jax.Array:
    """Each pair of the last dimension of `x` `[batch, sequence, …, size]` turned by an angle that
    grows with the position (arXiv 2104.09864); a pair is two numbers half of the size apart."""
    half = x.shape[-1] // 2
    speed = _ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * speed
    angles = angles.reshape(1, x.shape[1], *(1,) * (x.ndim - 3), half)
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        (first * cosine - second * sine, second * cosine + first * sine), axis=-1
    )

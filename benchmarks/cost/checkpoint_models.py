"""Programs with `jax.checkpoint` in the ways that people use it: losses of a small model of two
blocks, and steps of the example GPT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from examples import gpt

Params = dict[str, Any]
Loss = Callable[[Params, jax.Array, jax.Array], jax.Array]
ROWS, LENGTH, WIDTH = 8, 4, 8


def init_params(width: int = WIDTH) -> Params:
    names = ("up", "down", "query", "key", "value", "out")
    keys = jax.random.split(jax.random.key(0), 3)
    blocks = [
        {
            name: jax.random.normal(k, (width, width)) / 4
            for name, k in zip(names, each, strict=True)
        }
        for each in (jax.random.split(key, len(names)) for key in keys[:2])
    ]
    return {"blocks": blocks, "head": jax.random.normal(keys[2], (width, width)) / 4}


def batch(rows: int = ROWS, length: int = LENGTH, width: int = WIDTH) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (rows, length, width))


def mlp(p: Params, x: jax.Array) -> jax.Array:
    hidden = checkpoint_name(jax.nn.gelu(x @ p["up"]), "hidden")
    return x + checkpoint_name(hidden @ p["down"], "out")


def attention(p: Params, x: jax.Array) -> jax.Array:
    query, key, value = (x @ p[name] for name in ("query", "key", "value"))
    _, length, width = x.shape
    scores = jnp.einsum("bqd,bkd->bqk", query, key) / width**0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + jnp.einsum("bqk,bkd->bqd", weights, value) @ p["out"]


def dropout(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return mlp(p, jnp.where(kept, x / 0.9, 0.0))


def head(p: Params, x: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.log_softmax(x @ p["head"]) ** 2)


def in_blocks(block: Callable[[Params, jax.Array], jax.Array]) -> Loss:
    def loss(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        for number in range(2):
            x = block(p["blocks"][number], x)
        return head(p, x)

    return loss


def scanned(**options: Any) -> Loss:
    def loss(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, block: (mlp(block, x), None), **options)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *p["blocks"])
        return head(p, jax.lax.scan(body, x, stacked)[0])

    return loss


def nested(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    inner = jax.checkpoint(mlp)
    outer = jax.checkpoint(lambda p, x: attention(p, inner(p, jnp.sin(x))))
    return in_blocks(outer)(p, x, key)


def around_two_blocks(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    """A stage ends inside of what is computed again."""
    both = jax.checkpoint(lambda p, x: mlp(p["blocks"][1], mlp(p["blocks"][0], x)))
    return head(p, both(p, x))


def with_dropout(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    block = jax.checkpoint(dropout)
    for number, each in enumerate(jax.random.split(key, 2)):
        x = block(p["blocks"][number], x, each)
    return head(p, x)


def with_static_arguments(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    @partial(jax.checkpoint, static_argnums=(2,))
    def block(p: Params, x: jax.Array, kind: str) -> jax.Array:
        return attention(p, x) if kind == "attention" else mlp(p, x)

    x = block(p["blocks"][0], x, "attention")
    return head(p, block(p["blocks"][1], x, "mlp"))


class Block:
    """What `flax.linen.remat` does to a module: its variables are an argument of what is
    checkpointed, its random keys are made inside."""

    def __init__(self, variables: Params) -> None:
        self.variables = variables

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda v, x, key: dropout(v, x, jax.random.fold_in(key, 3)))(
            self.variables, x, key
        )


def module_with_remat(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    for number in range(2):
        x = Block(p["blocks"][number])(x, jax.random.fold_in(key, number))
    return head(p, x)


def vmapped(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    """A loss a row; gradients of the mean."""
    row = jax.checkpoint(lambda p, x: jnp.tanh(mlp(p, x)))
    losses = jax.vmap(lambda x: head(p, row(p["blocks"][1], row(p["blocks"][0], x))))
    return jnp.mean(losses(x))


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))


POLICIES = jax.checkpoint_policies
GPT_POLICIES = (
    "everything_saveable",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "nothing_saveable",
)
LOSSES: dict[str, Loss] = {
    "plain": in_blocks(jax.checkpoint(mlp)),
    "nothing_saveable": in_blocks(jax.checkpoint(mlp, policy=POLICIES.nothing_saveable)),
    "everything_saveable": in_blocks(jax.checkpoint(mlp, policy=POLICIES.everything_saveable)),
    "checkpoint_dots": in_blocks(jax.checkpoint(attention, policy=POLICIES.checkpoint_dots)),
    "dots_with_no_batch_dims": in_blocks(
        jax.checkpoint(attention, policy=POLICIES.checkpoint_dots_with_no_batch_dims)
    ),
    "save_only_these_names": in_blocks(
        jax.checkpoint(mlp, policy=POLICIES.save_only_these_names("hidden"))
    ),
    "nested": nested,
    "scan": scanned(prevent_cse=False),
    "scan_with_barriers": scanned(),
    "module": module_with_remat,
    "prevent_cse": in_blocks(jax.checkpoint(mlp, prevent_cse=False)),
    "whole_loss": jax.checkpoint(in_blocks(mlp)),
    "around_two_blocks": around_two_blocks,
    "attention": in_blocks(jax.checkpoint(attention)),
    "dropout": with_dropout,
    "static_argnums": with_static_arguments,
    "vmap": vmapped,
    "custom_vjp": in_blocks(jax.checkpoint(lambda p, x: clipped(jnp.tanh(mlp(p, x))))),
}


def make_step(loss: Loss) -> Callable[..., tuple[Params, jax.Array]]:
    def step(p: Params, x: jax.Array, key: jax.Array) -> tuple[Params, jax.Array]:
        value, grads = jax.value_and_grad(loss)(p, x, key)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    return step


def gpt_step(
    config: gpt.Config,
    rows: int,
    policy: str,
    *,
    is_scanned: bool = False,
    prevent_cse: bool = True,
) -> tuple[gpt.Params, jax.Array, Callable[..., tuple[gpt.Params, jax.Array]]]:
    """Weights, tokens and a step of gradient descent of the example GPT, whose blocks are
    checkpointed under `policy`, or are not ("none"), and stand in a scan, or one by one."""

    def block(x: jax.Array, p: gpt.Params) -> jax.Array:
        x = x + gpt._attention(gpt._norm(x, p["norm1"]), p, config)
        return x + jax.nn.gelu(gpt._norm(x, p["norm2"]) @ p["up"]) @ p["down"]

    wrapped = block
    if policy != "none":
        wrapped = jax.checkpoint(block, policy=getattr(POLICIES, policy), prevent_cse=prevent_cse)

    def loss(p: gpt.Params, tokens: jax.Array) -> jax.Array:
        x = p["embed"][tokens[:, :-1]] + p["position"]
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, each: (wrapped(x, each), None), x, p["blocks"])
        else:
            for each in p["blocks"]:
                x = wrapped(x, each)
        logits = jax.nn.log_softmax(gpt._norm(x, p["norm"]) @ p["embed"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()

    def step(p: gpt.Params, tokens: jax.Array) -> tuple[gpt.Params, jax.Array]:
        value, grads = jax.value_and_grad(loss)(p, tokens)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    tokens = jax.random.randint(jax.random.key(1), (rows, config.length + 1), 0, config.vocab)
    params = gpt.init_params(config, jax.random.key(0))
    if is_scanned:
        params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["blocks"])
    return params, tokens, step

"""A mixture of experts in plain JAX, sharded over one mesh, under the user's own `jax.jit`.

    python -m examples.moe [--experts 8] [--hidden 64] [--width 256]

1. Plan the train step for a mesh of four CPU devices with `shardopt.shardings`; print where every
   argument lies. Nothing in the model says that experts are to be split: the solver puts different
   ones on different devices, and what is exchanged are the tokens.
2. Train with `jax.jit(plan.constrained)`, and print every loss beside the one of one device. The
   exit code is 1 if they differ, or if every device holds all experts.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

import shardopt
from examples.losses import compare

STEPS, TOKENS = 5, 256
OPTIMIZER = optax.adam(1e-3)


def init_params(experts: int, hidden: int, width: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "router": 0.1 * jax.random.normal(keys[0], (hidden, experts)),
        "up": jax.random.normal(keys[1], (experts, hidden, width)) / hidden**0.5,
        "down": jax.random.normal(keys[2], (experts, width, hidden)) / width**0.5,
    }


def mixture(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Every token `x[t]` goes to the expert with the highest gate, as long as that one has room for
    it: twice the tokens that an even split would give each (Switch Transformer, section 2)."""
    tokens, experts = x.shape[0], params["router"].shape[1]
    room = 2 * tokens // experts
    gates = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
    place = jnp.cumsum(chosen, axis=0) * chosen - 1  # of each token with its expert
    dispatch = jax.nn.one_hot(place, room) * chosen[..., None]  # [token, expert, place]
    rows = jnp.einsum("td,tep->epd", x, dispatch)
    rows = jax.nn.gelu(jnp.einsum("epd,edf->epf", rows, params["up"]))
    rows = jnp.einsum("epf,efd->epd", rows, params["down"])
    return jnp.einsum("epd,tep->td", rows, dispatch * jnp.max(gates, axis=-1)[:, None, None])


def train_step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((x + mixture(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def batch(step: int, hidden: int) -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.key(step), (TOKENS, hidden))
    return x, jnp.sin(x)


def train(step_fn: Any, params: Any, state: Any, hidden: int) -> tuple[list[jax.Array], Any]:
    losses = []
    for step in range(STEPS):
        params, state, loss = step_fn(params, state, *batch(step, hidden))
        losses.append(loss)
    return losses, params


def main() -> int:
    parser = argparse.ArgumentParser(description="Shard a mixture of experts over one mesh.")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    console = Console()
    jax.config.update("jax_num_cpu_devices", 4)

    params = init_params(args.experts, args.hidden, args.width)
    state = OPTIMIZER.init(params)
    plain, _ = train(jax.jit(train_step), params, state, args.hidden)

    mesh = jax.make_mesh((4,), ("expert",))
    arguments = (params, state, *batch(0, args.hidden))
    plan = shardopt.shardings(train_step, *arguments, mesh=mesh)
    table = Table("argument", "shape", "sharding", title=repr(plan))
    placed = jax.tree.leaves_with_path(plan.in_shardings)
    for (path, sharding), leaf in zip(placed, jax.tree.leaves(arguments), strict=True):
        table.add_row(jax.tree_util.keystr(path), str(leaf.shape), str(sharding.spec))
    console.print(table)

    own_jit = jax.jit(plan.constrained, donate_argnums=(0, 1))
    placed_state = jax.device_put((params, state), plan.in_shardings[:2])
    losses, trained = train(own_jit, *placed_state, args.hidden)
    same = compare(console, "training", plain, losses)
    here = trained["up"].addressable_shards[0].data.shape[0]
    console.print(f"{here} of {args.experts} experts on each device")
    return 0 if same and here < args.experts else 1


if __name__ == "__main__":
    sys.exit(main())

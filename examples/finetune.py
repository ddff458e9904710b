"""Fine-tuning of a pretrained GPT in plain JAX: few parameters are trained, most are frozen.

    python -m examples.finetune [--layers 4] [--hidden 64] [--train norm1 norm2 norm out]

This stands for fine-tuning of a library's pretrained model, whose parameters are a tree of arrays
and whose call is a function of them: here `loss_fn` of `examples/gpt.py`, with parameters that
plain JAX has trained for some steps.

1. Pretrain on sequences that count up.
2. Fine-tune on sequences that count down, on a pipeline of two stages. The parameters with the
   names of `--train` are state, with their optimizer moments, and only they have gradients. The
   others are sent to the workers once and stay there.
3. Print every loss beside the one of plain JAX; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console

import shardopt
from examples.gpt import Config, Params, init_params, loss_fn, make_train_step
from examples.losses import compare

STEPS, PRETRAINED_STEPS, BATCH = 6, 20, 8
OPTIMIZER = optax.adamw(1e-2)


def batch(config: Config, step: int, stride: int) -> jax.Array:
    """Sequences that count from a random token in steps of `stride`."""
    first = jax.random.randint(jax.random.key(step), (BATCH, 1), 0, config.vocab)
    return (first + stride * jnp.arange(config.length + 1)) % config.vocab


def pretrained(config: Config) -> Params:
    """What would be read from a file."""
    optimizer, train_step = make_train_step(config, learning_rate=1e-2)
    params, step_fn = init_params(config, jax.random.key(0)), jax.jit(train_step)
    state = optimizer.init(params)
    for step in range(PRETRAINED_STEPS):
        params, state, _ = step_fn(params, state, batch(config, step, 1))
    return params


def partition(params: Params, names: Collection[str]) -> tuple[Params, Params]:
    """Two trees with None in places of the other: parameters with these names, and all others."""

    def part(of_names: bool) -> Params:
        return jax.tree.map_with_path(
            lambda path, leaf: leaf if (path[-1].key in names) == of_names else None, params
        )

    return part(True), part(False)


def train_step(
    trained: Params, state: Any, frozen: Params, tokens: jax.Array, config: Config
) -> Any:
    def loss_of(trained: Params) -> jax.Array:
        def either(one: Any, other: Any) -> Any:
            return other if one is None else one

        params = jax.tree.map(either, trained, frozen, is_leaf=lambda leaf: leaf is None)
        return loss_fn(params, tokens, config)

    loss, grads = jax.value_and_grad(loss_of)(trained)
    updates, state = OPTIMIZER.update(grads, state, trained)
    return optax.apply_updates(trained, updates), state, loss


def train(step_fn: Any, trained: Params, frozen: Params, config: Config) -> list[jax.Array]:
    state, losses = OPTIMIZER.init(trained), []
    for step in range(STEPS):
        trained, state, loss = step_fn(trained, state, frozen, batch(config, step, -1), config)
        losses.append(loss)
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tune some parameters of a GPT.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--train", nargs="+", default=["norm1", "norm2", "norm", "out"])
    args = parser.parse_args()
    console = Console()
    config = Config(layers=args.layers, hidden=args.hidden)
    trained, frozen = partition(pretrained(config), args.train)
    plain = train(jax.jit(train_step, static_argnames="config"), trained, frozen, config)

    planned_step = shardopt.parallelize(
        train_step,
        cluster="cpu-test:1x4",
        donate_argnums=(0, 1),
        static_argnames="config",
        microbatches=4,
        stages=2,
        submesh="1x2",
        lazy_state=True,
        quick_compile=True,
    )
    with planned_step:
        arguments = (trained, OPTIMIZER.init(trained), frozen, batch(config, 0, -1))
        console.print(planned_step.plan(*arguments, config).table())
        losses = train(planned_step, trained, frozen, config)

    counts = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (trained, frozen)]
    console.print(f"{counts[0]:,} numbers are trained, {counts[1]:,} are frozen")
    return 0 if compare(console, "fine-tuning", plain, losses) else 1


if __name__ == "__main__":
    sys.exit(main())

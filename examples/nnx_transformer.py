"""A transformer of Flax NNX, trained on a pipeline with checkpoints and evaluated beside training.

    python -m examples.nnx_transformer [--layers 4] [--hidden 32] [--checkpoints FOLDER]

1. Train three steps on two stages of two devices. Each step is followed by an evaluation on the
   same workers, which reads the weights where training has left them.
2. Stop the workers, and go on from the checkpoint under another plan: one stage of four devices.
3. Print every loss beside the one of `nnx.jit` on one device; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from rich.console import Console

import shardopt
from examples.losses import compare

VOCAB, LENGTH, BATCH = 64, 16, 8
STEPS, SAVED = 5, 3  # in all, and before the workers stop


class Block(nnx.Module):
    def __init__(self, hidden: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(hidden, rngs=rngs), nnx.LayerNorm(hidden, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, hidden, decode=False, rngs=rngs)
        self.up = nnx.Linear(hidden, 4 * hidden, rngs=rngs)
        self.down = nnx.Linear(4 * hidden, hidden, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        causal = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm1(x), mask=causal)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    def __init__(self, layers: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, hidden, rngs=rngs)
        self.blocks = nnx.List([Block(hidden, rngs) for _ in range(layers)])
        self.head = nnx.Linear(hidden, VOCAB, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_fn(model: Transformer, tokens: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens`, int32 `[batch, length + 1]`."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train_step(model: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, tokens)
    optimizer.update(model, grads)
    return loss


def modules(args: argparse.Namespace) -> tuple[Transformer, nnx.Optimizer]:
    model = Transformer(args.layers, args.hidden, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def batch(step: int) -> jax.Array:
    """Sequences to learn: each counts up from a random token."""
    first = jax.random.randint(jax.random.key(step), (BATCH, 1), 0, VOCAB)
    return (first + jnp.arange(LENGTH + 1)) % VOCAB


def train(args: argparse.Namespace, folder: Path, console: Console) -> tuple[list[Any], list[Any]]:
    """Losses of training and of evaluations, of two runs with a checkpoint between them."""
    losses, evaluated = [], []
    options: dict[str, Any] = {"cluster": "cpu-test:1x4", "lazy_state": True, "quick_compile": True}
    saving = shardopt.CheckpointOptions(folder, every=SAVED)
    piped = shardopt.parallelize(
        train_step, microbatches=2, stages=2, submesh="1x2", checkpoints=saving, **options
    )
    model, optimizer = modules(args)
    with piped:
        console.print(piped.plan(model, optimizer, batch(0)).table())
        evaluate = piped.beside(loss_fn)
        for step in range(SAVED):
            losses.append(piped(model, optimizer, batch(step)))
            evaluated.append(evaluate(model, batch(STEPS)))

    model, optimizer = modules(args)  # of another process, say
    sharded = shardopt.parallelize(train_step, stages=1, **options)
    with sharded:
        console.print(repr(sharded.plan(model, optimizer, batch(0))))
        (state,) = sharded.start(model, optimizer, batch(0)).load(folder)
        nnx.update((model, optimizer), state)
        losses += [sharded(model, optimizer, batch(step)) for step in range(SAVED, STEPS)]
    return losses, evaluated


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a transformer of Flax NNX on a pipeline.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--checkpoints", type=Path, help="an empty folder (a temporary one)")
    args = parser.parse_args()
    console = Console()

    model, optimizer = modules(args)
    plain, plain_evaluated = [], []
    for step in range(STEPS):
        plain.append(nnx.jit(train_step)(model, optimizer, batch(step)))
        plain_evaluated.append(nnx.jit(loss_fn)(model, batch(STEPS)))

    with tempfile.TemporaryDirectory() as temporary:
        losses, evaluated = train(args, args.checkpoints or Path(temporary), console)
    same = compare(console, "training", plain, losses)
    return 0 if compare(console, "evaluation", plain_evaluated[:SAVED], evaluated) and same else 1


if __name__ == "__main__":
    sys.exit(main())

"""A perceptron of Equinox, trained on a pipeline.

    python -m examples.equinox_mlp [--depth 4] [--width 64] [--backend local|process|ray]

1. Plan the step for two stages of two devices and four microbatches; print the plan.
2. Train. Model and optimizer state stay on the workers: `lazy_state` hands out arrays that are
   fetched only when someone looks at them.
3. Print every loss beside the one of `eqx.filter_jit` on one device, and compare the models at the
   end; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import shardopt
from examples.losses import TOLERANCE, compare

STEPS, BATCH, INPUTS, OUTPUTS = 5, 16, 8, 4
OPTIMIZER = optax.adam(1e-2)


def loss_fn(model: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit
def train_step(model: eqx.nn.MLP, state: Any, x: jax.Array, y: jax.Array) -> Any:
    """The activation function and the sizes inside of the model are part of the program."""
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
    updates, state = OPTIMIZER.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


def batch(step: int) -> tuple[jax.Array, jax.Array]:
    """Rows to learn from: the outputs are a fixed function of the inputs."""
    x = jax.random.normal(jax.random.key(step), (BATCH, INPUTS))
    return x, jnp.sin(x[:, :OUTPUTS]) * x[:, OUTPUTS:]


def train(step_fn: Any, model: eqx.nn.MLP) -> tuple[list[jax.Array], eqx.nn.MLP]:
    """Losses and the model after them: the same loop for the plain step and the planned one."""
    state, losses = OPTIMIZER.init(eqx.filter(model, eqx.is_array)), []
    for step in range(STEPS):
        model, state, loss = step_fn(model, state, *batch(step))
        losses.append(loss)
    return losses, jax.tree.map(np.asarray, eqx.filter(model, is_array))


def is_array(leaf: object) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, shardopt.StateArray)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a perceptron of Equinox on a pipeline.")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--backend", choices=("local", "process", "ray"), default="local")
    args = parser.parse_args()
    console = Console()

    model = eqx.nn.MLP(INPUTS, OUTPUTS, args.width, args.depth, key=jax.random.key(0))
    plain, plain_model = train(train_step, model)

    planned_step = shardopt.parallelize(
        train_step,
        cluster="cpu-test:1x4",
        donate_argnums=(0, 1),  # the state: arguments that the step replaces
        microbatches=4,
        stages=2,
        submesh="1x2",
        lazy_state=True,
        quick_compile=True,
        backend=args.backend,
    )
    with planned_step:
        state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
        plan = planned_step.plan(model, state, *batch(0))
        console.print(plan.table(), plan.timeline(), sep="\n")
        losses, trained = train(planned_step, model)

    same = compare(console, "training", plain, losses)
    differences = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), trained, plain_model)
    worst = max(jax.tree.leaves(differences))
    console.print(f"largest difference of a weight after {STEPS} steps: {worst:.1e}")
    return 0 if same and worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())

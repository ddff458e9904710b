"""The update rules of the paper's experiments: AdamW (GPT), Adafactor (MoE), momentum
(Wide-ResNet).

Each keeps something of every weight and changes both in float32. What depends on the number of the
step alone is one scalar for all weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardopt.models.weights import Weight

Kept = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """`keep` describes the state of a weight; `pace(step)`, steps counted from 1, is what all
    updates share.

    `update(gradient, kept, weight, pace)` is the new weight with its new state.
    """

    keep: Callable[[Weight], Kept]
    pace: Callable[[jax.Array], jax.Array]
    update: Callable[[jax.Array, Kept, jax.Array, jax.Array], tuple[jax.Array, Kept]]


def adamw(
    rate: float = 1e-3, decay: float = 0.01, mean: float = 0.9, square: float = 0.999
) -> Optimizer:
    """Adam with the corrections of both moments in the rate (Kingma and Ba, section 2); matrices
    decay."""

    def keep(weight: Weight) -> Kept:
        return {"mean": Weight(weight.shape), "square": Weight(weight.shape)}

    def pace(step: jax.Array) -> jax.Array:
        count = step.astype(jnp.float32)
        return rate * jnp.sqrt(1 - square**count) / (1 - mean**count)

    def update(
        grad: jax.Array, kept: Kept, weight: jax.Array, pace: jax.Array
    ) -> tuple[jax.Array, Kept]:
        first = mean * kept["mean"] + (1 - mean) * grad
        second = square * kept["square"] + (1 - square) * (grad * grad)
        shrunk = weight * (1 - rate * decay) if weight.ndim > 1 else weight
        return shrunk - pace * (first / (jnp.sqrt(second) + 1e-8)), {
            "mean": first,
            "square": second,
        }

    return Optimizer(keep, pace, update)


def adafactor(rate: float = 1e-2) -> Optimizer:
    """Second moments as means of rows and columns, no first moment (Shazeer and Stern, algorithm
    6).

    Steps are relative to the size of the weights, and clipped. The mixture of experts needs it:
    Adam's twelve bytes a weight, with gradients, do not fit 70B weights into 64 V100."""

    def keep(weight: Weight) -> Kept:
        if len(weight.shape) < 2:
            return {"square": Weight(weight.shape)}
        return {
            "rows": Weight(weight.shape[:-1]),
            "columns": Weight((*weight.shape[:-2], weight.shape[-1])),
        }

    def pace(step: jax.Array) -> jax.Array:
        return 1 - step.astype(jnp.float32) ** -0.8

    def update(
        grad: jax.Array, kept: Kept, weight: jax.Array, pace: jax.Array
    ) -> tuple[jax.Array, Kept]:
        square = grad * grad + 1e-30
        if weight.ndim < 2:
            second = pace * kept["square"] + (1 - pace) * square
            step, new = grad * jax.lax.rsqrt(second), {"square": second}
        else:
            rows = pace * kept["rows"] + (1 - pace) * jnp.mean(square, axis=-1)
            columns = pace * kept["columns"] + (1 - pace) * jnp.mean(square, axis=-2)
            by_row = jax.lax.rsqrt(rows / jnp.mean(rows, axis=-1, keepdims=True))
            step = grad * by_row[..., None] * jax.lax.rsqrt(columns)[..., None, :]
            new = {"rows": rows, "columns": columns}
        size = (
            rate
            * jnp.maximum(1e-3, _root_mean_square(weight))
            / jnp.maximum(1.0, _root_mean_square(step))
        )
        return weight - size * step, new

    return Optimizer(keep, pace, update)


def _root_mean_square(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(x * x))


def momentum(rate: float = 0.1, keep_share: float = 0.9) -> Optimizer:
    """Gradient descent with Nesterov's momentum."""

    def keep(weight: Weight) -> Kept:
        return {"speed": Weight(weight.shape)}

    def pace(step: jax.Array) -> jax.Array:
        return jnp.float32(rate)

    def update(
        grad: jax.Array, kept: Kept, weight: jax.Array, pace: jax.Array
    ) -> tuple[jax.Array, Kept]:
        speed = keep_share * kept["speed"] + grad
        return weight - pace * (grad + keep_share * speed), {"speed": speed}

    return Optimizer(keep, pace, update)

"""Random programs of attention, for plans that split the sequence.

Layers of attention over a batch of sequences, forward or as a step of gradient descent: with a
causal mask or without, with keys and values of their own for each head or shared by two, and with
what enters a layer added to its result or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = dict[str, jax.Array]


@dataclass(frozen=True)
class AttentionShape:
    """`shared` heads of queries read the same keys and values."""

    batch: int
    length: int
    heads: int
    dim: int
    shared: int
    layers: int
    is_masked: bool
    is_residual: bool

    def inputs(self) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
        """Weights, and the batch: `[batch, length, heads · dim]`."""
        hidden, few = self.heads * self.dim, self.heads // self.shared
        shapes = {
            "queries": (hidden, self.heads, self.dim),
            "keys": (hidden, few, self.dim),
            "values": (hidden, few, self.dim),
            "out": (self.heads, self.dim, hidden),
        }
        layer = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        return [layer] * self.layers, np.ones((self.batch, self.length, hidden), np.float32)

    def layer(self, weights: Weights, x: jax.Array) -> jax.Array:
        queries, keys, values = (
            jnp.einsum("bld,dhe->blhe", x, weights[name]) for name in ("queries", "keys", "values")
        )
        if self.shared > 1:
            keys, values = (jnp.repeat(each, self.shared, axis=2) for each in (keys, values))
        scores = jnp.einsum("blhe,bmhe->bhlm", queries, keys)
        if self.is_masked:
            mask = jnp.tril(jnp.ones((self.length, self.length), bool))
            scores = jnp.where(mask, scores, -1e9)
        attended = jnp.einsum("bhlm,bmhe->blhe", jax.nn.softmax(scores, axis=-1), values)
        out = jnp.einsum("blhe,hed->bld", attended, weights["out"])
        return x + out if self.is_residual else out

    def forward(self, weights: list[Weights], x: jax.Array) -> jax.Array:
        for each in weights:
            x = self.layer(each, x)
        return x

    def step(self, weights: list[Weights], x: jax.Array) -> Any:
        def loss_of(weights: list[Weights]) -> jax.Array:
            return jnp.mean(jnp.square(self.forward(weights, x)))

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def random_attention(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function, and arrays for it. Eight devices divide batch, sequence and heads."""
    rng = random.Random(seed)
    shape = AttentionShape(
        batch=rng.choice((8, 16)),
        length=rng.choice((8, 16, 24, 32)),
        heads=rng.choice((8, 16)),
        dim=rng.choice((2, 4, 8)),
        shared=rng.choice((1, 1, 2)),
        layers=rng.choice((1, 2)),
        is_masked=rng.random() < 0.5,
        is_residual=rng.random() < 0.5,
    )
    return shape.step if rng.random() < 0.7 else shape.forward, shape.inputs()

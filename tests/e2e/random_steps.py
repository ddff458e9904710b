"""Random training steps: forward and backward, with checkpoints, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.e2e.test_random_unreduced import OPERATIONS

TRIPS = 3


class RandomStep:
    """Of matrices with the extents that `OPERATIONS` are for: a loss, and its gradients."""

    def __init__(self, seed: int, parts: int = 2, operations: int = 3) -> None:
        rng = np.random.default_rng(seed)
        kinds: tuple[Callable[..., jax.Array], ...] = (_plain, _checkpointed, _looped, _branching)
        self.parts = [
            (kinds[rng.integers(len(kinds))], RandomPart(rng, operations)) for _ in range(parts)
        ]

    def __call__(self, *arguments: jax.Array) -> Any:
        return jax.value_and_grad(self._loss, argnums=tuple(range(len(arguments))))(*arguments)

    def _loss(self, *arguments: jax.Array) -> jax.Array:
        values = list(arguments)
        for kind, part in self.parts:
            values.append(kind(part, *values))
        return jnp.sum(values[-1] * values[-2])


class RandomPart:
    """Each operation reads the values before it, new ones rather than old ones."""

    def __init__(self, rng: np.random.Generator, operations: int) -> None:
        self.drawn = [
            (OPERATIONS[rng.integers(len(OPERATIONS))], rng.geometric(0.5, 2))
            for _ in range(operations)
        ]

    def __call__(self, *arguments: jax.Array) -> jax.Array:
        values = list(arguments)
        for operation, distances in self.drawn:
            first, second = (_before(values, int(distance)) for distance in distances)
            values.append(operation(first, second))
        return jnp.tanh(values[-1])


def _before(values: Sequence[jax.Array], distance: int) -> jax.Array:
    return values[max(-len(values), -distance)]


def _plain(part: RandomPart, *values: jax.Array) -> jax.Array:
    return part(*values)


def _checkpointed(part: RandomPart, *values: jax.Array) -> jax.Array:
    return jax.checkpoint(part)(*values)


def _looped(part: RandomPart, *values: jax.Array) -> jax.Array:
    def iteration(_: jax.Array, value: jax.Array) -> jax.Array:
        return part(*values[:-1], value)

    return jax.lax.fori_loop(0, TRIPS, iteration, values[-1])


def _branching(part: RandomPart, *values: jax.Array) -> jax.Array:
    def other(*values: jax.Array) -> jax.Array:
        return values[-1] - values[0]

    return jax.lax.cond(jnp.sum(values[0]) > 0, part, other, *values)

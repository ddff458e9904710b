"""Weights as descriptions: a tree of `Weight` becomes shapes without memory, or arrays for a small
model."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Weight:
    """A tensor to be trained: drawn with deviation `scale`, or filled with `fill` where no scale is
    given. Of `multiplied` ones all gradients are results of products."""

    shape: tuple[int, ...]
    scale: float | None = None
    fill: float = 0.0
    multiplied: bool = False


class WideSummed(NamedTuple):
    """A weight whose gradient is taken in float32: it is the gradient of `sums`, zeros of that type
    which nothing reads."""

    weight: jax.Array
    sums: jax.Array


def matrix(*shape: int, inputs: int) -> Weight:
    """A weight that keeps the size of what `inputs` numbers make."""
    return Weight(shape, inputs**-0.5, multiplied=True)


def is_weight(leaf: object) -> bool:
    return isinstance(leaf, Weight)


def abstract(tree: Any, dtype: Any) -> Any:
    """The tree as `jax.ShapeDtypeStruct`."""
    return jax.tree.map(
        lambda weight: jax.ShapeDtypeStruct(weight.shape, dtype), tree, is_leaf=is_weight
    )


def draw(tree: Any, seed: int = 0) -> Any:
    """The tree as float32 arrays; a tensor depends on its path and the seed alone."""

    def make(path: Any, weight: Weight) -> jax.Array:
        if weight.scale is None:
            return jnp.full(weight.shape, weight.fill)
        key = jax.random.fold_in(
            jax.random.key(seed), zlib.crc32(jax.tree_util.keystr(path).encode())
        )
        return weight.scale * jax.random.normal(key, weight.shape)

    return jax.tree_util.tree_map_with_path(make, tree, is_leaf=is_weight)


def count(tree: Any) -> int:
    """Numbers in all weights."""
    leaves = jax.tree.leaves(tree, is_leaf=is_weight)
    total = 0
    for weight in leaves:
        size = 1
        for extent in weight.shape:
            size *= extent
        total += size
    return total

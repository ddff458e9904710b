"""State that a step returns without donating it: it goes to the workers and back in every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax import export
from jax.tree_util import tree_flatten_with_path

from shardopt.frontend.calls.state_pairs import state_pairs
from shardopt.support.counts import plural
from shardopt.support.sizes import format_bytes


@dataclass(frozen=True)
class UndonatedState:
    """Arguments by number or name, in order, their bytes, and the numbers of arguments that are
    donated."""

    arguments: tuple[int | str, ...]
    num_bytes: int
    donated: tuple[int, ...]

    def advice(self, names: Sequence[str]) -> str:
        """What it costs, and how to say that it is state; `names` are those of positional
        arguments."""
        numbers = [each for each in self.arguments if isinstance(each, int)]
        by_name = [each for each in self.arguments if isinstance(each, str)]
        words = [
            f"{each} ({names[each]})" if isinstance(each, int) and each < len(names) else str(each)
            for each in self.arguments
        ]
        options = []
        if numbers:
            every = sorted({*numbers, *self.donated})
            options.append(f"donate_argnums={every[0] if len(every) == 1 else tuple(every)}")
        if by_name:
            value = repr(by_name[0] if len(by_name) == 1 else tuple(by_name))
            options.append(f"donate_argnames={value}")
        return (
            f"returns {plural(len(words), 'argument')} {', '.join(words)} anew and does not donate "
            f"{'it' if len(words) == 1 else 'them'}: {format_bytes(self.num_bytes)} go to the "
            f"workers and back in every step; {' and '.join(options)} "
            f"{'lets' if len(options) == 1 else 'let'} the workers keep them"
        )


def undonated_state(
    exported: export.Exported, donated: Collection[int], number_of: Callable[[int], int]
) -> UndonatedState | None:
    """Trees of arguments that come back whole among the results, and of which none is among the
    `donated` flat ones. A single array is not told from what the step computes of it. `number_of`
    says what number an exported argument has for the caller."""
    inputs = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    pairs = state_pairs(inputs, jax.tree.unflatten(exported.out_tree, exported.out_avals))
    found, others, num_bytes = list[int | str](), list[int](), 0
    for argument, leaves, is_tree in _arguments(inputs):
        key = number_of(argument) if isinstance(argument, int) else argument
        if any(leaf in donated for leaf in leaves):
            others.extend([key] if isinstance(key, int) else [])
        elif is_tree and leaves and all(leaf in pairs for leaf in leaves):
            found.append(key)
            num_bytes += sum(_bytes(exported.in_avals[leaf]) for leaf in leaves)
    return UndonatedState(tuple(found), num_bytes, tuple(others)) if found else None


def _arguments(inputs: tuple[Any, Any]) -> Iterator[tuple[int | str, range, bool]]:
    """The arguments with their leaves by number, and whether they are trees."""
    args, kwargs = inputs
    first = 0
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *sorted(kwargs.items())]
    for argument, tree in arguments:
        leaves, _ = tree_flatten_with_path(tree)
        yield argument, range(first, first + len(leaves)), all(path for path, _ in leaves)
        first += len(leaves)


def _bytes(aval: jax.core.ShapedArray) -> int:
    """Those of a key of random numbers are those of its data."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, aval)
    return prod(aval.shape) * np.dtype(aval.dtype).itemsize

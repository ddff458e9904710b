"""Random programs on sorted rows: whatever the pass undoes, they compute what they computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.native import run_native
from shardopt.passes.base import PassContext
from shardopt.passes.importing.inline_calls import InlineCalls
from shardopt.passes.importing.unsort_rows import UnsortRows
from tests.unit.passes.program_evaluation import run_xla

ROWS, WIDTH, KEYS = 6, 3, 4

Array = jax.Array
# What is at hand: keys, their order, its inverse, counts of keys, rows as they stand, weights.
Scope = dict[str, Array]
Rule = Callable[[Array, Scope, np.random.Generator], Array]


def _edges(scope: Scope, rng: np.random.Generator) -> Array:
    """Where groups of sorted rows begin or end, now and then beside that."""
    ends = jnp.cumsum(scope["counts"])
    if rng.random() < 0.5:
        ends = ends - scope["counts"]
    return ends + int(rng.choice([0, 0, 0, 0, 1, -1]))


def _masked(rows: Array, scope: Scope, rng: np.random.Generator) -> Array:
    edges, place = _edges(scope, rng), jnp.arange(len(rows))[:, None]
    compare = rng.choice([jnp.less, jnp.less, jnp.greater_equal, jnp.less_equal])
    mask = compare(place, edges[int(rng.integers(KEYS))])
    return jnp.where(mask, rows, float(rng.choice([0.0, 0.0, 2.0])))


def _grouped(rows: Array, scope: Scope, rng: np.random.Generator) -> Array:
    padding = int(rng.choice([0, 2]))
    value = float(rng.choice([0.0, 0.0, 1.0]))
    tiles = jnp.pad(rows, ((0, padding), (0, 0)), constant_values=value)
    return lax.ragged_dot(tiles, scope["experts"], scope["counts"])[: len(rows)]


_ON_ROWS: dict[str, Rule] = {
    "tanh": lambda x, scope, rng: jnp.tanh(x),
    "plus itself": lambda x, scope, rng: x + 0.5 * x[:, ::-1],
    "weights": lambda x, scope, rng: x @ scope["weights"],
    "shared": lambda x, scope, rng: x * scope["weights"][0],
    "bias of key": lambda x, scope, rng: x + scope["bias"][scope["keys"][scope["order"]]],
    "more rows": lambda x, scope, rng: x * scope["rows"][scope["order"]],
    "masked": _masked,
    "grouped": _grouped,
    "sum of rows": lambda x, scope, rng: x + jnp.sum(x, axis=0) / ROWS,
    # A gradient of it asks whether two roundings of one number are equal.
    "largest": lambda x, scope, rng: x - lax.stop_gradient(jnp.max(x, axis=0)),
    "scores": lambda x, scope, rng: jax.nn.softmax(x @ x.T / 4.0) @ x,
    "columns": lambda x, scope, rng: jnp.concatenate([x[:, 1:], x[:, :1]], axis=1),
    "barrier": lambda x, scope, rng: lax.optimization_barrier(x),
}
# What needs the order of rows; programs have it seldom, or nothing would ever be undone.
_ON_ORDER: dict[str, Rule] = {
    "position": lambda x, scope, rng: x * jnp.arange(len(x))[:, None],
    "real position": lambda x, scope, rng: x + lax.iota(jnp.float32, len(x))[:, None],
    "unsorted rows": lambda x, scope, rng: x + scope["rows"],
    "unsorted keys": lambda x, scope, rng: x * scope["keys"][:, None],
    "shifted": lambda x, scope, rng: jnp.roll(x, 1, axis=0),
    "sums so far": lambda x, scope, rng: jnp.cumsum(x, axis=0),
    "first": lambda x, scope, rng: x - x[:1],
    "some": lambda x, scope, rng: jnp.pad(x[:-2], ((0, 2), (0, 0))),
    "inverse": lambda x, scope, rng: x * scope["inverse"][:, None],
    "wrong way": lambda x, scope, rng: x[scope["order"]],
}
_BACK: dict[str, Rule] = {
    "inverse": lambda x, scope, rng: x[scope["inverse"]],
    "put": lambda x, scope, rng: jnp.zeros_like(x).at[scope["order"]].set(x, unique_indices=True),
    "put anywhere": lambda x, scope, rng: jnp.zeros_like(x).at[scope["order"]].set(x),
    "added": lambda x, scope, rng: jnp.ones_like(x).at[scope["order"]].add(x),
    "by key": lambda x, scope, rng: (
        jnp.zeros((KEYS, x.shape[1])).at[scope["keys"][scope["order"]]].add(x)
    ),
    "in pairs": lambda x, scope, rng: jnp.zeros((3, x.shape[1])).at[scope["order"] // 2].add(x),
    "product": lambda x, scope, rng: x.T @ jnp.tanh(x),
    "sum": lambda x, scope, rng: jnp.sum(x, axis=0),
}


def random_program(seed: int) -> Callable[..., Any]:
    def program(rows: Array, keys: Array, weights: Array, experts: Array, bias: Array) -> Any:
        rng = np.random.default_rng(seed)
        order = jnp.argsort(keys)
        counts = jnp.bincount(keys, length=KEYS)
        scope = {
            "keys": keys,
            "order": order,
            "inverse": jnp.argsort(order),
            "counts": counts,
            "rows": rows,
            "weights": weights,
            "experts": experts,
            "bias": bias,
        }

        def run(rows: Array) -> Array:
            sent = rows[order]
            for _ in range(int(rng.integers(1, 6))):
                rules = _ON_ORDER if rng.random() < 0.07 else _ON_ROWS
                sent = rules[str(rng.choice(list(rules)))](sent, scope, rng)
            back = _BACK[str(rng.choice(list(_BACK)))]
            return back(sent, scope, rng)

        if rng.random() < 0.4:
            return jax.grad(lambda rows: jnp.sum(jnp.sin(run(rows))))(rows)
        return run(rows)

    return program


def _undone(seed: int) -> int:
    """How many sorts are gone; the program is checked."""
    rng = np.random.default_rng(seed)
    arguments = [
        rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        np.maximum(rng.integers(-1, KEYS, ROWS), 0).astype(np.int32),
        rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        rng.normal(size=(KEYS, WIDTH, WIDTH)).astype(np.float32),
        rng.normal(size=(KEYS, WIDTH)).astype(np.float32),
    ]
    lowered = jax.jit(random_program(seed), keep_unused=True).lower(*arguments)
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(lowered.as_text())
        InlineCalls().run(module, PassContext())
        run_native(module, "builtin.module(canonicalize,cse)")
        expected = run_xla(module, arguments)
        context = PassContext()
        UnsortRows().run(module, context)
        module.operation.verify()
        if context.statistics["undone"]:
            for left, right in zip(expected, run_xla(module, arguments), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)
        return int(context.statistics["undone"])


@pytest.mark.parametrize("first", [0, pytest.param(30, marks=pytest.mark.slow)])
def test_random_programs(first: int) -> None:
    count = 16 if first == 0 else 600
    undone = sum(_undone(seed) > 0 for seed in range(first, first + count))
    assert undone > count // 4

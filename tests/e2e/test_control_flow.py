"""Loops and branches as XLA compiles them: numbers of one device, and each planned collective as
often as it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardopt.cost.traffic import agree
from tests.e2e.models import export_step
from tests.e2e.test_sharding_against_xla import Compiled, check_numbers, compile_sharded

Model = tuple[bytes, list[np.ndarray]]


def normal(seed: int, *shape: int) -> jax.Array:
    return 0.1 * jax.random.normal(jax.random.key(seed), shape)


def train(loss: Callable[..., jax.Array], params: Any, *batch: jax.Array) -> Model:
    def step(params: Any, *batch: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return export_step(step, (params,), batch)


def infer(function: Callable[..., Any], *arguments: jax.Array) -> Model:
    return export_step(lambda *arguments: function(*arguments), (), arguments)


@cache
def scanned_mlp() -> Model:
    """Forward and backward loop over stacked weights; activations are stacked by one and read back
    by the other."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            inner, outer = weights
            return x + jax.nn.relu(x @ inner) @ outer, None

        return jnp.sum(lax.scan(layer, x, params)[0] ** 2)

    return train(loss, (normal(0, 3, 32, 64), normal(1, 3, 64, 32)), normal(2, 32, 32))


@cache
def lstm() -> Model:
    """Weights are captured by the loop over time, and their gradients accumulated in it."""

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        def cell(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            hidden, memory = state
            gates = jnp.concatenate([x, hidden], axis=1) @ params[0] + params[1]
            i, g, f, o = jnp.split(gates, 4, axis=1)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
            return (hidden, memory), hidden

        zeros = jnp.zeros((16, 16))
        return jnp.sum(lax.scan(cell, (zeros, zeros), xs)[1] ** 2)

    return train(loss, (normal(0, 32, 64), jnp.zeros(64)), normal(1, 5, 16, 16))


@cache
def nested() -> Model:
    """A loop in a loop, both of which read weights from outside."""

    def function(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        def inner(_: int, x: jax.Array) -> jax.Array:
            return jnp.tanh(x @ v)

        return lax.fori_loop(0, 3, lambda _, x: lax.fori_loop(0, 2, inner, x @ w), x)

    return infer(function, normal(0, 64, 32), normal(1, 32, 32), normal(2, 32, 32))


@cache
def swapped() -> Model:
    """Two carried values change places in every iteration, so they need one sharding."""

    def function(x: jax.Array, y: jax.Array, w: jax.Array) -> Any:
        return lax.fori_loop(0, 5, lambda _, pair: (pair[1], jnp.tanh(pair[0] @ w)), (x, y))

    return infer(function, normal(0, 32, 32), normal(1, 32, 32), normal(2, 32, 32))


@cache
def until() -> Model:
    """How often the loop runs is known to nobody before it has."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.sum(x) < 100.0, lambda x: x @ w + 1.0, x)

    return infer(function, normal(0, 32, 32), normal(1, 32, 32))


@cache
def switched() -> Model:
    """Branches with matrix products in different directions, one without any, and a result that is
    an operand."""

    def function(index: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        branches = [lambda x, w: (x @ w, x), lambda x, w: (w @ x, w), lambda x, _: (x.T, x)]
        left, right = lax.switch(index, branches, x, w)
        return jnp.tanh(left), right + 1.0

    return infer(function, jnp.int32(1), normal(0, 64, 64), normal(1, 64, 64))


@cache
def chained() -> Model:
    """A branch and a loop that read what a loop has made, themselves in a loop: a line search."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(k: jax.Array, x: jax.Array) -> jax.Array:
            x = lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x @ w), x)
            x = lax.cond(k > 0, lambda: x @ w, lambda: x + 1.0)
            return lax.fori_loop(0, 3, lambda _, y: y @ w + x, x)

        return lax.fori_loop(0, 2, step, x)

    return infer(function, normal(0, 64, 32), normal(1, 32, 32))


@cache
def dropout() -> Model:
    """Random bits by threefry, whose rounds are a loop over integers."""

    def loss(w: jax.Array, key: jax.Array, x: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(key, 0.5, (32, 64))
        return jnp.sum(jnp.where(kept, jax.nn.relu(x @ w), 0.0) ** 2)

    return train(loss, normal(0, 16, 64), jax.random.key_data(jax.random.key(3)), normal(1, 32, 16))


MODELS = (scanned_mlp, lstm, nested, swapped, switched, chained, dropout, until)


@pytest.mark.parametrize(
    "model",
    (scanned_mlp, nested, swapped, switched, chained, until),
    ids=lambda model: model.__name__,
)
def test_numbers_and_collectives(model: Callable[[], Model]) -> None:
    check(model, compile_sharded(model(), "4", shardy=True))


@pytest.mark.slow
@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_numbers_and_collectives_on_a_grid(model: Callable[[], Model], shardy: bool) -> None:
    compiled = compile_sharded(model(), "2x2", shardy=shardy)
    if model is switched and not shardy:
        # GSPMD gives one sharding to what several branches capture, whatever they say.
        check_numbers(compiled)
    else:
        check(model, compiled)


def check(model: Callable[[], Model], compiled: Compiled) -> None:
    assert any(not spec.sharding.is_replicated for spec in compiled.function.arguments)
    if model is not until:  # which runs as often as it likes
        assert agree(compiled.rows, 0.05), list(map(str, compiled.rows))
    check_numbers(compiled)

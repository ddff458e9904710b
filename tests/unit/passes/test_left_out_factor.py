"""Losses that are functions of one sum over the batch: rows do without the derivative of the
function, and what they accumulate is multiplied by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardopt.ir.diagnostics import DiagnosedError
from tests.unit.passes.split_checks import (
    ROWS,
    check,
    lower,
    mlp,
    mlp_params,
    mse,
    names,
    normal,
    sgd,
    split,
)

Loss = Callable[..., jax.Array]
FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "root": jnp.sqrt,
    "logarithm": jnp.log,
    "exponential": jnp.exp,
    "flooded": lambda value: jnp.abs(value - 0.5) + 0.5,
    "used twice": lambda value: value**2 + jnp.log(value),
    "of another type": lambda value: jnp.sqrt(value.astype(jnp.bfloat16)).astype(jnp.float32),
}
BATCH = normal(3, ROWS, 3), normal(4, ROWS, 2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_a_mean_is_exact(function: str) -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return FUNCTIONS[function](mse(params, x, y))

    # In bfloat16 the mean of parts may round to another number.
    tolerance = 1e-2 if function == "of another type" else 2e-5
    program = check(partial(sgd, loss), mlp_params(), *BATCH, counts=(2, 4), rtol=tolerance)
    assert len(program.loop.results) == 4, "the loss and one gradient a parameter"


def test_penalties_and_results_beside_it() -> None:
    """What the parameters add to the loss, and gradients and values that the step returns."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> Any:
        out = mlp(params, x)
        value = jnp.sqrt(jnp.mean((out - y) ** 2))
        return value + 0.1 * sum(jnp.sum(w**2) for w in params.values()), (value, out.max())

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss, has_aux=True)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, value, jax.tree.map(jnp.linalg.norm, grads)

    check(step, mlp_params(), *BATCH, counts=(4,))


@pytest.mark.parametrize("unroll", [True, False])
def test_loops_and_branches_with_recomputation(unroll: bool) -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: jax.Array) -> Any:
            kept = lax.cond(params[0, 0, 0] > 9, lambda v: v, lambda v: jnp.tanh(v @ w), x)
            return x + kept, jnp.sum(kept**2)

        out, sizes = lax.scan(layer, x, params)
        return jnp.sqrt(jnp.mean((out - y) ** 2) + 0.1 * sizes.sum())

    params, y = normal(0, 3, 3, 3), normal(4, ROWS, 3)
    check(partial(sgd, loss), params, BATCH[0], y, counts=(2,), unroll=unroll)


def test_windows_and_looked_up_rows() -> None:
    """Gradients of maxima and means over windows, of a table, and of a chosen class."""

    def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        x = params["table"][tokens]
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID")
        logits = jax.nn.log_softmax(x.reshape(len(x), -1) @ params["head"])
        return jnp.exp(-jnp.mean(jnp.take_along_axis(logits, labels[:, None], -1)))

    params = {"table": normal(0, 7, 3), "head": normal(1, 6, 4)}
    tokens = jnp.arange(ROWS * 8).reshape(ROWS, 8) % 7
    check(partial(sgd, loss), params, tokens, jnp.arange(ROWS) % 4, counts=(2, 4))


def masked_rows(params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(mask[:, None], (mlp(params, x) - y) ** 2, 0))


def masked_columns(params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """The gradient of a slice is padded with zeros."""
    return jnp.sum(jnp.where(mask[:, None], mlp(params, x) - y, 0)[:, :1] ** 2)


def masked_before(params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """The gradient of weights behind the mask is 0 times infinity, NaN."""
    hidden = jnp.where(mask[:, None], jnp.tanh(x @ params["w1"] + params["b1"]), 0)
    return jnp.sum((hidden @ params["w2"]) ** 2) + 0 * y[0, 0]


def masked_by_branches(params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    out = lax.cond(params["b1"][0] > 9, lambda: mlp(params, x) - y, lambda: jnp.zeros_like(y))
    return jnp.sum(out**2)


@pytest.mark.parametrize("function", [jnp.sqrt, jnp.log, jnp.reciprocal, lambda x: x**0.3])
@pytest.mark.parametrize("loss", [masked_rows, masked_columns, masked_before, masked_by_branches])
def test_masks_take_rows_out_where_the_derivative_is_infinite(loss: Loss, function: Any) -> None:
    for rows in (0, 3):
        mask = jnp.arange(ROWS) < rows
        step = partial(sgd, lambda *arguments: function(loss(*arguments)))
        check(step, mlp_params(), *BATCH, mask, counts=(2,))


def test_without_a_mask_zero_times_infinity_is_no_number() -> None:
    """As on one device, where all rows are right and no mask says so."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum((x * params["scale"] - y) ** 2))

    step, scale = partial(sgd, loss), {"scale": jnp.ones(3)}
    check(step, scale, BATCH[0], BATCH[0], counts=(2,), batch_args=("1", "2"))


def test_rows_have_no_number_of_the_batch() -> None:
    program = check(partial(sgd, lambda *a: jnp.sqrt(mse(*a))), mlp_params(), *BATCH, counts=(4,))
    assert "sqrt" not in names(program.body_ops)


def clipped(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The gradient of each row has a largest size."""

    @jax.custom_vjp
    def bounded(out: jax.Array) -> jax.Array:
        return out

    bounded.defvjp(lambda out: (out, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    return jnp.sqrt(jnp.mean((bounded(mlp(params, x)) - y) ** 2))


def quotient(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    out = mlp(params, x)
    return jnp.sum(out * y) / jnp.sum(out**2)


def half(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Without the factor numbers of 16 bits may overflow."""
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), params)
    out = mlp(narrow, x.astype(jnp.float16)).astype(jnp.float32)
    return jnp.sqrt(jnp.mean((out - y) ** 2))


@pytest.mark.parametrize("loss", [clipped, quotient, half])
def test_what_is_not_proportional_is_refused(loss: Loss) -> None:
    module = lower(partial(sgd, loss), mlp_params(), *BATCH)
    with pytest.raises(DiagnosedError, match="needs a value reduced over the whole batch"):
        split(module, 2)

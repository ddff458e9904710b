"""Steps that return their state without donating it are told what that costs."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardopt

OPTIONS: dict[str, Any] = {"cluster": "cpu-test:1x1", "stages": 1, "microbatches": 1}
PARAMS = {"w": jnp.ones((4, 8)), "b": jnp.ones(8)}
BATCH = {"x": jnp.ones((2, 4)), "y": jnp.ones((2, 8))}


def step(params: Any, moments: Any, batch: Any, mode: str = "") -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - m, params, moments), moments, value


def static_first(mode: str, params: Any, moments: Any, batch: Any) -> Any:
    return step(params, moments, batch)


def told(planned: Any, *args: Any, **kwargs: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with planned:
            planned(*args, **kwargs)
    return [str(each.message) for each in found if "donate" in str(each.message)]


@pytest.mark.parametrize(
    ("fun", "options", "args", "kwargs", "expected"),
    [
        (
            step,
            {},
            (PARAMS, PARAMS, BATCH),
            {},
            "parallelize: step returns arguments 0 (params), 1 (moments) anew and does not donate "
            "them: 320 bytes go to the workers and back in every step; donate_argnums=(0, 1) lets "
            "the workers keep them",
        ),
        (
            step,
            {"donate_argnums": 0},
            (PARAMS, PARAMS, BATCH),
            {},
            "argument 1 (moments) anew and does not donate it: 160 bytes go to the workers and back "
            "in every step; donate_argnums=(0, 1) ",
        ),
        (
            step,
            {"donate_argnums": 0},
            (PARAMS,),
            {"moments": PARAMS, "batch": BATCH},
            "argument moments anew and does not donate it: 160 bytes go to the workers and back in "
            "every step; donate_argnames='moments' ",
        ),
        (
            static_first,
            {"static_argnums": 0},
            ("a", PARAMS, PARAMS, BATCH),
            {},
            "arguments 1 (params), 2 (moments) anew",
        ),
    ],
    ids=["all", "some", "named", "behind-static"],
)
def test_what_comes_back_and_is_not_donated_is_told(
    fun: Any, options: Any, args: Any, kwargs: Any, expected: str
) -> None:
    [message] = told(shardopt.parallelize(fun, **options, **OPTIONS), *args, **kwargs)
    assert expected in message


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (jax.jit(step, donate_argnums=(0, 1)), (PARAMS, PARAMS, BATCH)),
        (lambda params, batch: jnp.mean(batch["x"] @ params["w"]), (PARAMS, BATCH)),
        (lambda w, x: jnp.tanh(x @ w), (jnp.ones((4, 4)), jnp.ones((2, 4)))),  # x is no state
    ],
    ids=["donated", "evaluation", "inference"],
)
def test_others_are_told_nothing(fun: Any, args: Any) -> None:
    assert told(shardopt.parallelize(fun, **OPTIONS), *args) == []

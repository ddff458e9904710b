"""An evaluation on the workers of a training step, through the public names: equal to plain JAX,
with nothing of the state moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt
from shardopt import Parallelized, UserError

ROWS, WIDTH = 8, 16


def forward(params: Any, x: jax.Array) -> jax.Array:
    for weight in params[:-1]:
        x = jnp.tanh(x @ weight) + x
    return x @ params[-1]


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((forward(params, x) - y) ** 2)


def train_step(params: Any, momentum: Any, x: jax.Array, y: jax.Array) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


def metrics(params: Any, x: jax.Array, y: jax.Array, *, scale: float) -> dict[str, jax.Array]:
    out = forward(params, x)
    return {"loss": scale * jnp.mean((out - y) ** 2), "rows": out}


def weights() -> Any:
    return tuple(
        0.3 * jax.random.normal(key, (WIDTH, WIDTH))
        for key in jax.random.split(jax.random.key(0), 4)
    )


def rows(seed: int, count: int = ROWS) -> tuple[jax.Array, jax.Array]:
    first, second = jax.random.split(jax.random.key(seed))
    return jax.random.normal(first, (count, WIDTH)), jax.random.normal(second, (count, WIDTH))


def zeros(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


@pytest.fixture(scope="module", params=[1, 2], ids=["one stage", "two stages"])
def train(request: pytest.FixtureRequest) -> Iterator[Parallelized[..., Any]]:
    with shardopt.parallelize(
        train_step,
        cluster="cpu-test:1x4",
        stages=request.param,
        microbatches=4,
        donate_argnums=(0, 1),
        lazy_state=True,
        quick_compile=True,
    ) as step:
        yield step


def test_losses_beside_training_are_those_of_plain_jax(train: Parallelized[..., Any]) -> None:
    """With batches of two other sizes, one of which takes fewer microbatches; static arguments and
    several results."""
    evaluate = train.beside(metrics, static_argnames="scale")
    state, plain = (weights(), zeros(weights())), (weights(), zeros(weights()))
    uploads = []
    for step in range(3):
        *state, _ = train(*state, *rows(step))
        *plain, _ = jax.jit(train_step)(*plain, *rows(step))
        (session,) = train.sessions
        fetch, session.run.fetch = session.run.fetch, lambda k: uploads.append(k)  # type: ignore[method-assign]
        found = [evaluate(state[0], *rows(9, count), scale=2.0) for count in (2 * ROWS, 6)]
        session.run.fetch = fetch  # type: ignore[method-assign]
        for each, count in zip(found, (2 * ROWS, 6), strict=True):
            expected = jax.jit(metrics, static_argnames="scale")(
                plain[0], *rows(9, count), scale=2.0
            )
            for name in expected:
                np.testing.assert_allclose(each[name], expected[name], rtol=1e-5, atol=1e-6)
    assert not uploads, "no state was fetched from the workers for it"
    assert evaluate.plan(state[0], *rows(9, 6), scale=2.0).summary.num_microbatches == 3


def test_training_goes_on_after_an_evaluation(train: Parallelized[..., Any]) -> None:
    evaluate = train.beside(loss)
    state, plain = (weights(), zeros(weights())), (weights(), zeros(weights()))
    for step in range(3):
        *state, value = train(*state, *rows(step))
        *plain, expected = jax.jit(train_step)(*plain, *rows(step))
        evaluate(state[0], *rows(9))
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_state_that_the_workers_made_can_be_evaluated_before_a_step(
    train: Parallelized[..., Any],
) -> None:
    made = train.start(weights(), zeros(weights()), *rows(0)).create(
        lambda: (weights(), zeros(weights()))
    )
    np.testing.assert_allclose(
        train.beside(loss)(made[0], *rows(9)), loss(weights(), *rows(9)), rtol=1e-5
    )


def test_what_the_workers_do_not_hold_is_refused(train: Parallelized[..., Any]) -> None:
    train(weights(), zeros(weights()), *rows(0))
    with pytest.raises(UserError, match=r"beside: no argument is state on the workers of train_s"):
        train.beside(loss)(weights(), *rows(9))


def test_before_the_first_call_it_is_said_how_state_is_made() -> None:
    step = shardopt.parallelize(train_step, cluster="cpu-test:1x2", donate_argnums=(0, 1))
    with pytest.raises(UserError, match=r"workers of train_step hold no state yet; .*\.start"):
        step.beside(loss)(weights(), *rows(9))


def test_a_step_without_state_says_how_to_name_it() -> None:
    step = shardopt.parallelize(train_step, cluster="cpu-test:1x2", quick_compile=True)
    with step, pytest.raises(UserError, match=r"leaves no state .* donate_argnums"):
        new, _, _ = step(weights(), zeros(weights()), *rows(0))
        step.beside(loss)(new, *rows(9))


def test_an_evaluation_of_modules_only_reads_them() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first, self.second = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))
            self.calls = nnx.Variable(jnp.zeros(()))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(jnp.tanh(self.first(x)))

    def value(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((model(x) - y) ** 2)

    def counted(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        model.calls[...] += 1
        return value(model, x, y)

    def step(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        found, grads = nnx.value_and_grad(value)(model, x, y)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))
        return found

    model = Model(nnx.Rngs(0))
    with shardopt.parallelize(
        step, cluster="cpu-test:1x4", stages=2, microbatches=2, lazy_state=True, quick_compile=True
    ) as train:
        train(model, *rows(0))
        evaluated = train.beside(value)(model, *rows(9))
        with pytest.raises(UserError, match=r"found one that changes them; model\.eval\(\)"):
            train.beside(counted)(model, *rows(9))
        np.testing.assert_allclose(evaluated, value(model, *rows(9)), rtol=1e-5)

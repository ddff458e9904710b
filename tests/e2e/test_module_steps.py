"""Steps of Flax NNX and of Equinox, against the same steps under the libraries' own jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt

CLUSTER = "cpu-test:1x4"
STEPS = 5


def batches() -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(jax.random.key(1), 2 * STEPS)
    return [
        (jax.random.normal(keys[2 * k], (8, 4)), jax.random.normal(keys[2 * k + 1], (8, 2)))
        for k in range(STEPS)
    ]


def assert_equal_trees(actual: Any, expected: Any) -> None:
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            got = got.value if isinstance(got, shardopt.StateArray) else got
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_of_nnx_change_their_modules(wrapped: bool) -> None:
    """With dropout (a stream of typed keys), batch statistics and a counter, in two modules."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    optax = pytest.importorskip("optax")

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            # Without a bias, which the norm takes out: what Adam makes of its gradient is noise.
            self.first = nnx.Linear(4, 16, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.last = nnx.Linear(16, 2, rngs=rngs)
            self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, x: jax.Array) -> jax.Array:
            self.calls[...] += 1
            return self.last(self.dropout(jax.nn.relu(self.norm(self.first(x)))))

    def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    def run(step: Any) -> tuple[list[float], Any]:
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        losses = [float(step(model, optimizer, *batch)) for batch in batches()]
        return losses, nnx.to_pure_dict(nnx.state((model, optimizer)))

    expected, state = run(nnx.jit(step))
    planned = shardopt.parallelize(
        nnx.jit(step) if wrapped else step, cluster=CLUSTER, stages=1, lazy_state=wrapped
    )
    with planned:
        losses, trained = run(planned)
        assert_equal_trees(trained, state)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert int(trained[0]["calls"]) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_steps_of_equinox_return_their_modules(wrapped: bool) -> None:
    """An activation function and sizes inside of the module are part of the program."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-2)

    def step(model: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = eqx.filter_value_and_grad(
            lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2)
        )(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    def run(step: Any) -> tuple[list[float], Any]:
        model = eqx.nn.MLP(4, 2, 16, 2, key=jax.random.key(0))
        state, losses = optimizer.init(eqx.filter(model, eqx.is_array)), []
        for batch in batches():
            model, state, loss = step(model, state, *batch)
            losses.append(float(loss))
        assert model.activation is jax.nn.relu or callable(model.activation)
        return losses, eqx.filter((model, state), eqx.is_array)

    expected, arrays = run(eqx.filter_jit(step))
    planned = shardopt.parallelize(
        eqx.filter_jit(step) if wrapped else step,
        cluster=CLUSTER,
        microbatches=2,
        stages=2,
        donate_argnums=(0, 1),
    )
    with planned:
        losses, trained = run(planned)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_equal_trees(trained, arrays)

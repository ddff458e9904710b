"""Shardings that users write into their steps: on arguments, on activations, inside of loops,
branches, checkpoints and functions with gradients of their own. Whatever the mesh of a plan is, the
numbers are those of `jax.jit` on the user's mesh."""

from __future__ import annotations

import pytest

from tests.e2e.host_devices import run_on_host_devices

STEPS = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
import shardopt

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def over(*spec):
    return NamedSharding(mesh, PartitionSpec(*spec))

def put(x, *spec):
    return lax.with_sharding_constraint(x, over(*spec))

def layer(x, w):
    return put(x + jnp.tanh(put(x @ w, "data", "model")), "data", None)

@jax.custom_vjp
def handed_on(x):
    return put(x, "data", "model")

handed_on.defvjp(lambda x: (handed_on(x), None), lambda _, g: (put(g, None, "model"),))

def scanned(params, x):
    return lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, params)[0]

def branched(params, x):
    for w in params:
        x = lax.cond(params[0, 0, 0] < 9, layer, lambda x, w: x, x, w)
    return x

def by_hand(params, x):
    for w in put(params, None, "model", None):
        x = handed_on(x + jnp.tanh(x @ w))
    return x

def mapped(params, x):
    both = jax.vmap(lambda s: layer(s * x, params[0]) @ params[1])
    return layer(both(jnp.array([0.5, 1.5])).sum(0), params[2])

def uneven(params, x):
    wide = put(jnp.pad(x @ params[0], ((0, 0), (0, 3))), "data", "model")
    return jnp.tanh(wide[:, :16]) @ params[1]

rng = np.random.default_rng(0)
params = jnp.asarray(rng.normal(size=(4, 16, 16)) / 4, jnp.float32)
x, y = (jnp.asarray(rng.normal(size=(8, 16)), jnp.float32) for _ in range(2))

for model in MODELS:
    def step(params, x, y):
        loss = lambda params: jnp.mean((model(params, x) - y) ** 2)
        value, grads = jax.value_and_grad(loss)(params)
        return params - 0.1 * put(grads, None, None, "model"), value

    shardings = {"in_shardings": (over(None, "model"), over("data"), over("data")),
                 "out_shardings": (over(None, "model"), over())}
    expected = jax.jit(step, **shardings)(params, x, y)
    for stages, microbatches in ((1, 1), (2, 2)):
        planned = shardopt.parallelize(
            jax.jit(step, **shardings), cluster="cpu-test:1x4", stages=stages,
            microbatches=microbatches, quick_compile=True)
        with planned:
            for got, want in zip(planned(params, x, y), expected):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=model.__name__)
"""


@pytest.mark.parametrize(
    "models",
    [
        "(scanned,)",
        pytest.param("(branched, by_hand, mapped, uneven)", marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_on_the_mesh_of_the_user(models: str) -> None:
    run_on_host_devices(STEPS.replace("MODELS", models), devices=4)

"""`shardopt.shardings` on meshes of the user's, under the user's own `jax.jit`: eight devices of
another process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shardopt
from tests.e2e.host_devices import run_on_host_devices

STEPS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType
import shardopt
from shardopt.mesh.mesh import parse_mesh
from shardopt.xla_text.hlo import module_traffic

def step(params, moments, batch, key, *, mode):
    def loss(params):
        hidden = jnp.tanh(batch["x"] @ params["in"])
        kept = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
        return jnp.mean((kept @ params["out"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value

rng = np.random.default_rng(0)
def draw(*shape):
    return rng.normal(size=shape).astype("float32") / 8
params = {"in": draw(64, 256), "none": None, "out": draw(256, 16)}
moments = jax.tree.map(np.zeros_like, params)
batch, key = {"x": draw(64, 64), "y": draw(64, 16)}, jax.random.key(0)

def steps(step, *state):
    for _ in range(3):
        *state, loss = step(*state, batch, key, mode="train")
    return state, float(loss)

expected, expected_loss = steps(jax.jit(step, static_argnames="mode"), params, moments)

def traffic(jitted, *arguments, **kwargs):
    text = jitted.lower(*arguments, **kwargs).compile().as_text()
    return module_traffic(text, parse_mesh("data:2,model:4"))

for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 1, 4), ("data", "idle", "model"), axis_types=(kind,) * 3)
    plan = shardopt.shardings(
        step, params, moments, batch, key, kwargs={"mode": "train"}, mesh=mesh,
        static_argnames="mode", memory_budget=150_000,
    )
    assert any(not s.is_fully_replicated for s in jax.tree.leaves(plan.in_shardings[0])), plan
    for donated in ((), (0, 1)):
        jitted = jax.jit(plan.constrained, static_argnames="mode", donate_argnums=donated)
        copies = jax.tree.map(jnp.copy, (params, moments))
        state, loss = steps(jitted, *jax.device_put(copies, plan.in_shardings[:2]))
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
        for got, want, placed in zip(
            *map(jax.tree.leaves, (state, expected, plan.in_shardings[:2])), strict=True
        ):
            np.testing.assert_allclose(got, want, atol=1e-5)
            assert got.sharding.is_equivalent_to(placed, got.ndim), (got.sharding, placed)
    if kind == AxisType.Auto:
        own = traffic(jitted, params, moments, batch, key, mode="train")
        exported = jax.export.export(jax.jit(step, static_argnames="mode", donate_argnums=(0, 1)))(
            params, moments, batch, key, mode="train")
        sharded = shardopt.shard(
            exported, "cpu-test:1x8", "data:2,model:4", memory_budget=150_000)
        inputs, _ = shardopt.input_shardings(sharded)
        called = jax.jit(sharded.call, in_shardings=inputs, donate_argnums=(0, 1))
        assert own and own == traffic(called, params, moments, batch, key), (own, plan)
"""


@pytest.mark.slow
def test_steps_under_the_users_own_jit() -> None:
    """Values, state that comes back where it was, and the very collectives of `shardopt.shard`."""
    run_on_host_devices(STEPS, devices=8)


def scale(x: jax.Array, factor: int) -> jax.Array:
    return x * factor


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("only",))


def test_other_arguments_than_those_planned_for(mesh: jax.sharding.Mesh) -> None:
    plan = shardopt.shardings(scale, np.ones(4), 2, mesh=mesh, static_argnums=1)
    assert repr(plan) == (
        "Shardings(of 'scale' on mesh only=1: 0 of 2 arguments and results are split)"
    )
    np.testing.assert_array_equal(jax.jit(plan.constrained, static_argnums=1)(np.ones(4), 2), 2.0)
    with pytest.raises(shardopt.UserError, match="planned for other static arguments"):
        plan.constrained(np.ones(4), 3)
    with pytest.raises(shardopt.UserError, match="planned for other arguments: Shape mismatch"):
        plan.constrained(np.ones(5), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fun": 3}, "expected a function, found int"),
        ({"mesh": "2x2"}, "expected a jax.sharding.Mesh, found str"),
        ({"args": ("text",)}, r"expected args\[0\] to be an array or a number, found str"),
        ({"intra_opt": "ilp"}, "unknown option: 'intra_opt'; did you mean 'intra_op'"),
        ({"static_argnums": "0"}, "expected static_argnums to be numbers of arguments"),
        ({"cluster": 4}, "expected cluster to be a file or the name of a preset"),
        ({"memory_budget": "much"}, "memory_budget: expected bytes such as .* found 'much'"),
    ],
)
def test_wrong_arguments(mesh: jax.sharding.Mesh, arguments: dict[str, Any], message: str) -> None:
    defaults: dict[str, Any] = {"fun": jax.numpy.tanh, "args": (np.ones(4),), "mesh": mesh}
    fun, args, mesh, options = (
        *(arguments.get(name, defaults[name]) for name in ("fun", "args", "mesh")),
        {name: value for name, value in arguments.items() if name not in defaults},
    )
    with pytest.raises(shardopt.UserError, match=message):
        shardopt.shardings(fun, *args, mesh=mesh, **options)


def test_demands_on_both_ends_part_what_the_trees_pair() -> None:
    """An argument and a result of one type look like state; what is demanded of both goes first."""
    spec = jax.sharding.PartitionSpec
    four = jax.sharding.AbstractMesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, columns = (jax.sharding.NamedSharding(four, spec(*s)) for s in (("i",), (None, "i")))
    array = jax.ShapeDtypeStruct((8, 8), "float32")
    for fun in (
        jax.jit(jax.numpy.tanh, in_shardings=rows, out_shardings=columns),
        jax.jit(
            lambda x: jax.lax.with_sharding_constraint(jax.numpy.tanh(x), columns),
            in_shardings=rows,
        ),
    ):
        sharded = shardopt.shard(jax.export.export(fun)(array), "cpu-test:1x4", "4")
        assert sharded._in_named_shardings[0].spec == spec("x", None)  # type: ignore[union-attr]
        assert sharded._out_named_shardings[0].spec == spec(None, "x")  # type: ignore[union-attr]


def test_callbacks_have_no_form_as_a_module(mesh: jax.sharding.Mesh) -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.print("{x}", x=x)
        return x

    message = r"the function cannot be exported: 'debug_print' at .*test_shardings.py:\d+"
    with pytest.raises(shardopt.UserError, match=f"shardings: {message}"):
        shardopt.shardings(step, np.ones(4), mesh=mesh)


def test_a_plan_has_no_gradients(mesh: jax.sharding.Mesh) -> None:
    plan = shardopt.shardings(lambda w: (w**2).sum(), np.ones(4), mesh=mesh, cluster="cpu-test:1x1")
    assert jax.jit(plan.constrained)(np.ones(4)) == 4
    with pytest.raises(shardopt.UserError, match=r"planned '.*' cannot be differentiated"):
        jax.grad(plan.constrained)(np.ones(4))


def test_errors_of_the_function_itself_are_the_users_to_see(mesh: jax.sharding.Mesh) -> None:
    def step(x: jax.Array) -> jax.Array:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        shardopt.shardings(step, np.ones(4), mesh=mesh)

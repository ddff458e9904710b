"""Functions that only a GPU runs as they are, or that use what only it has, beside `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

import shardopt
from tests.pallas_gate import gate

KEY = jax.random.key(0)


def _weights(count: int, dtype: Any = jnp.float32) -> list[jax.Array]:
    keys = jax.random.split(KEY, count)
    return [0.1 * jax.random.normal(key, (256, 256), dtype) for key in keys]


def _check(step: Callable[..., Any], state: Any, x: jax.Array, **options: Any) -> None:
    """Losses and state after three steps are those of `jax.jit`."""
    devices = options.pop("devices", 1)
    planned = shardopt.parallelize(
        step, cluster=f"h200:1x{devices}", donate_argnums=0, stages=devices, **options
    )
    mine = expected = state
    with planned:
        for _ in range(3):
            mine, loss = planned(mine, x)
            expected, expected_loss = jax.jit(step)(expected, x)
            assert float(loss) == pytest.approx(float(expected_loss), rel=2e-2)
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
        one, other = (np.asarray(each, np.float32) for each in (one, other))
        np.testing.assert_allclose(one, other, atol=1e-3 + 0.05 * float(np.abs(other).max()))


def _descent(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    def step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


def test_kernels_of_pallas() -> None:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = gate(x @ weight)
        return jnp.mean(x**2)

    _check(_descent(loss), _weights(3), jax.random.normal(KEY, (16, 256)))


def test_kernels_of_pallas_in_microbatches() -> None:
    """The kernel is lowered again, for the rows of a microbatch."""

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        return mesh, gate, result.sharding, (operands[0].sharding,)

    split = custom_partitioning(lambda x: gate(x))
    split.def_partition(partition=partition, sharding_rule="n i -> n i")
    gated = jax.custom_vjp(split)
    gated.defvjp(
        lambda x: (split(x), x),
        lambda x, grad: (grad * jax.grad(lambda y: jnp.sum(jax.nn.silu(y)))(x),),
    )

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = gated(x @ weight)
        return jnp.mean(x**2)

    x = jax.random.normal(KEY, (32, 256))
    _check(_descent(loss), _weights(4), x, microbatches=2, devices=2, share_gpus=True)


def test_attention_of_cudnn() -> None:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        parts = [(x @ weight).reshape(*x.shape[:2], 4, 64) for weight in weights[:3]]
        attended = jax.nn.dot_product_attention(*parts, is_causal=True, implementation="cudnn")
        return jnp.mean((attended.reshape(x.shape) @ weights[3]).astype(jnp.float32) ** 2)

    x = jax.random.normal(KEY, (8, 128, 256), jnp.bfloat16)
    _check(_descent(loss), _weights(4, jnp.bfloat16), x)


@pytest.mark.parametrize(
    "options", [{"devices": 2, "share_gpus": True}, {"offload": "optimizer"}], ids=["share", "host"]
)
def test_stages_that_share_a_gpu_and_state_on_the_host(options: dict[str, Any]) -> None:
    optimizer = optax.adam(1e-3)

    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            y = x
            for weight in weights:
                y = jnp.tanh(y @ weight)
            return jnp.mean(y**2)

        weights, moments = state
        value, grads = jax.value_and_grad(loss)(weights)
        changes, moments = optimizer.update(grads, moments, weights)
        return (optax.apply_updates(weights, changes), moments), value

    state = _weights(4), optimizer.init(_weights(4))
    _check(step, state, jax.random.normal(KEY, (16, 256)), microbatches=2, **options)


def test_attention_of_cudnn_in_microbatches_and_stages() -> None:
    """The calls are those of a microbatch; two stages share the GPU."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for first in range(0, len(weights), 4):
            query, key, value = ((x @ w).reshape(*x.shape[:2], -1, 64) for w in weights[first:][:3])
            attended = jax.nn.dot_product_attention(
                query, key, value, is_causal=True, implementation="cudnn"
            )
            x = x + attended.reshape(x.shape) @ weights[first + 3]
        return jnp.mean(x.astype(jnp.float32) ** 2)

    keys = jax.random.split(KEY, 8)
    # Four heads of queries, two of keys.
    widths = [256, 128, 128, 256] * 2
    weights = [
        0.1 * jax.random.normal(key, (256, width), jnp.bfloat16)
        for key, width in zip(keys, widths, strict=True)
    ]
    x = jax.random.normal(KEY, (8, 128, 256), jnp.bfloat16)
    _check(_descent(loss), weights, x, microbatches=4)
    _check(_descent(loss), weights, x, microbatches=4, devices=2, share_gpus=True)


def test_attention_of_cudnn_that_is_split_runs_tile_by_tile() -> None:
    """What the devices of a mesh would call, one after the other on this one, is the whole."""
    shapes = (8, 128, 4, 64), (8, 128, 2, 64), (8, 128, 2, 64)
    keys = jax.random.split(KEY, 3)
    values = [
        jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)
    ]

    def step(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
        def loss(*of: jax.Array) -> jax.Array:
            out = jax.nn.dot_product_attention(*of, is_causal=True, implementation="cudnn")
            return jnp.sum(out.astype(jnp.float32) ** 2)

        return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)

    whole = jax.jit(step)(*values)
    for rows, heads in ((slice(0, 4), slice(0, 2)), (slice(4, 8), slice(2, 4))):
        of_keys = slice(heads.start // 2, heads.stop // 2)
        places = [(rows, slice(None), place) for place in (heads, of_keys, of_keys)]
        tile = jax.jit(step)(*(v[place] for v, place in zip(values, places, strict=True)))
        for one, other, place in zip(tile, whole, places, strict=True):
            one, other = np.asarray(one, np.float32), np.asarray(other[place], np.float32)
            np.testing.assert_allclose(one, other, atol=1e-2 + 0.02 * float(np.abs(other).max()))

"""Random updates of stacked weights: with an argument for each layer they compute what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from benchmarks.tools.whole_program import whole_program
from shardopt.dialect.parts import read_parts
from shardopt.dialect.program import read_program
from shardopt.ir.context import make_context
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.reference import run_reference

LAYERS, WIDTH, WIDE, ROWS = 4, 3, 5, 4
SHAPES = {"in": (LAYERS, WIDTH, WIDE), "out": (LAYERS, WIDE, WIDTH), "scale": (LAYERS, WIDTH)}
Random = np.random.Generator
Update = Callable[[Random, jax.Array], jax.Array]


def along(random: Random, v: jax.Array) -> int:
    return int(random.integers(v.ndim))


def counted(random: Random, v: jax.Array) -> jax.Array:
    axis = along(random, v)
    shape = [-1 if each == axis else 1 for each in range(v.ndim)]
    return v * jnp.arange(v.shape[axis], dtype=v.dtype).reshape(shape)


# Continuous, so that a last bit makes no other number.
UPDATES: tuple[Update, ...] = (
    lambda _, v: jnp.tanh(v),
    lambda _, v: jnp.sqrt(jnp.abs(v) + 0.1),
    lambda _, v: jnp.where(v > 0, v, 0.1 * v),
    lambda _, v: v / (1 + jnp.linalg.norm(v)),
    lambda r, v: v - jnp.mean(v, axis=along(r, v), keepdims=True),
    lambda _, v: v / (1 + jnp.max(jnp.abs(v), axis=tuple(range(1, v.ndim)), keepdims=True)),
    lambda _, v: jnp.swapaxes(jnp.swapaxes(v, 0, -1) * 2, 0, -1),
    lambda r, v: jnp.cumsum(v, axis=along(r, v)),
    lambda r, v: jnp.flip(v, axis=along(r, v)),
    lambda r, v: jnp.sort(v, axis=along(r, v)),
    counted,
    lambda _, v: lax.cond(jnp.sum(jnp.abs(v)) > 7.3, lambda v: v * 0.5, lambda v: v + 0.25, v),
    lambda _, v: v + v.reshape(v.shape[0], -1).sum(1).reshape([-1] + [1] * (v.ndim - 1)),
    lambda _, v: v.reshape(-1).reshape(v.shape) * 0.5,
    lambda _, v: v.at[1].set(0.5 * v[0]),
)


def changed(random: Random, value: jax.Array, others: Sequence[jax.Array], most: int) -> jax.Array:
    for _ in range(random.integers(1, most)):
        other = others[random.integers(len(others))]
        if random.random() < 0.4:
            value = (value + other, value * other, value - other)[random.integers(3)]
        else:
            value = UPDATES[random.integers(len(UPDATES))](random, value)
    return value


def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ w["in"]) @ w["out"] * w["scale"], None


def step_of(seed: int) -> Callable[..., Any]:
    def step(params: Any, state: Any, x: jax.Array) -> Any:
        random = np.random.default_rng(seed)
        value, grads = jax.value_and_grad(
            lambda params: jnp.mean(lax.scan(block, x, params)[0] ** 2)
        )(params)
        kept, made = {}, {}
        for name in SHAPES:
            known = params[name], state[name], grads[name]
            kept[name] = changed(random, state[name], known, 5) + 0.1 * grads[name]
            made[name] = params[name] - changed(random, kept[name], known, 5)
        seen = changed(random, grads["in"], list(grads.values())[:1], 3)
        return made, kept, value, seen.sum(axis=along(random, seen))

    return step


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 80))]
)
def test_split_stacks_compute_what_they_did(seed: int) -> None:
    random = np.random.default_rng(seed)

    def tree() -> Any:
        return {
            name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()
        }

    arguments = tree(), tree(), random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    text = jax.jit(step_of(seed), donate_argnums=(0, 1)).lower(*arguments).as_text()
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        phases = "shardopt-import{unroll=true},shardopt-microbatch{num-microbatches=1}"
        run_pipeline(module, f"builtin.module({phases})")
        expected = run_reference(whole_program(module), inputs)
        run_pipeline(module, "builtin.module(shardopt-split-stacks,canonicalize,cse)")
        program = read_program(module)
        taken, given = (read_parts(program.main, side) for side in ("arg_attrs", "res_attrs"))
        parts = [
            inputs[taken[k].whole][taken[k].place].copy() if k in taken else inputs[k]
            for k in range(len(program.main_block.arguments))
        ]
        found = run_reference(whole_program(module), parts)
    wholes = [np.empty_like(each) for each in expected]
    for number, value in enumerate(found):
        if number in given:
            wholes[given[number].whole][given[number].place] = value
        else:
            wholes[number] = value
    for whole, other in zip(wholes, expected, strict=True):
        np.testing.assert_allclose(whole, other, rtol=1e-4, atol=1e-4)

"""Weights of all blocks in one argument: which rows of it a gradient is of, and so in which layer it
is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import defining, shape_of
from shardopt.passes.layers.gradients import gradients_of
from shardopt.pipeline.manager import run_pipeline

BLOCKS, WIDTH, WIDE, ROWS = 4, 8, 24, 8
Params = dict[str, jax.Array]
Blocks = Callable[[Params, jax.Array], jax.Array]


def block(x: jax.Array, weights: Params) -> jax.Array:
    return x + jnp.tanh(x @ weights["in"]) @ weights["out"] * weights["scale"]


def scanned(run: Callable[..., jax.Array], params: Params, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, weights: (run(x, weights), None), x, params)[0]


def indexed(params: Params, x: jax.Array) -> jax.Array:
    for k in range(BLOCKS):
        x = block(x, {name: weight[k] for name, weight in params.items()})
    return x


def in_halves(params: Params, x: jax.Array) -> jax.Array:
    """In half precision, and first the lower half of the rows."""
    half = {name: weight.astype(jnp.bfloat16) for name, weight in params.items()}
    for rows in (slice(0, 2), slice(2, 4)):
        x = scanned(block, {name: weight[rows] for name, weight in half.items()}, x)
    return x


KINDS: dict[str, Blocks] = {
    "scan": partial(scanned, block),
    "checkpoint": partial(scanned, jax.checkpoint(block)),
    "indexed": indexed,
    "in halves": in_halves,
}


def clustered(blocks: Blocks, layers: int) -> StepProgram:
    def step(params: Params, momenta: Params, x: jax.Array, y: jax.Array) -> tuple:
        def loss(params: Params) -> jax.Array:
            return jnp.mean((blocks(params, x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta, value

    params = {
        "in": jnp.zeros((BLOCKS, WIDTH, WIDE)),
        "out": jnp.zeros((BLOCKS, WIDE, WIDTH)),
        "scale": jnp.zeros((BLOCKS, WIDTH)),
    }
    x = jnp.zeros((ROWS, WIDTH))
    text = jax.jit(step, donate_argnums=(0, 1)).lower(params, params, x, x).as_text()
    return lowered(text, layers)


def lowered(text: str, layers: int) -> StepProgram:
    module = ir.Module.parse(text, make_context())
    phases = (
        "import{unroll=true}",
        "microbatch{num-microbatches=2}",
        f"cluster{{layers={layers}}}",
    )
    with module.context:
        run_pipeline(module, f"builtin.module({','.join(f'shardopt-{each}' for each in phases)})")
    return read_program(module)


def layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_made_where_its_rows_are_read(kind: str, layers: int) -> None:
    program = clustered(KINDS[kind], layers)
    found = gradients_of(program)
    assert len(found) == 3 * BLOCKS  # and nothing for the loss
    seen = set()
    for number, weights in found.items():
        total = program.body_result(program.carried[number][1])
        readers = [use.owner for k in weights for use in program.body_block.arguments[k].uses]
        home = min(map(layer, readers))
        made, product = defining(total), None
        while product is None:
            assert made is not None
            assert layer(made) == home
            terms = [each for v in made.operands if (each := defining(v)) is not None]
            [product, *_] = [op for op in terms if op.name.endswith(("dot_general", "reduce"))] or [
                None
            ]
            made = next(iter(terms), None)
        assert layer(product) == home, f"{product}"
        assert sorted(shape_of(total)) == sorted(shape_of(program.body_block.arguments[weights[0]]))
        seen.add((home, tuple(weights)))
    assert {home for home, _ in seen} == set(range(layers))
    assert len(seen) == 3 * BLOCKS


def test_rows_of_one_number_tell_nothing() -> None:
    def step(scales: jax.Array, weights: jax.Array, x: jax.Array) -> tuple:
        def loss(weights: jax.Array) -> jax.Array:
            y = x
            for k in range(BLOCKS):
                y = jnp.tanh(y @ weights[k])
            return jnp.mean(y**2)

        value, grads = jax.value_and_grad(loss)(weights)
        scaled = [scales[k : k + 1] * value for k in range(BLOCKS)]
        return jnp.concatenate(scaled), weights - 0.1 * grads

    arguments = jnp.ones(BLOCKS), jnp.ones((BLOCKS, WIDTH, WIDTH)), jnp.ones((ROWS, WIDTH))
    text = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments).as_text()
    program = lowered(text, layers=2)
    found = gradients_of(program)
    assert len(found) == BLOCKS
    for number in found:
        assert shape_of(program.loop.results[number])[-2:] == (WIDTH, WIDTH)

"""Which operations repeat others behind a barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.program import body_of
from shardopt.extract.repeated_ops import repeated_ops
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.pipeline.manager import run_pipeline

WIDTH = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def repeats(function: Callable[..., Any], arguments: int = 2) -> list[tuple[str, str]]:
    """(operation, the one that it repeats) of a function of matrices."""
    exported = jax.export.export(jax.jit(function))(*[WIDTH] * arguments)
    with make_context() as context, ir.Location.unknown():
        module = load_module(bytes(exported.mlir_module_serialized), context)
        run_pipeline(module, "builtin.module(shardopt-import{unroll=true})")
        [main] = functions(module)
        originals = repeated_ops(body_of(main.regions[0].blocks[0]))
        return [(_name(op), _name(original)) for op, original in originals.items()]


def _name(op: ir.Operation) -> str:
    return op.name.removeprefix("stablehlo.")


def test_checkpoint_repeats_the_forward_and_not_the_backward() -> None:
    block = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)))
    pairs = repeats(jax.grad(lambda w, x: jnp.sum(block(w, x) ** 2)))
    assert pairs == [("dot_general", "dot_general"), ("tanh", "tanh")]


@pytest.mark.parametrize("prevent_cse", [True, False])
def test_a_scan_over_checkpointed_blocks_repeats_the_forward_of_each(prevent_cse: bool) -> None:
    block = jax.checkpoint(lambda x, w: (jnp.sin(jnp.tanh(x @ w)), None), prevent_cse=prevent_cse)
    scanned = lambda w, x: jax.lax.scan(block, x, jnp.stack([w, w + 1]))[0]  # noqa: E731
    pairs = repeats(jax.grad(lambda w, x: jnp.sum(scanned(w, x) ** 2)))
    assert sorted(pairs) == [("dot_general", "dot_general")] * 2 + [("tanh", "tanh")] * 2


def test_a_plain_scan_repeats_nothing() -> None:
    block = lambda x, w: (jnp.sin(jnp.tanh(x @ w)), None)  # noqa: E731
    scanned = lambda w, x: jax.lax.scan(block, x, jnp.stack([w, w + 1]))[0]  # noqa: E731
    assert repeats(jax.grad(lambda w, x: jnp.sum(scanned(w, x) ** 2))) == []


def test_complex_constants_are_told_apart_by_what_they_are() -> None:
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        turned = (x @ w) * jnp.asarray(0.5 + 2j) * jnp.asarray([1j, 2, 3j, 4])
        return jnp.tanh((turned * jnp.asarray([1j, 2, 3j, 5])).real)

    loss = lambda w, x: jnp.sum(jax.checkpoint(block)(w, x) ** 2)  # noqa: E731
    made = {original for _, original in repeats(jax.grad(loss))}
    assert {"dot_general", "multiply", "tanh"} <= made


def test_regions_are_compared() -> None:
    block = jax.checkpoint(lambda w, x: jnp.tanh((x @ w).max(0)) * (x @ w).sum(0))
    pairs = repeats(jax.grad(lambda w, x: jnp.sum(block(w, x) ** 2)))
    assert ("reduce", "reduce") in pairs
    assert all(op == original for op, original in pairs)


@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: jnp.tanh(x @ w),
        lambda w, x: jnp.tanh(jax.lax.optimization_barrier(x @ w)),
        lambda w, x: jnp.sin(x) @ jnp.cos(jax.lax.optimization_barrier(x)) @ w,
    ],
)
def test_a_barrier_alone_repeats_nothing(function: Callable[..., Any]) -> None:
    assert repeats(function) == []


def test_another_attribute_is_another_operation() -> None:
    def function(w: jax.Array, x: jax.Array) -> jax.Array:
        return x.sum(0) + jax.lax.optimization_barrier(x).sum(1)

    assert repeats(function) == []


def test_what_repeats_a_repetition_repeats_the_original() -> None:
    def function(w: jax.Array, x: jax.Array) -> jax.Array:
        once = jax.lax.optimization_barrier(x)
        twice = jax.lax.optimization_barrier(once)
        return jnp.tanh(x) * jnp.tanh(once) * jnp.tanh(twice) + w

    assert repeats(function) == [("tanh", "tanh")] * 2

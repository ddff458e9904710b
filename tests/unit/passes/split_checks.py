"""Steps cut by the pass alone, against the whole step in StableHLO's reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.program import StepProgram, read_program
from shardopt.ir.context import make_context
from shardopt.ir.io import module_bytecode
from shardopt.ir.native import run_native
from shardopt.passes.base import PassContext
from shardopt.passes.microbatches.split_microbatches import SplitMicrobatches
from shardopt.passes.microbatches.verify_microbatched import VerifyMicrobatched
from shardopt.pipeline.manager import run_pipeline
from tests.unit.passes.loop_expansion import evaluate, expand_loop

ROWS = 4
Step = Callable[..., Any]


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) * 0.5


def lower(step: Step, *arguments: Any, unroll: bool = True, donated: bool = True) -> ir.Module:
    """The step as imported StableHLO; its first argument is the state, donated or not."""
    donate = 0 if donated else ()
    lowered = jax.jit(step, donate_argnums=donate, keep_unused=True).lower(*arguments)
    module = ir.Module.parse(lowered.as_text(debug_info=True), make_context())
    run_pipeline(module, f"builtin.module(shardopt-import{{unroll={str(unroll).lower()}}})")
    return module


def split(module: ir.Module, count: int, **options: Any) -> StepProgram:
    """Run the pass and its verifier."""
    with module.context:
        SplitMicrobatches(num_microbatches=count, **options).run(module, PassContext())
        module.operation.verify()
        run_native(module, "builtin.module(canonicalize,cse)")
        VerifyMicrobatched().run(module, PassContext())
    return read_program(module)


def check(
    step: Step,
    *arguments: Any,
    counts: tuple[int, ...] = (1, 2, 4),
    rtol: float = 2e-5,
    atol: float = 2e-6,
    unroll: bool = True,
    **options: Any,
) -> StepProgram:
    """The step cut into each number of microbatches gives the same results; returns the last
    program."""
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    original = lower(step, *arguments, unroll=unroll)
    imported = module_bytecode(original)
    with original.context:
        expected = evaluate(original, flat)
    for count in counts:
        module = ir.Module.parse(imported, make_context())
        program = split(module, count, **options)
        text = str(module)
        with module.context:
            expand_loop(module)
            actual = evaluate(module, flat)
        for left, right in zip(expected, actual, strict=True):
            np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)
    program = read_program(ir.Module.parse(text, make_context()))
    assert program.num_microbatches == counts[-1]
    return program


def sgd(loss: Step, params: Any, *batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, *batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def names(ops: list[ir.Operation]) -> set[str]:
    return {op.name.removeprefix("stablehlo.") for op in ops}


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"]


def mlp_params() -> dict[str, jax.Array]:
    return {"w1": normal(0, 3, 5), "b1": normal(1, 5), "w2": normal(2, 5, 2)}


def mse(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((mlp(params, x) - y) ** 2)

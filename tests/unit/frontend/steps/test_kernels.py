"""Steps with kernels: of Pallas, and calls of CUDA's libraries that jax promises to no later version."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardopt
from shardopt.dialect.custom_calls import with_kernels
from shardopt.runtime.program.instructions import Program, Run
from shardopt.support.errors import UserError
from tests.pallas_gate import gate

WEIGHTS, ROWS = (
    jax.ShapeDtypeStruct((128, 128), jnp.float32),
    jax.ShapeDtypeStruct((16, 128), jnp.float32),
)


def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(gate(x @ w) ** 2))(weights)
    return weights - 0.1 * grad, loss


def _runs(program: Program) -> list[Run]:
    instructions = (each for part in program.meshes for each in part.instructions)
    return [each for each in instructions if isinstance(each, Run)]


def test_kernels_of_a_function_need_nobodys_word() -> None:
    """Exported for GPUs, which this machine need not have."""
    parallelized = shardopt.parallelize(
        step, cluster="h200:1x2", donate_argnums=0, platform="gpu", stages=1
    )
    plan = parallelized.plan(WEIGHTS, ROWS)
    assert any(run.label.startswith("fwd") for run in _runs(plan.program()))


def test_allowed_calls_stay_allowed() -> None:
    with pytest.raises(UserError, match="expected custom_calls to be a text, found 5"):
        with_kernels(5)
    assert with_kernels("mine, yours").split(",")[-2:] == ["triton_kernel_call_ffi", "yours"]


def test_kernels_of_a_module_need_the_users() -> None:
    unchecked = [jax.export.DisabledSafetyCheck.custom_call("ALL")]
    exported = jax.export.export(
        jax.jit(step, donate_argnums=0), platforms=("cuda",), disabled_checks=unchecked
    )(WEIGHTS, ROWS)
    with pytest.raises(UserError, match="is a kernel whose code the module carries"):
        shardopt.optimize(exported, cluster="h200:1x2", stages=1)

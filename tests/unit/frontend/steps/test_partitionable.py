"""Functions of `jax.custom_partitioning` around calls that nobody else knows, beside `jax.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import lapack
from jaxlib.mlir import ir

import shardopt
from shardopt.dialect.custom_calls import PARTITIONED, is_kernel
from shardopt.extract.call_rules import CALL
from shardopt.ir.rewriting import operations, shape_of
from shardopt.support.errors import UserError
from tests.pallas_gate import gate

DATA: dict[str, Any] = {
    "cluster": "cpu-test:1x4",
    "stages": 1,
    "intra_op": "data",
    "batch_argnums": 1,
}
KERNEL = "lapack_spotrf_ffi"


lapack._lapack.initialize()


def _factors(a: jax.Array) -> jax.Array:
    """Cholesky factors of matrices `[n, k, k]`, by a call without a rule, which
    `jnp.linalg.cholesky` has."""
    types = jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:1], jnp.int32)
    # LAPACK reads columns where there are rows.
    call = jax.ffi.ffi_call(KERNEL, types, input_output_aliases={0: 0})
    return jnp.tril(call(a, uplo=np.uint8(ord("U")))[0])


def _partition(mesh: Any, operands: Any, result: Any) -> Any:
    return mesh, _factors, result.sharding, (operands[0].sharding,)


factors = custom_partitioning(_factors)
factors.def_partition(
    partition=_partition, sharding_rule="n i j -> n i j", need_replication_factors=("i", "j")
)


@jax.custom_vjp
def volumes(a: jax.Array) -> jax.Array:
    """Logarithms of determinants `[n]`, of positive definite matrices `[n, k, k]`."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factors(a), axis1=1, axis2=2)), axis=1)


volumes.defvjp(
    lambda a: (volumes(a), a),
    # Not the gradient, but one with rows and without another call.
    lambda a, grad: (grad[:, None, None] * a,),
)


def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(w: jax.Array) -> jax.Array:
        rows = (x @ w).reshape(-1, 4, 4)
        return jnp.mean(volumes(rows @ rows.transpose(0, 2, 1) + jnp.eye(4)))

    value, grad = jax.value_and_grad(loss)(weights)
    return weights - 0.01 * grad, value


def _values() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (8, 16)), jax.random.normal(keys[1], (16, 8))


def _calls(plan: shardopt.Plan) -> dict[str, tuple[int, ...]]:
    """The targets of the calls of a plan, each with the shape of an operand."""
    with plan.loaded as modules:
        return {
            ir.StringAttr(call.attributes["call_target_name"]).value: shape_of(call.operands[0])
            for call in operations(modules[plan.module].operation, (CALL,))
        }


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 1},
        {"stages": 1, "intra_op": "data"},
        {"stages": 1, "intra_op": "data", "microbatches": 2},
        {"stages": 2, "microbatches": 4},
    ],
    ids=["auto", "data", "microbatches", "stages"],
)
def test_steps_are_those_of_jax(options: dict[str, Any]) -> None:
    weights, x = _values()
    expected, expected_loss = jax.jit(step)(weights, x)
    with shardopt.parallelize(
        step, cluster="cpu-test:1x4", donate_argnums=0, quick_compile=True, **options
    ) as planned:
        calls = _calls(planned.plan(weights, x))
        assert PARTITIONED not in calls
        if options.get("intra_op") == "data":
            assert calls[KERNEL][0] == 16 // 4 // options.get("microbatches", 1)
        found, loss = planned(weights, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def test_calls_to_which_jax_gives_a_rule_need_no_other() -> None:
    """So does LAPACK's: rows of the batch are split."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        rows = (x @ weights).reshape(-1, 4, 4)
        lower = jnp.linalg.cholesky(rows @ rows.transpose(0, 2, 1) + jnp.eye(4))
        return weights - jnp.mean(lower)

    weights, x = _values()
    with shardopt.parallelize(step, donate_argnums=0, quick_compile=True, **DATA) as planned:
        assert _calls(planned.plan(weights, x))[KERNEL] == (4, 4, 4)
        np.testing.assert_allclose(planned(weights, x), jax.jit(step)(weights, x), atol=1e-6)


def test_what_a_function_adds_up_by_itself() -> None:
    """The gradient of a scale is a sum over rows that no rule speaks of."""

    def local(a: jax.Array, over: Any) -> tuple[jax.Array, jax.Array]:
        lower = _factors(a)
        total = jnp.sum(lower, axis=0)
        return lower, jax.lax.psum(total, over) if over else total

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        [of] = operands
        return (
            mesh,
            lambda a: local(a, of.sharding.spec[0]),
            tuple(each.sharding for each in results),
            (of.sharding,),
        )

    both = custom_partitioning(lambda a: local(a, None))
    both.def_partition(
        partition=partition,
        sharding_rule="n i j -> n i j, i j",
        need_replication_factors=("i", "j"),
    )

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = (x @ weights).reshape(-1, 4, 4)
        first, total = both(rows @ rows.transpose(0, 2, 1) + jnp.eye(4))
        second, more = both(first @ first.transpose(0, 2, 1) + jnp.eye(4))
        change = jnp.mean(first @ total) + jnp.mean(second @ more)
        return weights - 0.1 * change, change

    weights, x = _values()
    expected, expected_loss = jax.jit(step)(weights, x)
    with shardopt.parallelize(step, donate_argnums=0, quick_compile=True, **DATA) as planned:
        plan = planned.plan(weights, x)
        with plan.loaded as modules:
            sums = operations(modules[plan.module].operation, ("stablehlo.all_reduce",))
            assert len({str(each.attributes["channel_handle"]) for each in sums}) == 2
        found, loss = planned(weights, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def test_a_function_that_is_partitioned_in_another_way_than_its_rule_says() -> None:
    whole = custom_partitioning(_factors)

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        everywhere = NamedSharding(mesh, PartitionSpec())
        return mesh, _factors, everywhere, (everywhere,)

    whole.def_partition(partition=partition, sharding_rule="n i j -> n i j")

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        rows = (x @ weights).reshape(-1, 4, 4)
        return weights - jnp.mean(whole(rows @ rows.transpose(0, 2, 1) + jnp.eye(4)))

    with pytest.raises(UserError, match=r"expected operand 0 as its rule says, .* found P"):
        shardopt.parallelize(step, donate_argnums=0, **DATA).plan(*_values())


def test_kernels_of_pallas_are_lowered_at_the_size_of_a_tile() -> None:
    """For GPUs, which this machine need not have."""

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        return mesh, gate, result.sharding, (operands[0].sharding,)

    split = custom_partitioning(lambda x: gate(x))
    split.def_partition(partition=partition, sharding_rule="n i -> n i")
    forward = jax.custom_vjp(split)
    forward.defvjp(lambda x: (split(x), x), lambda x, grad: (grad * x,))

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(forward(x @ w) ** 2))(weights)
        return weights - 0.1 * grad, loss

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 128), (64, 128))]
    parallelized = shardopt.parallelize(
        step,
        cluster="h200:1x2",
        donate_argnums=0,
        platform="gpu",
        stages=1,
        intra_op="data",
        microbatches=2,
    )
    plan = parallelized.plan(*types)
    kernels = [shape for target, shape in _calls(plan).items() if is_kernel(target)]
    assert kernels == [(16, 128)]
    assert plan.program() is not None  # the call is allowed to run

"""Steps with kernels: of Pallas, and calls of CUDA's libraries that jax promises to no later version."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardopt
from shardopt.dialect.custom_calls import with_kernels
from shardopt.extract.call_rules import CALL
from shardopt.extract.fused_attention import is_attention
from shardopt.frontend.calls.call_signature import export_call
from shardopt.ir.rewriting import operations, shape_of
from shardopt.runtime.program.instructions import Program, Run
from shardopt.support.errors import UserError
from tests.cudnn_attention import pretend_cudnn
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


def attending(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """A step with cuDNN's attention of four heads of queries, two of keys."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        query, key, value = ((x @ w).reshape(*x.shape[:2], -1, 64) for w in weights[:3])
        out = jax.nn.dot_product_attention(
            query, key, value, is_causal=True, implementation="cudnn"
        )
        return jnp.mean((out.reshape(x.shape) @ weights[3]).astype(jnp.float32) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


@pytest.mark.parametrize(
    ("options", "queries", "keys"),
    [
        ({"intra_op": "data"}, (16, 1024, 4, 64), (16, 1024, 2, 64)),
        # 2 x 2: rows by one axis, heads by the other
        ({"intra_op": "megatron"}, (32, 1024, 2, 64), (32, 1024, 1, 64)),
        ({"intra_op": "data", "microbatches": 4}, (4, 1024, 4, 64), (4, 1024, 2, 64)),
        (
            {"intra_op": "data", "microbatches": 2, "stages": 2},
            (16, 1024, 4, 64),
            (16, 1024, 2, 64),
        ),
    ],
    ids=["rows", "heads", "microbatches", "stages"],
)
def test_attention_of_cudnn_is_split(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    queries: tuple[int, ...],
    keys: tuple[int, ...],
) -> None:
    pretend_cudnn(monkeypatch)
    weights = [jax.ShapeDtypeStruct((256, n), jnp.bfloat16) for n in (256, 128, 128, 256)]
    rows = jax.ShapeDtypeStruct((64, 1024, 256), jnp.bfloat16)
    options = {"stages": 1, **options}
    parallelized = shardopt.parallelize(
        attending, cluster="h200:1x4", donate_argnums=0, platform="gpu", **options
    )
    plan = parallelized.plan(weights, rows)
    with plan.loaded as modules:
        calls = [
            op for op in operations(modules[plan.module].operation, (CALL,)) if is_attention(op)
        ]
        assert len(calls) == 2
        for call in calls:
            assert [shape_of(value) for value in call.operands[:3]] == [queries, keys, keys]
            sizes = re.search(r'"dimensions": \[([^]]*)\]', call.attributes["backend_config"].value)
            assert sizes is not None
            rows, length, heads, _ = queries
            assert sizes[1] == f'"{rows}", "{heads}", "{length}", "{length}"'


def test_a_kernel_that_keeps_the_batch_whole_says_why() -> None:
    parallelized = shardopt.parallelize(
        step, cluster="h200:1x2", donate_argnums=0, platform="gpu", stages=1, microbatches=2
    )
    with pytest.raises(UserError, match="its code was compiled for the extents that it has here"):
        parallelized.plan(WEIGHTS, ROWS)


def test_attention_that_is_split_in_fewer_ways_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a bias without rows of its own is a sum over rows."""
    pretend_cudnn(monkeypatch)

    def step(bias: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(bias: jax.Array) -> jax.Array:
            out = jax.nn.dot_product_attention(x, x, x, bias=bias, implementation="cudnn")
            return jnp.mean(out.astype(jnp.float32) ** 2)

        value, grad = jax.value_and_grad(loss)(bias)
        return bias - 0.1 * grad, value

    types = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1, 4, 64, 64), (8, 64, 4, 64))
    ]
    exported = export_call("test", jax.jit(step, donate_argnums=0), "cuda", types, {})
    remarks: list[str] = []
    shardopt.optimize(
        exported,
        cluster="h200:1x2",
        stages=1,
        handler=lambda remark: remarks.append(remark.message),
    )
    assert any(
        "@__cudnn$fmhaScaleBiasSoftmaxBackward is not split as others are: the gradient of its bias"
        in each
        for each in remarks
    )

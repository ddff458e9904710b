"""Blocks that `jax.shard_map` wrote for one device, in steps with stages and microbatches: each
stage lies on a mesh such as its blocks are written for, and a microbatch has the rows of a block
that its devices have of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardopt.dialect.manual import MANUAL
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import operations
from shardopt.passes.base import PassFailure
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.instructions import Program
from tests.e2e.test_manual_regions import product, sharded

TOLERANCE = 1e-5
ROWS = P("data", None)
Block = Callable[[jax.Array, jax.Array], jax.Array]


def in_turns(x: jax.Array, w: jax.Array) -> jax.Array:
    """Three layers in a loop that is written for one device."""
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0]


def centered(x: jax.Array, w: jax.Array) -> jax.Array:
    """Features over one axis and rows over the other, with the mean of all features."""
    h = jnp.tanh(x @ w)
    return h - lax.pmean(jnp.mean(h, axis=1, keepdims=True), "model")


def masked(x: jax.Array, w: jax.Array) -> jax.Array:
    """The mask has rows, as what the backward reads, and depends on none."""
    h = jnp.tanh(x @ w).reshape(-1, 4, 4)
    return jnp.where(jnp.tril(jnp.ones((4, 4), bool)), h, -h).reshape(x.shape)


def weighted(x: jax.Array, w: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) * weights


def by_place(block: Callable[..., jax.Array]) -> Block:
    """Each row of the batch has a weight of its own."""
    return lambda x, w: block(x, w, jnp.arange(x.shape[0], dtype=x.dtype)[:, None] / 16)


# What is written for one device, and the same for all.
BLOCKS: dict[str, tuple[Block, Block]] = {
    "rows of a device": (
        sharded(lambda x, w: jnp.tanh(x @ w), (ROWS, P()), ROWS),
        lambda x, w: jnp.tanh(x @ w),
    ),
    "split contraction": (
        sharded(product, (P("data", "model"), P("model", None)), ROWS),
        lambda x, w: x @ w,
    ),
    "features": (
        sharded(centered, (ROWS, P(None, "model")), P("data", "model")),
        lambda x, w: jnp.tanh(x @ w) - jnp.mean(jnp.tanh(x @ w), axis=1, keepdims=True),
    ),
    "mask": (sharded(masked, (ROWS, P()), ROWS), masked),
    "places": (by_place(sharded(weighted, (ROWS, P(), ROWS), ROWS)), by_place(weighted)),
    "loop": (sharded(in_turns, (ROWS, P()), ROWS), in_turns),
    "one axis": (
        sharded(
            lambda x, w: lax.psum(x @ w, "model"),
            (P(None, "model"), P("model", None)),
            P(),
            axis_names={"model"},
        ),
        lambda x, w: x @ w,
    ),
    "rows over both axes": (
        sharded(lambda x, w: x @ w, (P(("data", "model"), None), P()), P(("data", "model"), None)),
        lambda x, w: x @ w,
    ),
}


# What takes part in the cut, and a program of its own for each device.
_FAST = {"rows of a device", "features", "loop"}


def step_with(block: Block) -> Callable[..., Any]:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        for first, second in params:
            x = x + block(jnp.tanh(x @ first), second)
        return jnp.mean(x**2)

    def step(params: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def inputs() -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((2, 2, 16, 16)).astype(np.float32) * 0.3
    return [(first, second) for first, second in pairs], rng.standard_normal((16, 16)).astype(
        np.float32
    )


def exported(block: Block) -> bytes:
    program = jax.export.export(jax.jit(step_with(block)), platforms=["cpu"])(*inputs())
    return bytes(program.mlir_module_serialized)


def test_blocks_have_seconds_that_layers_are_balanced_by() -> None:
    """All devices that the code is written for count, whatever mesh it will run on."""
    options: dict[str, Any] = {"microbatches": 4, "stages": 2, "layer_balance": "seconds"}
    plan = make_plan(
        exported(BLOCKS["split contraction"][0]),
        PlanOptions("cpu-test:1x8", **options),
        cache=False,
    )
    assert len(plan.summary.stages) == 2


@pytest.mark.parametrize(
    ("name", "microbatches"),
    [
        ("split contraction", 1),
        *(
            pytest.param(name, 4, marks=() if name in _FAST else pytest.mark.slow)
            for name in BLOCKS
        ),
    ],
)
def test_two_stages_with_blocks_compute_what_one_device_does(name: str, microbatches: int) -> None:
    block, same = BLOCKS[name]
    options: dict[str, Any] = {"microbatches": microbatches, "stages": 2, "intra_op": "data"}
    plan = make_plan(exported(block), PlanOptions("cpu-test:1x8", **options), cache=False)
    expected = jax.tree.leaves(jax.jit(step_with(same))(*inputs()))
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    check(program, jax.tree.leaves(inputs()), expected)


def test_products_that_all_stand_in_blocks_are_cut_into_stages() -> None:
    def step_of(block: Block) -> Callable[..., Any]:
        def loss(weights: Any, x: jax.Array) -> jax.Array:
            for first, second in weights:
                x = block(block(x, first), second)
            return jnp.mean(x**2)

        return lambda weights, x: jax.grad(loss)(weights, x)

    block, same = BLOCKS["rows of a device"]
    program = jax.export.export(jax.jit(step_of(block)), platforms=["cpu"])(*inputs())
    options = PlanOptions("cpu-test:1x8", microbatches=1, stages=2, intra_op="data")
    plan = make_plan(bytes(program.mlir_module_serialized), options, cache=False)
    with make_context() as context:
        prepared = prepare(load_module(plan.module, context))
    expected = jax.tree.leaves(jax.jit(step_of(same))(*inputs()))
    check(prepared, jax.tree.leaves(inputs()), expected)


def check(program: Program, arguments: list[np.ndarray], expected: list[jax.Array]) -> None:
    with open_run(program, quick_compile=True) as run:
        run.load(arguments)
        for got, wanted in zip(run.step(), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def mixed(block: Block) -> Block:
    return sharded(block, (ROWS, P()), ROWS)


exchanged = mixed(lambda x, w: lax.ppermute(x, "data", [(0, 1), (1, 0)]) @ w)


def in_parts(block: Block) -> Callable[..., Any]:
    """A step that takes its batch in two parts by itself."""

    def step(params: Any, x: jax.Array) -> Any:
        def part(total: Any, rows: jax.Array) -> Any:
            gradients = jax.grad(lambda p: jnp.mean(block(rows @ p[0], p[1]) ** 2))(params)
            return jax.tree.map(jnp.add, total, gradients), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, _ = lax.scan(part, zeros, x.reshape(2, 8, 16))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)

    return step


def test_parts_of_a_step_keep_blocks_that_mix_their_rows() -> None:
    pairs, x = inputs()
    program = jax.export.export(jax.jit(in_parts(exchanged)), platforms=["cpu"])(pairs[0], x)
    plan = make_plan(
        bytes(program.mlir_module_serialized), PlanOptions("cpu-test:1x4"), cache=False
    )
    turned = in_parts(lambda x, w: jnp.roll(x, 4, axis=0) @ w)
    expected = jax.tree.leaves(jax.jit(turned)(pairs[0], x))
    with make_context() as context:
        prepared = prepare(load_module(plan.module, context))
    assert plan.summary.num_microbatches == 2
    check(prepared, [*pairs[0], x], expected)


sums_of_devices = sharded(lambda x, w: jnp.sum(x @ w, axis=0, keepdims=True), (ROWS, P()), ROWS)
product_of_first = sharded(lambda x, w: x @ w, (ROWS, P()), P())
products_of_all = sharded(lambda x, w: x @ w, (P(), P()), ROWS)


COUPLED: dict[str, tuple[Block, str]] = {
    "exchange": (
        exchanged,
        "'stablehlo.collective_permute' exchanges rows of the batch between devices",
    ),
    "number": (
        mixed(lambda x, w: x @ w + lax.axis_index("data").astype(x.dtype)),
        "'stablehlo.add' computes on rows by the number of their device",
    ),
    "places": (
        mixed(lambda x, w: x @ w * jnp.arange(x.shape[0], dtype=x.dtype)[:, None]),
        "has a value of its own for each row of a device",
    ),
    "sums": (
        lambda x, w: jnp.sum(sums_of_devices(x, w)) * jnp.ones_like(x),
        "hands on sums over the rows of single devices",
    ),
    "one device": (
        lambda x, w: jnp.tile(product_of_first(x, w), (2, 1)),
        "hands rows of the batch on to other devices",
    ),
    "tiles": (
        lambda x, w: jnp.sum(products_of_all(x, w).reshape(2, 16, 16), axis=0),
        "'stablehlo.reshape' reads rows of the batch as single devices have them",
    ),
}


@pytest.mark.parametrize("name", COUPLED)
def test_rows_that_depend_on_their_device_are_refused(name: str) -> None:
    block, message = COUPLED[name]
    passes = "shardopt-import,shardopt-split-microbatches{num-microbatches=2 batch-args=4}"
    with make_context() as context:
        module = load_module(exported(block), context)
        with pytest.raises(PassFailure, match=re.escape(message)):
            run_pipeline(module, f"builtin.module({passes})")


def test_microbatches_keep_the_meshes_of_blocks() -> None:
    passes = "shardopt-import,shardopt-split-microbatches{num-microbatches=4}"
    with make_context() as context:
        module = load_module(exported(BLOCKS["split contraction"][0]), context)
        run_pipeline(module, f"builtin.module({passes})")
        module.operation.verify()
        blocks = operations(module.operation, (MANUAL,))
        # 16 rows: 4 of a microbatch, 2 of a device, with half of the 16 features
        assert {str(op.regions[0].blocks[0].arguments[0].type) for op in blocks} == {
            "tensor<2x8xf32>", "tensor<2x16xf32>"
        }  # fmt: skip


def test_no_stage_on_the_mesh_of_a_block_is_an_error_at_its_line() -> None:
    artifact = exported(BLOCKS["loop"][0])
    options: dict[str, Any] = {"microbatches": 2, "stages": 2}
    with pytest.raises(DiagnosedError, match=r"data=2, model=2\) needs such a mesh") as caught:
        make_plan(artifact, PlanOptions("cpu-test:1x4", **options), cache=False)
    assert "test_blocks_in_pipelines.py" in str(caught.value)

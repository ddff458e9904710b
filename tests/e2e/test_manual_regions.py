"""Models with a block that `jax.shard_map` wrote for one device: planned around it, run in every
form, and compared with the same model without the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.forms.sharded_form import read_cost
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, operations
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.base import PassFailure
from shardopt.pipeline.manager import run_pipeline
from shardopt.report.sharding_summary import summarize_sharding
from tests.e2e.device_programs import run_device_program
from tests.e2e.test_device_programs import check_traffic
from tests.e2e.test_sharding_against_xla import Compiled, bytecode_of

TOLERANCE = 1e-5
MESH = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def sharded(block: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
    return jax.shard_map(
        block, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False, **options
    )


def product(a: jax.Array, w: jax.Array) -> jax.Array:
    """A product whose contraction is split, with a term that depends on the device."""
    number = jax.lax.axis_index("model").astype(a.dtype)
    return jax.lax.psum(a @ w + number - 0.5, "model")


def ring(a: jax.Array) -> jax.Array:
    """The sum of all tiles of a row of devices, passed around in a loop."""

    def turn(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, moving = state
        moving = jax.lax.ppermute(moving, "model", [(0, 1), (1, 0)])
        return total + moving, moving

    return jax.lax.fori_loop(0, 1, turn, (a, a))[0]


def training_step(use_block: bool) -> Callable[..., Any]:
    block: Any = (
        sharded(product, (P("data", "model"), P("model", None)), P("data", None))
        if use_block
        else lambda a, w: a @ w
    )

    def loss(w1: jax.Array, w2: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(block(jnp.tanh(x @ w1), w2)) ** 2)

    def step(w1: jax.Array, w2: jax.Array, x: jax.Array) -> Any:
        gradients = jax.grad(loss, argnums=(0, 1))(w1, w2, x)
        return w1 - gradients[0], w2 - gradients[1]

    return step


def around_a_ring(use_block: bool) -> Callable[..., Any]:
    block: Any = (
        sharded(ring, P("data", "model"), P("data", None))
        if use_block
        else lambda a: a[:, :8] + a[:, 8:]
    )
    return lambda w1, w2, x: block(jnp.tanh(x @ w1)) * w2[0, 0]


def partly_manual(use_block: bool) -> Callable[..., Any]:
    block: Any = (
        sharded(
            lambda a, w: jax.lax.psum(a @ w, "model"),
            (P(None, "model"), P("model", None)),
            P(),
            axis_names={"model"},
        )
        if use_block
        else lambda a, w: a @ w
    )
    return lambda w1, w2, x: jnp.sum(block(jnp.tanh(x @ w1), w2), axis=0)


def over_all_devices(use_block: bool) -> Callable[..., Any]:
    """Rows over both axes at once, and nothing else that tells one axis from the other."""
    rows = P(("data", "model"))
    block: Any = sharded(lambda a: a - 1, rows, rows) if use_block else lambda a: a - 1
    return lambda w1, w2, x: block((x @ w1).T) @ x @ w2


MODELS = {"step": training_step, "ring": around_a_ring, "partly manual": partly_manual}
SHAPES = ((16, 16), (16, 4), (8, 16))


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def exported(model: Callable[[bool], Callable[..., Any]], shardy: bool = True) -> bytes:
    """`shardy` is whether blocks are written as regions of Shardy, or in the words of GSPMD."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        program = jax.export.export(jax.jit(model(True)), platforms=["cpu"])(*arguments)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    return bytes(program.mlir_module_serialized)


def planned(artifact: bytes, context: ir.Context, options: str) -> ir.Module:
    module = load_module(artifact, context)
    run_pipeline(module, f"builtin.module(shardopt-intra{{cluster=cpu-test:1x4 {options}}})")
    return module


def run(module: ir.Module, sharding_format: str) -> list[np.ndarray]:
    if sharding_format == "collectives":
        return run_device_program(module, inputs())
    mesh = parse_mesh("2x2")
    summary = summarize_sharding(module, mesh)
    arguments, results = (
        tuple(TensorSpec(_shape(row.type), "float32", row.sharding) for row in rows)
        for rows in (summary.arguments, summary.results)
    )
    function = StageFunction("main", bytecode_of(module), arguments, results, donates=())
    return Compiled((), mesh, function, [], inputs()).run()


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")[:-1]))


@pytest.mark.parametrize("sharding_format", ["mhlo", "sdy", "collectives"])
@pytest.mark.parametrize("name", MODELS)
def test_a_block_for_one_device_computes_what_it_did(name: str, sharding_format: str) -> None:
    model = MODELS[name]
    expected = jax.tree.leaves(jax.jit(model(False))(*inputs()))
    with make_context() as context:
        module = planned(exported(model), context, f"mesh=2x2 sharding-format={sharding_format}")
        for got, wanted in zip(run(module, sharding_format), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "sharding_format"),
    [("step", "mhlo"), ("ring", "sdy"), ("partly manual", "collectives"), ("all", "collectives")],
)
def test_a_block_in_the_words_of_gspmd_computes_what_it_did(
    name: str, sharding_format: str
) -> None:
    model = MODELS.get(name, over_all_devices)
    expected = jax.tree.leaves(jax.jit(model(False))(*inputs()))
    with make_context() as context:
        artifact = exported(model, shardy=False)
        module = load_module(artifact, context)
        assert "SPMDFullToShardShape" in str(module)
        module = planned(artifact, context, f"mesh=2x2 sharding-format={sharding_format}")
        for got, wanted in zip(run(module, sharding_format), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_what_a_block_exchanges_is_part_of_the_price() -> None:
    with make_context() as context:
        module = planned(exported(training_step), context, "mesh=2x2 sharding-format=collectives")
        check_traffic(read_cost(next(functions(module))).traffic, module, "training step")
        names = {op.name for op in operations(next(functions(module)))}
        assert "stablehlo.all_reduce" in names


def test_a_block_for_another_mesh_is_refused_at_its_line() -> None:
    artifact = exported(training_step)
    refusal = pytest.raises(PassFailure, match="expected a mesh with the axes that")
    with make_context() as context, refusal:
        planned(artifact, context, "mesh=4")

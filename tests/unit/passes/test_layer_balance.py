"""Layers of equal predicted seconds, of models whose FLOPs say little about them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.prediction import read_prediction
from shardopt.dialect.program import read_program
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import Diagnostic
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import shape_of
from shardopt.passes.layers.cluster_layers import ClusterLayers, _extract_body
from shardopt.pipeline.manager import run_pipeline
from shardopt.support.errors import UserError

MODEL = (Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir").read_bytes()
CLUSTER = "cpu-test:1x2"
WIDTH = 64
Weights = list[jax.Array]


def long_block(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Rows are normalised many times, and a product is taken: it has the FLOPs, and they take the
    time."""
    for _ in range(12):
        x = jax.nn.softmax(x)
    return x @ weight


def short_block(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.tanh(x @ weight)


@cache
def step_of(checkpointed: bool = False) -> bytes:
    """Six blocks with a product each, the first two of which take far longer."""
    blocks: list[Callable[..., jax.Array]] = [long_block] * 2 + [short_block] * 4
    if checkpointed:
        blocks = [jax.checkpoint(block) for block in blocks]

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        for block, weight in zip(blocks, weights, strict=True):
            x = block(x, weight)
        return jnp.mean(x**2)

    def step(weights: Weights, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    shape = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return export.export(jax.jit(step))([shape] * 6, shape).mlir_module_serialized


def microbatched(data: bytes, count: int) -> ir.Module:
    """In the current context."""
    module = load_module(data, ir.Context.current, name="step")
    phases = f"shardopt-import,shardopt-microbatch{{num-microbatches={count}}}"
    run_pipeline(module, f"builtin.module({phases})")
    return module


def layers_of_products(balance: str) -> list[int]:
    """Of the forward products of the six blocks."""
    with make_context():
        module = microbatched(step_of(), 2)
        options = f"layers=2 layer-balance={balance} cluster={CLUSTER}"
        run_pipeline(module, f"builtin.module(shardopt-cluster{{{options}}})")
        products = [
            op
            for op in read_program(module).body_ops
            if op.name == "stablehlo.dot_general" and shape_of(op.results[0])[0] == WIDTH // 2
        ]
        return [ir.IntegerAttr(op.attributes[LAYER]).value for op in products[:6]]


def test_what_takes_long_is_shared_out() -> None:
    """By seconds, normalising the rows of the second block fills the rest of the first layer."""
    assert layers_of_products("flops") == [0, 0, 1, 1, 1, 1]
    assert layers_of_products("seconds") == [0, 1, 1, 1, 1, 1]


def test_seconds_are_those_of_the_stage_on_one_device() -> None:
    plan = make_plan(MODEL, PlanOptions("cpu-test:1x1", microbatches=1), cache=False)
    (stage,) = plan.summary.stages
    with make_context():
        program = read_program(microbatched(MODEL, 1))
        options = ClusterLayers(layer_balance="seconds", cluster="cpu-test:1x1")
        _, problem = _extract_body(program, options)
    assert problem.seconds is not None
    assert problem.seconds.sum() == pytest.approx(stage.forward_seconds, rel=0.01)


def computed_again(data: bytes, recompute: str) -> dict[str, int]:
    """How many operations run twice, by name."""
    with make_context():
        program = read_program(microbatched(data, 2))
        body, problem = _extract_body(
            program, ClusterLayers(recompute=recompute, layer_balance="seconds", cluster=CLUSTER)
        )
        names = [op.name for op in body.ops]
    found, counts = np.unique([names[n] for n in problem.computed_again], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def test_what_stages_compute_again_counts_twice() -> None:
    cheap, all_, none = (computed_again(step_of(), mode) for mode in ("auto", "full", "none"))
    assert cheap["tanh"] == all_["tanh"] and "dot_general" not in cheap and none == {}
    assert all_["dot_general"] >= 6
    in_model = computed_again(step_of(checkpointed=True), "none")
    assert in_model["tanh"] > 0 and in_model["dot_general"] <= 6


def planned(said: list[Diagnostic] | None = None, **options: Any) -> Plan:
    settings = PlanOptions(CLUSTER, microbatches=8, layers=2, stages=2, **options)
    return make_plan(
        step_of(), settings, cache=False, handler=None if said is None else said.append
    )


def step_seconds(plan: Plan) -> float:
    with plan.loaded as modules:
        prediction = read_prediction(read_program(modules[dict(plan.forms)["stage"]]).loop)
    assert prediction is not None
    return prediction.step_seconds


def test_the_search_takes_the_shorter_step() -> None:
    said: list[Diagnostic] = []
    each = {
        balance: step_seconds(planned(layer_balance=balance)) for balance in ("flops", "seconds")
    }
    assert each["seconds"] < 0.97 * each["flops"]
    searched = planned(said, layer_balance="search")
    assert step_seconds(searched) == each["seconds"]
    assert searched.to_json()["layers"] == planned(layer_balance="seconds").to_json()["layers"]
    remarks = [diagnostic.message for diagnostic in said if diagnostic.kind == "layers"]
    assert len(remarks) == 1 and remarks[0].startswith("best with layers of equal seconds;")


def test_seconds_are_those_of_a_cluster() -> None:
    with make_context():
        module = microbatched(step_of(), 2)
        with pytest.raises(UserError, match="expected option cluster=<file or preset"):
            run_pipeline(module, "builtin.module(shardopt-cluster{layer-balance=seconds})")
    with pytest.raises(UserError, match="expected option recompute to be auto, none"):
        ClusterLayers(recompute="half")

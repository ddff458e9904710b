"""The cost of a stage in the stage phase is what it has as the shard phase then plans it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir

from examples.gpt import Config, init_params, make_train_step
from shardopt.dialect.prediction import read_prediction
from shardopt.dialect.program import read_program
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, operations, symbol_name
from shardopt.passes.stages.read_step import read_step
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import one_f_one_b_in_flight, stage_configs
from shardopt.support.errors import UserError
from tests.e2e.models import MODELS, batch_args, export_step, mlp

MICROBATCHES = 4


def options(name: str, **changes: object) -> PlanOptions:
    fixed = {"microbatches": MICROBATCHES, "stages": 1, "batch_args": batch_args(name)}
    return PlanOptions("cpu-test:1x2", **{**fixed, **changes})  # type: ignore[arg-type]


def seconds_of_functions(text: str) -> dict[str, float]:
    """The predicted seconds of one execution of every function's fragments."""
    seconds: dict[str, float] = defaultdict(float)
    with make_context() as context:
        for function in functions(load_module(text.encode(), context)):
            for fragment in operations(function, {"mpmd.fragment"}):
                cost = ir.DictAttr(fragment.attributes["shardopt.cost"])
                seconds[symbol_name(function)] += ir.FloatAttr(cost["seconds"]).value
    return seconds


def predicted_and_planned(artifact: bytes, plan_options: PlanOptions) -> tuple[float, float, float]:
    """Seconds of a step without its calls: by the stage phase; by the shard phase, in the loop and
    outside."""
    dumps = dict(make_plan(artifact, plan_options).phases)
    with make_context() as context:
        module = load_module(dumps["cluster"].encode(), context)
        run_pipeline(module, phase_range("stage", "stage", phase_text(plan_options, "stage")))
        predicted = read_prediction(read_program(module).loop)
    planned = seconds_of_functions(dumps["shard"])
    assert predicted is not None
    return (
        predicted.formula_seconds,
        plan_options.microbatches * planned["microbatch"],
        planned["main"],
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "scanned" else pytest.mark.slow) for name in MODELS],
)
def test_a_price_is_what_the_shard_phase_plans(name: str) -> None:
    """One stage: its loop and its update."""
    predicted, loop, others = predicted_and_planned(MODELS[name]()[0], options(name))
    assert predicted == pytest.approx(loop + others, rel=2e-3)
    assert others > 0


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        ("scanned", "selective"),
        *(
            pytest.param("gpt", mode, marks=pytest.mark.slow)
            for mode in ("none", "layer:1", "selective:1", "selective", "layer", "full")
        ),
    ],
)
def test_a_stage_of_two_costs_what_it_recomputes(name: str, recompute: str) -> None:
    """Two stages on one device each: every one costs what the shard phase says of its fragments."""
    plan_options = options(name, stages=2, layers=4, submesh="1x1", recompute=recompute)
    dumps = dict(make_plan(MODELS[name]()[0], plan_options).phases)
    planned: dict[str, float] = defaultdict(float)
    with make_context() as context:
        module = load_module(dumps["cluster"].encode(), context)
        # The embedding is tied: each stage sums up its own terms of the gradient.
        run_pipeline(module, "builtin.module(shardopt-split-sums)")
        step, input_kinds = read_step(read_program(module))
        for function in functions(load_module(dumps["shard"].encode(), context)):
            times = plan_options.microbatches if symbol_name(function) == "microbatch" else 1
            for fragment in operations(function, {"mpmd.fragment"}):
                cost = ir.DictAttr(fragment.attributes["shardopt.cost"])
                mesh = ir.StringAttr(fragment.attributes["mesh_name"]).value
                planned[mesh] += times * ir.FloatAttr(cost["seconds"]).value
    where = load_cluster("cpu-test:1x2")
    singles = [o for o in stage_configs(where) if o.num_devices == 1]
    recomputing = tuple(replace(config, recompute=recompute) for config in singles)
    stage_costs = LazyStageCosts(
        CandidateProblem(
            step=step,
            num_layers=step.num_layers,
            cluster=where,
            configs=recomputing,
            num_microbatches=MICROBATCHES,
            num_stages=2,
            memory_limit_bytes=(),
            input_kinds=input_kinds,
        )
    )
    plan = stage_costs.best(
        one_f_one_b_in_flight, lambda problem, known: solve_stages(problem, 2, known)
    )
    seconds = stage_costs.problem(one_f_one_b_in_flight).seconds
    stage_seconds = [MICROBATCHES * seconds[stage] for stage in plan.stages]
    assert stage_seconds == pytest.approx([planned["m0"], planned["m1"]], rel=5e-3)


def wide_gpt() -> bytes:
    config = Config(layers=1, hidden=64, heads=2, vocab=64, length=32)
    optimizer, step = make_train_step(config)
    params = init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (32, config.length + 1), 0, config.vocab)
    return export_step(step, (params, optimizer.init(params)), (tokens,))[0]


def wide_mlp() -> bytes:
    return mlp(1024, 64, 2)[0]


@pytest.mark.parametrize("model", [wide_mlp, pytest.param(wide_gpt, marks=pytest.mark.slow)])
def test_gradients_are_summed_once_a_step(model: Callable[[], bytes]) -> None:
    """A model that is dear beside its optimizer: the sums are those of the loop's end, not of every
    microbatch."""
    predicted, loop, others = predicted_and_planned(model(), options("gpt", microbatches=8))
    assert predicted == pytest.approx(loop + others, rel=2e-3)


def with_adapters(layers: int = 4, width: int = 128, rank: int = 4) -> bytes:
    """A frozen stack of layers that are computed again, with trained adapters beside them."""

    def loss(adapters: tuple[jax.Array, jax.Array], base: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, each: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
            weight, down, up = each
            return jnp.tanh(x @ weight + x @ down @ up), None

        return jnp.mean(jax.lax.scan(layer, x, (base, *adapters))[0] ** 2)

    def step(adapters: tuple[jax.Array, jax.Array], base: jax.Array, x: jax.Array) -> Any:
        slopes = jax.grad(loss)(adapters, base, x)
        return jax.tree.map(lambda adapter, slope: adapter - 0.1 * slope, adapters, slopes)

    shapes = [(layers, width, rank), (layers, rank, width), (layers, width, width), (64, width)]
    down, up, base, x = (jnp.ones(shape) for shape in shapes)
    return export_step(step, ((down, up),), (base, x))[0]


@pytest.mark.parametrize("method", ["zero3", pytest.param("mics", marks=pytest.mark.slow)])
@pytest.mark.parametrize("microbatches", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_gathered_layers_of_a_stack_are_paid_for(method: str, microbatches: int) -> None:
    plan_options = PlanOptions(
        "cpu-test:2x2",
        stages=1,
        logical_shape="2x2",
        intra_op=method,
        microbatches=microbatches,
        batch_args="3",
    )
    predicted, loop, others = predicted_and_planned(with_adapters(), plan_options)
    assert predicted == pytest.approx(loop + others, rel=2e-3)


def test_what_a_loop_computes_is_paid_for() -> None:
    """A scan over layers that stays a loop is counted operation by operation, as the shard phase
    plans it."""
    plan_options = options("scanned", unroll=False, microbatches=1)
    predicted, loop, others = predicted_and_planned(MODELS["scanned"]()[0], plan_options)
    assert predicted == pytest.approx(loop + others, rel=0.01)


def test_the_stage_phase_keeps_to_the_memory_budget() -> None:
    with pytest.raises(UserError, match="no plan of 1 stage of"):
        make_plan(mlp(8, 16, 2)[0], options("mlp", memory_budget="3000"))

"""Baseline planners of stages on small models: what they plan is what they are known for, no
baseline beats the stage DP on the model they share, and plans give the numbers of one device."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.stages.baselines.registry import INTER_OP
from shardopt.support.errors import UserError
from tests.e2e.baseline_models import mixture, transformer
from tests.e2e.models import MODELS, batch_args
from tests.e2e.preset_models import models, module_of

TOLERANCE = 1e-4
OF_MODEL = {"mixture": mixture, "transformer": transformer, **MODELS}


@cache
def plan_of(model: str, inter_op: Any, microbatches: int = 2) -> Plan:
    options = PlanOptions(
        "cpu-test:2x2",
        inter_op=inter_op,
        microbatches=microbatches,
        layers=2 if model == "mixture" else 4,
        schedule="1f1b",
        batch_args=batch_args(model) if model in MODELS else "auto",
        mcmc_proposals=500,
    )
    return make_plan(OF_MODEL[model]()[0], options)


def methods_of(plan: Plan) -> set[str]:
    """What the shard phase was told of the inside of stages."""
    text = dict(plan.phases)["stage"]
    match = re.search(r"shardopt\.intra_op = \[([^\]]*)\]", text)
    return set(match[1].replace('"', "").split(", ")) if match else {"ilp"}


def collectives(plan: Plan) -> set[str]:
    return {item.kind for stage in plan.summary.stages for item in stage.collectives}


@pytest.mark.slow
def test_stages_are_sharded_as_they_were_planned() -> None:
    assert methods_of(plan_of("transformer", "dp")) == {"ilp"}
    assert methods_of(plan_of("transformer", "pp-dp")) == {"data"}
    assert collectives(plan_of("transformer", "pp-dp")) <= {"all_reduce"}
    assert methods_of(plan_of("transformer", "piper")) <= {"data", "megatron"}
    assert len(plan_of("transformer", "inter-only").summary.stages) == 4
    assert collectives(plan_of("transformer", "inter-only")) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind", "exchanged"),
    [
        ("data", "all_reduce", 7),
        ("zero1", "reduce_scatter", 7),
        ("zero2", "reduce_scatter", 4 * 7),
        ("zero3", "reduce_scatter", 4 * 7),
        ("megatron", "all_reduce", 4 * 4),
    ],
)
def test_gradients_are_exchanged_once_a_step_and_activations_once_a_microbatch(
    method: str, kind: str, exchanged: int
) -> None:
    """A layer has six weights, and the first one positions; ZeRO 2 and 3 exchange the gradients of
    each microbatch, as they hold parts; tensor parallelism adds up activations twice a way."""
    options = PlanOptions(
        "cpu-test:1x4",
        microbatches=4,
        layers=2,
        stages=2,
        submesh="1x2",
        intra_op=method,
        schedule="1f1b",
    )
    plan = make_plan(transformer()[0], options)
    first = plan.summary.stages[0]
    assert sum(item.tensors for item in first.collectives if item.kind == kind) == exchanged
    assert methods_of(plan) == {method}


def test_a_tied_gradient_is_summed_once_where_its_layers_are_one_stage() -> None:
    """The stage DP, which may choose the whole mesh only, sees a sum for each layer that reads the
    embedding. The loss is summed as well."""
    options = PlanOptions("cpu-test:1x2", microbatches=4, intra_op="data", layers=2, submesh="1x2")
    [stage] = make_plan(module_of("gpt"), options).summary.stages
    gradients = len(jax.tree.leaves(models()["gpt"].weights))
    assert [(each.kind, each.tensors) for each in stage.collectives] == [
        ("all_reduce", gradients + 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "planners"),
    [("transformer", ("inter-only", "pp-dp", "megatron", "piper", "mcmc")), ("mixture", INTER_OP)],
)
def test_no_baseline_is_predicted_to_be_faster_than_the_stage_dp(
    model: str, planners: tuple[str, ...]
) -> None:
    best, compared = plan_of(model, "dp").summary.step_seconds, 0
    for inter_op in planners:
        try:
            baseline = plan_of(model, inter_op)
        except UserError:
            assert inter_op not in ("intra-only", "pp-dp", "mcmc")
            continue
        assert best <= baseline.summary.step_seconds * 1.01, inter_op
        compared += 1
    assert compared >= min(6, len(planners))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inter_op"),
    [
        ("transformer", "inter-only"),
        ("transformer", "pp-dp"),
        ("transformer", "megatron"),
        ("transformer", "piper"),
        ("transformer", "mcmc"),
        ("mixture", "deepspeed"),
    ],
)
def test_plans_of_baselines_give_the_numbers_of_one_device(model: str, inter_op: str) -> None:
    artifact, inputs = OF_MODEL[model]()
    with make_context() as context:
        program = prepare(load_module(plan_of(model, inter_op).module, context))
    with open_run(program, "local", quick_compile=True) as run:
        run.load(inputs)
        outputs = list(run.step())
    with make_context() as context:
        expected = run_reference(load_module(artifact, context), inputs)
    assert [row for row in compare(outputs, expected) if not row.within(TOLERANCE)] == []

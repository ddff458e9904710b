"""The searches over numbers of microbatches and of layers, and over schedules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jaxlib.mlir import ir

from shardopt.dialect.prediction import read_prediction
from shardopt.dialect.program import StepProgram, read_program
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.calls.sources import reported_in
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.planning.step_search import (
    Attempt,
    Choice,
    comparison,
    grow_layers,
    microbatch_choices,
    thinned_divisors,
)
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import Diagnostic, Handler
from shardopt.ir.io import load_module
from shardopt.passes.stages.read_step import read_step
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import PHASE_NAMES, phase_range
from shardopt.schedule.schedules import ALIKE, planned_schedules
from shardopt.support.errors import UserError


def chain_step(layers: int, side: int = 64) -> bytes:
    """A step of so many layers with weights of their own."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x * x)

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    shape = jax.ShapeDtypeStruct((side, side), jnp.float32)
    return export.export(jax.jit(step))([shape] * layers, shape).mlir_module_serialized


STEP = (Path(__file__).parent / "two_products.mlir").read_bytes()
OPTIONS = PlanOptions("cpu-test:1x2", microbatches=None, layers=2, stages=2)


@pytest.mark.parametrize(
    ("extent", "expected"),
    [(1, (1,)), (7, (1, 7)), (12, (1, 2, 4, 12)), (64, (1, 2, 4, 8, 16, 32, 64)), (15, (1, 3, 15))],
)
def test_divisors_are_thinned(extent: int, expected: tuple[int, ...]) -> None:
    assert thinned_divisors(extent) == expected


@pytest.mark.parametrize(
    ("batch_args", "counts"),
    [("auto", (1, 2, 6)), ("none", (1,)), ("2:1", (1, 2, 4, 8, 16, 32, 64))],
)
def test_the_batch_says_which_numbers_there_are(batch_args: str, counts: tuple[int, ...]) -> None:
    with make_context() as context:
        choices = microbatch_choices(
            load_module(STEP, context), replace(OPTIONS, batch_args=batch_args), run_phase
        )
    assert tuple(choice.options.microbatches for choice in choices) == counts


def run_phase(
    module: ir.Module, phase: str, options: PlanOptions, handler: Handler, more: str
) -> None:
    text = phase_text(options, phase) + more
    run_pipeline(module, phase_range(phase, phase, text), handler=handler)


def predicted(plan: Plan) -> float:
    with make_context() as context:
        prediction = read_prediction(
            read_program(load_module(dict(plan.forms)["stage"], context)).loop
        )
    assert prediction is not None
    return prediction.step_seconds


def predicted_for(model: bytes, options: PlanOptions) -> float:
    """What the phases up to the choice of stages predict."""
    with reported_in("model", None), make_context() as context:
        module = load_module(model, context)
        for phase in PHASE_NAMES[: PHASE_NAMES.index("stage") + 1]:
            run_phase(module, phase, options, lambda _: None, "")
        prediction = read_prediction(read_program(module).loop)
    assert prediction is not None
    return prediction.step_seconds


def test_the_shortest_predicted_step_wins() -> None:
    diagnostics: list[Diagnostic] = []
    chosen = make_plan(STEP, OPTIONS, cache=False, handler=diagnostics.append)
    tried = {
        count: make_plan(STEP, replace(OPTIONS, microbatches=count), cache=False)
        for count in (1, 2, 6)
    }
    steps = {count: predicted(plan) for count, plan in tried.items()}
    best = min(steps, key=steps.__getitem__)
    assert chosen.summary.num_microbatches == best
    assert chosen.module == tried[best].module
    remark = next(each.message for each in diagnostics if each.kind == "microbatches")
    assert f"{best} microbatch" in remark.split(";")[0]
    planned = {
        int(count): float(step)
        for count, step in re.findall(
            r"(\d+) microbatch\w*: (?:a step takes )?([\d.e-]+) s", remark
        )
    }
    assert planned == pytest.approx({count: steps[count] for count in planned}, rel=1e-3)
    for count, least in re.findall(
        r"(\d+) microbatch\w*: one stage alone takes ([\d.e-]+) s or more", remark
    ):
        assert steps[best] <= float(least) * 1.001
        assert float(least) <= steps[int(count)] * 1.001
        planned[int(count)] = steps[int(count)]
    assert planned.keys() == tried.keys()
    assert [phase for phase, _ in chosen.forms] == [phase for phase, _ in tried[best].forms]


def test_stages_are_planned_for_every_schedule() -> None:
    """Two meshes and four layers: one, two or four stages. The best is what is planned for its
    schedule alone, and none is shorter by more than what counts as alike."""
    diagnostics: list[Diagnostic] = []
    options = replace(
        OPTIONS, microbatches=4, layers=4, stages=None, submesh="1x1", schedule="search"
    )
    step = chain_step(4)
    chosen = make_plan(step, options, cache=False, handler=diagnostics.append)
    remark = next(each.message for each in diagnostics if each.kind == "schedules")
    best, tried = remark.removeprefix("best with ").split("; steps: ")
    names = [text.split(": ")[0] for text in tried.split("; ")]
    assert (names[0], sorted(names)) == ("auto", sorted(planned_schedules()))
    alone = make_plan(step, replace(options, schedule=best), cache=False)
    assert chosen.module == alone.module
    assert chosen.summary.schedule == (best if best != "auto" else alone.summary.schedule)
    steps = {}
    for name in planned_schedules():
        try:
            steps[name] = predicted_for(step, replace(options, schedule=name))
        except UserError:
            assert re.search(rf"{name}: (no plan puts|one stage alone|the devices)", tried)
    assert {"auto", "zero-bubble", "zb-v", "interleaved:2"} <= steps.keys()
    assert steps[best] * (1 - ALIKE) <= min(steps.values())
    assert steps[best] < steps["auto"] or best == "auto"


def test_schedules_and_microbatches_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each number of microbatches the step is cut and read once, whatever the schedule."""
    diagnostics: list[Diagnostic] = []
    options = replace(OPTIONS, stages=None, schedule="search")
    read: list[int] = []

    def counted(program: StepProgram, batch_args: Sequence[str]) -> Any:
        read.append(program.num_microbatches)
        return read_step(program, batch_args)

    monkeypatch.setattr("shardopt.passes.stages.choosing.read_step", counted)
    plan = make_plan(STEP, options, cache=False, handler=diagnostics.append)
    assert read == [1, 2, 6]
    remark = next(each.message for each in diagnostics if each.kind == "schedules")
    best = remark.removeprefix("best with ").split("; ")[0]
    count, schedule = re.fullmatch(r"(\d+) microbatch\w*, (\S+)", best).groups()  # type: ignore[union-attr]
    alone = replace(options, microbatches=int(count), schedule=schedule)
    assert plan.module == make_plan(STEP, alone, cache=False).module


def test_layers_get_more_as_long_as_the_step_gets_shorter() -> None:
    """Numbers as found, then multiples; the best is the one before the last, or the last there may
    be."""
    diagnostics: list[Diagnostic] = []
    options = replace(OPTIONS, microbatches=2, layers="search", stages=None)
    plan = make_plan(STEP, options, cache=False, handler=diagnostics.append)
    remark = next(each.message for each in diagnostics if each.kind == "layers")
    best, tried = remark.removeprefix("best with ").split("; steps: ")
    names = [text.split(": ")[0] for text in tried.split("; ")]
    assert names[0] == "layers as found"
    first = make_plan(STEP, replace(options, layers=None), cache=False)
    if best == "layers as found":
        assert plan.module == first.module
    else:
        assert (
            plan.module
            == make_plan(STEP, replace(options, layers=int(best.split()[0])), cache=False).module
        )
    assert best in names[-2:]
    assert [phase for phase, _ in plan.forms] == [phase for phase, _ in first.forms]


def test_layers_grow_until_a_step_gets_no_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers are found; eight and twelve are better, sixteen cannot be."""
    seconds = {None: 4.0, 8: 3.0, 12: 2.5}

    def attempt(
        choice: Choice, module: object, run: object, faster_than: float | None = None
    ) -> Attempt:
        made = Attempt(choice, module, num_layers=choice.options.layers or 4)  # type: ignore[arg-type]
        made.step_seconds = seconds.get(choice.options.layers)
        made.refusal = None if made.step_seconds else UserError("cannot cut")
        return made

    monkeypatch.setattr("shardopt.frontend.planning.step_search._try", attempt)
    with make_context() as context:
        best, attempts = grow_layers(load_module(STEP, context), OPTIONS, run=None)  # type: ignore[arg-type]
    assert best.choice.options.layers == 12
    assert comparison(best, attempts) == (
        "best with 12 layers; steps: layers as found: 4 s; 8 layers: 3 s; 12 layers: 2.5 s; 16 "
        "layers: cannot cut"
    )


def test_layers_and_microbatches_are_searched_one_after_the_other() -> None:
    diagnostics: list[Diagnostic] = []
    make_plan(STEP, replace(OPTIONS, layers="search"), cache=False, handler=diagnostics.append)
    assert [each.kind for each in diagnostics if each.kind in ("microbatches", "layers")] == [
        "microbatches",
        "layers",
    ]


def test_without_any_plan_the_last_reason_is_given() -> None:
    with pytest.raises(UserError, match="fits the memory of a device"):
        make_plan(STEP, replace(OPTIONS, memory_budget="1KiB"), cache=False)
    with pytest.raises(UserError, match="fits the memory of a device"):
        make_plan(STEP, replace(OPTIONS, memory_budget="1KiB", schedule="search"), cache=False)
    with pytest.raises(UserError, match="none called 'elsewhere'"):
        make_plan(STEP, replace(OPTIONS, batch_args="elsewhere"), cache=False)

"""One model under every schedule, with real weights: the same parameters, and as much memory as was
predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.schedule.live_bytes import (
    SCHEDULES,
    Measured,
    gpt,
    measure,
    plan_for,
    reference_steps,
)
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.reference import Reference, compare
from tests.e2e.models import export_step, mlp

STEPS = 5
TOLERANCE = 1e-5
Model = Callable[[], tuple[bytes, list[np.ndarray]]]
MODELS: dict[str, Model] = {"mlp": lambda: mlp(8, 16, 4), "gpt": lambda: gpt(8, 16)}
# Their stages are fragments of the same operations, which are summed up in the same order.
WHOLE_BACKWARDS = ("gpipe", "1f1b", "eager-1f1b", "interleaved:2")


# All of them with the small model; with the other one those whose stages lie, or are cut, in
# different ways.
FEW = ("1f1b", "interleaved:2", "dualpipe-v", "chimera")


@pytest.fixture(scope="module", params=["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> tuple[bytes, list[np.ndarray]]:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def measured(model: tuple[bytes, list[np.ndarray]]) -> dict[str, Measured]:
    artifact, inputs = model
    names = SCHEDULES if artifact == MODELS["mlp"]()[0] else FEW
    return {name: measure(plan_for(artifact, name, 4), inputs, STEPS) for name in names}


@pytest.fixture
def optimized_code() -> Iterator[None]:
    """Vectorized sums, which round less than those of other tests: the tolerance is narrow."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.usefixtures("optimized_code")
def test_parameters_after_five_steps_are_those_of_one_device(
    model: tuple[bytes, list[np.ndarray]], measured: dict[str, Measured]
) -> None:
    expected = reference_steps(*model, STEPS)
    for name, each in measured.items():
        assert [
            row for row in compare(list(each.outputs), expected) if not row.within(TOLERANCE)
        ] == [], name


@pytest.mark.usefixtures("optimized_code")
def test_a_file_with_halves_and_whole_backwards(tmp_path: Path) -> None:
    """Four stages in a V on two meshes, as torch writes DualPipeV."""
    artifact, inputs = MODELS["mlp"]()
    listed = tmp_path / "mine.csv"
    listed.write_text(
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,0B0,3F2,3B2,0B1,3F3,3B3,0B2,0I3,0W3\n"
        "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,2F3,1B1,2B2,1B2,2I3,"
        "1I3,2W3,1W3\n"
    )
    options = PlanOptions(
        "cpu-test:1x2", microbatches=4, layers=4, stages=4, schedule=str(listed), submesh="1x1"
    )
    run = measure(make_plan(artifact, options), inputs, STEPS)
    assert run.schedule == "mine"
    rows = compare(list(run.outputs), reference_steps(artifact, inputs, STEPS))
    assert [row for row in rows if not row.within(TOLERANCE)] == []


@pytest.mark.usefixtures("optimized_code")
def test_two_pipelines_make_what_is_no_sum_of_gradients() -> None:
    """Rows of the batch, a maximum over them, and what depends on the number of a row."""

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        def loss_fn(weights: list[jax.Array]) -> Any:
            places = jnp.arange(x.shape[0], dtype=x.dtype)[:, None]
            y = x + 0.01 * places
            for weight in weights:
                y = jnp.tanh(y @ weight)
            return jnp.mean(y * places), y

        (loss, rows), grads = jax.value_and_grad(loss_fn, has_aux=True)(weights)
        state = [weight - 0.1 * grad for weight, grad in zip(weights, grads, strict=True)]
        return state, loss, rows, jnp.max(rows), jnp.argmax(rows, axis=1)

    keys = jax.random.split(jax.random.key(0), 5)
    weights = [jax.random.normal(key, (8, 8)) / 4 for key in keys[1:]]
    artifact, inputs = export_step(step, (weights,), (jax.random.normal(keys[0], (12, 8)),))
    options = PlanOptions(
        "cpu-test:1x4", microbatches=6, layers=4, stages=4, submesh="1x1", schedule="chimera"
    )
    plan = make_plan(artifact, options)
    assert plan.summary.num_microbatches == 6
    assert [row.layers for row in plan.summary.stages[4:]] == [
        row.layers for row in plan.summary.stages[:4]
    ]
    run = measure(plan, inputs, 1)
    with make_context() as context:
        expected = Reference(load_module(artifact, context))(inputs)
    assert [row for row in compare(list(run.outputs), expected) if not row.within(TOLERANCE)] == []


@cache
def whole_gpt() -> tuple[bytes, list[np.ndarray]]:
    return gpt(16, 16)


@cache
def steps_of_whole_gpt() -> list[np.ndarray]:
    return reference_steps(*whole_gpt(), STEPS)


@pytest.mark.slow
@pytest.mark.usefixtures("optimized_code")
@pytest.mark.parametrize("intra_op", ["zero2", "megatron"])
def test_methods_know_the_batch_of_both_pipelines(intra_op: str) -> None:
    artifact, inputs = whole_gpt()
    options = PlanOptions(
        "cpu-test:1x4",
        microbatches=4,
        layers=2,
        stages=2,
        submesh="1x2",
        schedule="chimera",
        intra_op=intra_op,
    )
    run = measure(make_plan(artifact, options), inputs, STEPS)
    rows = compare(list(run.outputs), steps_of_whole_gpt())
    assert [row for row in rows if not row.within(TOLERANCE)] == []
    assert all(0.95 < mesh.ratio < 1.05 for mesh in run.meshes)


def test_schedules_of_whole_backwards_agree_in_every_bit(measured: dict[str, Measured]) -> None:
    for name in measured.keys() & set(WHOLE_BACKWARDS):
        pairs = zip(measured[name].outputs, measured["1f1b"].outputs, strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), name


def test_live_bytes_are_those_of_the_simulator(measured: dict[str, Measured]) -> None:
    for name, each in measured.items():
        assert each.schedule == name
        assert len(each.meshes) == SCHEDULES[name]
        assert [mesh for mesh in each.meshes if not 0.95 < mesh.ratio < 1.05] == [], name

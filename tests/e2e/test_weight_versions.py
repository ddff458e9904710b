"""Schedules that use older weights, against what they mean, step by step on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.schedule.live_bytes import measure
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare
from shardopt.support.errors import UserError
from tests.e2e.models import export_step

STEPS = 5
TOLERANCE = 1e-5
WIDTH, LAYERS = 16, 4
# How many updates old the weights of each of four stages are.
AGES = {"pipedream-2bw": (1, 1, 1, 1), "pipedream": (3, 2, 1, 0)}

Weights = list[jax.Array]


@pytest.fixture(autouse=True)
def optimized_code() -> Iterator[None]:
    """Sums that round less, as of the other schedules."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def as_they_are(weights: Weights) -> Weights:
    return weights


def directions(weights: Weights) -> Weights:
    """Weights of one length, which are made once a step, before the microbatches."""
    return [3 * weight / jnp.linalg.norm(weight) for weight in weights]


@dataclass(frozen=True)
class Model:
    """`read` is what the layers read of weights. With momentum, and a pull towards that."""

    read: Callable[[Weights], Weights] = as_they_are

    def loss(self, used: Weights, x: jax.Array) -> jax.Array:
        for weight in used:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x * x)

    def update(self, weights: Weights, means: Weights, grads: Weights) -> tuple[Weights, Weights]:
        means = [0.9 * mean + grad for mean, grad in zip(means, grads, strict=True)]
        rows = zip(weights, means, self.read(weights), strict=True)
        return [0.98 * w - 0.1 * mean + 0.01 * used for w, mean, used in rows], means

    def step(
        self, weights: Weights, means: Weights, x: jax.Array
    ) -> tuple[Weights, Weights, jax.Array]:
        loss, grads = jax.value_and_grad(lambda each: self.loss(self.read(each), x))(weights)
        return *self.update(weights, means, grads), loss

    def export(self) -> tuple[bytes, list[np.ndarray]]:
        keys = jax.random.split(jax.random.key(0), LAYERS + 1)
        weights = [0.3 * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[1:]]
        means = [jnp.zeros_like(weight) for weight in weights]
        return export_step(self.step, (weights, means), (jax.random.normal(keys[0], (8, WIDTH)),))

    def expect(
        self, inputs: Sequence[np.ndarray], ages: Sequence[int], steps: int
    ) -> list[np.ndarray]:
        """The schedule as its paper has it: the gradient of step t is that of weights W(t - age),
        of W(0) before; the update is that of W(t). What the backward does once a step, behind the
        microbatches, is a part of the update."""
        weights = [jnp.asarray(each) for each in inputs[:LAYERS]]
        means = [jnp.asarray(each) for each in inputs[LAYERS : 2 * LAYERS]]
        versions = [weights]
        for t in range(steps):
            old = [versions[max(t - age, 0)][layer] for layer, age in enumerate(ages)]
            loss, of_used = jax.value_and_grad(self.loss)(self.read(old), jnp.asarray(inputs[-1]))
            (grads,) = jax.vjp(self.read, weights)[1](of_used)
            weights, means = self.update(weights, means, grads)
            versions.append(weights)
        return [np.asarray(each) for each in (*weights, *means, loss)]


PLAIN = Model()


@cache
def exported(model: Model) -> tuple[bytes, list[np.ndarray]]:
    """Once: a second export has other locations, and a plan of its own."""
    return model.export()


@cache
def plan_for(artifact: bytes, schedule: str, devices: int = 1, **options: Any) -> Plan:
    options = {"stages": LAYERS, "layers": LAYERS, **options}
    count = options["stages"] * devices
    submesh = f"1x{devices}"
    options = {"microbatches": 4, "submesh": submesh, "schedule": schedule, **options}
    return make_plan(artifact, PlanOptions(f"cpu-test:1x{count}", **options))


def faults(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[Any]:
    return [row for row in compare(list(outputs), expected) if not row.within(TOLERANCE)]


@pytest.mark.parametrize("schedule", AGES)
def test_steps_are_those_of_the_papers(schedule: str) -> None:
    artifact, inputs = exported(PLAIN)
    measured = measure(plan_for(artifact, schedule), inputs, STEPS)
    assert measured.schedule == schedule
    assert faults(measured.outputs, PLAIN.expect(inputs, AGES[schedule], STEPS)) == []
    # They are others than those of the model.
    assert faults(measured.outputs, PLAIN.expect(inputs, (0,) * LAYERS, STEPS))
    for mesh in measured.meshes:
        assert 0.95 < mesh.ratio < 1.05, mesh


@pytest.mark.slow
def test_stages_of_several_devices_and_layers() -> None:
    artifact, inputs = exported(PLAIN)
    plan = plan_for(artifact, "pipedream", 2, stages=2, intra_op="data")
    expected = PLAIN.expect(inputs, (1, 1, 0, 0), STEPS)
    assert faults(measure(plan, inputs, STEPS).outputs, expected) == []


def test_the_search_of_stages_counts_versions() -> None:
    """Two layers on a device fit without a second version of their weights: stages are cut so that
    both versions fit, or the search says that they do not."""
    artifact, _ = exported(PLAIN)
    options = PlanOptions(
        "cpu-test:1x4", microbatches=4, layers=LAYERS, submesh="1x1", memory_budget="8KiB"
    )
    plan = make_plan(artifact, replace(options, schedule="pipedream-2bw"))
    assert len(plan.to_json()["stages"]) == LAYERS
    too_little = replace(options, schedule="pipedream", memory_budget="6400")
    with pytest.raises(UserError, match="in flight, 3 older versions of weights"):
        make_plan(artifact, too_little)


def test_what_is_made_of_weights_before_the_microbatches() -> None:
    """The loop reads it of old weights, the update of the newest."""
    model = Model(directions)
    artifact, inputs = exported(model)
    plan = plan_for(artifact, "pipedream-2bw")
    expected = model.expect(inputs, AGES["pipedream-2bw"], STEPS)
    assert faults(measure(plan, inputs, STEPS).outputs, expected) == []


def test_one_stage_has_nothing_on_its_way() -> None:
    artifact, inputs = exported(PLAIN)
    plan = plan_for(artifact, "pipedream-2bw", stages=1)
    expected = PLAIN.expect(inputs, (0,) * LAYERS, STEPS)
    assert faults(measure(plan, inputs, STEPS).outputs, expected) == []


def test_versions_begin_as_what_weights_are_given() -> None:
    artifact, inputs = exported(PLAIN)
    ages = AGES["pipedream-2bw"]
    with make_context() as context:
        program = prepare(load_module(plan_for(artifact, "pipedream-2bw").module, context))
    # Nobody sees the versions.
    assert (len(program.arguments), len(program.results)) == (len(inputs), len(inputs))
    with open_run(program, quick_compile=True) as run:
        run.load(inputs)
        for _ in range(3):
            outputs = run.step()
        given = dict(enumerate(outputs[: 2 * LAYERS]))
        run.step(given)
        outputs = run.step()
        expected = PLAIN.expect([*PLAIN.expect(inputs, ages, 3)[:-1], inputs[-1]], ages, 2)
        assert faults(outputs, expected) == []


def test_a_checkpoint_has_the_newest_weights(tmp_path: Path) -> None:
    """Training goes on from it as it began: under this schedule, and under any other."""
    artifact, inputs = exported(PLAIN)
    ages = AGES["pipedream"]
    saved = PLAIN.expect(inputs, ages, 3)
    with make_context() as context:
        programs = {
            name: prepare(load_module(plan_for(artifact, name).module, context))
            for name in ("pipedream", "1f1b")
        }
    with open_run(programs["pipedream"], quick_compile=True) as run:
        run.load(inputs)
        for _ in range(3):
            run.step()
        run.save(tmp_path / "saved")
    for name, going_on in (("pipedream", ages), ("1f1b", (0,) * LAYERS)):
        with open_run(programs[name], quick_compile=True) as run:
            run.restore(tmp_path / "saved")
            run.step({len(inputs) - 1: inputs[-1]})
            outputs = run.step()
            expected = PLAIN.expect([*saved[:-1], inputs[-1]], going_on, 2)
            assert faults(outputs, expected) == []

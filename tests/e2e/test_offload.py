"""Stages whose optimizer state, or whose activations, lie on their hosts: the same numbers to the
last bit, and devices that hold what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.schedule.live_bytes import gpt, measure
from shardopt.dialect.program import read_program
from shardopt.forms.exported_form import read_exported
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.hardware.cluster_file import describe, load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.instructions import Move
from shardopt.support.documents import json_text
from shardopt.support.errors import UserError
from tests.e2e.models import export_step

STEPS = 3
Model: TypeAlias = tuple[bytes, list[np.ndarray]]


def plan_of(model: Model, **options: Any) -> Plan:
    keywords = {
        "microbatches": 4,
        "layers": 4,
        "stages": 2,
        "submesh": "1x1",
        "schedule": "1f1b",
        "recompute": "none",
        **options,
    }
    return _plan(model[0], **keywords)


@cache
def _plan(artifact: bytes, cluster: str = "cpu-test:1x2", **options: Any) -> Plan:
    return make_plan(artifact, PlanOptions(cluster, **options))


@cache
def momentum(rows: int = 8, width: int = 32) -> Model:
    """Four layers with residuals and momentum: a quarter of the time of a GPT, of which the slow
    tests are."""

    def loss_fn(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(weights: Any, velocity: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(weights, x, y)
        velocity = [0.9 * v + g for v, g in zip(velocity, grads, strict=True)]
        weights = [w - 0.02 * v for w, v in zip(weights, velocity, strict=True)]
        return weights, velocity, loss

    draw = np.random.default_rng(0).standard_normal
    weights = [0.2 * draw((width, width), np.float32) for _ in range(4)]
    batch = (draw((rows, width), np.float32), draw((rows, width), np.float32))
    return export_step(step, (weights, [np.zeros_like(w) for w in weights]), batch)


def run(plan: Plan, inputs: list[np.ndarray], backend: str = "local") -> list[np.ndarray]:
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    with open_run(program, backend, quick_compile=True) as opened:
        opened.load(inputs)
        for _ in range(STEPS):
            outputs = list(opened.step())
        return outputs


@pytest.mark.parametrize("of_model", [momentum, pytest.param(gpt, marks=pytest.mark.slow)])
def test_devices_hold_less_and_compute_the_same(of_model: Callable[[int, int], Model]) -> None:
    model = of_model(8, 32)
    plain, offloaded = (
        measure(plan_of(model, offload=mode), model[1], STEPS) for mode in ("none", "optimizer")
    )
    for before, after in zip(plain.meshes, offloaded.meshes, strict=True):
        assert after.measured == after.of_program
        assert after.measured < 0.85 * before.measured
        assert after.ratio == pytest.approx(1.0, abs=0.02)
    for expected, output in zip(plain.outputs, offloaded.outputs, strict=True):
        np.testing.assert_array_equal(expected, output)


@pytest.mark.parametrize(
    ("of_model", "options"),
    [
        (momentum, {"stages": 1, "submesh": "1x2"}),
        *(
            pytest.param(gpt, options, marks=pytest.mark.slow)
            for options in (
                {"stages": 1, "submesh": "1x2"},
                {"schedule": "zb-v", "stages": 4, "recompute": "layer"},
                {"schedule": "pipedream-2bw"},
            )
        ),
    ],
)
def test_whatever_the_plan_is_the_numbers_stay(
    of_model: Callable[[int, int], Model], options: dict[str, Any]
) -> None:
    model = of_model(8, 32)
    expected, outputs = (
        run(plan_of(model, offload=mode, **options), model[1]) for mode in ("none", "optimizer")
    )
    for one, other in zip(expected, outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@cache
def preconditioned() -> Model:
    """Updates that solve equations with averages on the hosts: a loop over pivots is in them, and
    what pieces of an update hand on is small."""
    rows, width = 8, 12

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(weights: Any, averages: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x, y)
        averages = [0.9 * a + 0.1 * g @ g.T for a, g in zip(averages, grads, strict=True)]
        sizes = [jnp.eye(width) + a for a in averages]
        updates = [jnp.linalg.solve(a, g) for a, g in zip(sizes, grads, strict=True)]
        weights = [w - 0.1 * u for w, u in zip(weights, updates, strict=True)]
        return weights, averages, value

    values = np.random.default_rng(0).standard_normal((5, width, width)).astype(np.float32) * 0.3
    averages = [jnp.eye(width)] * 3
    return export_step(step, (list(values[:3]), averages), (values[3, :rows], values[4, :rows]))


@cache
def averaged() -> Model:
    """A teacher that is brought up to date before the loop, which reads it: no state of the hosts.
    Moments are."""
    rows, width = 8, 12

    def apply(weights: Any, x: jax.Array) -> jax.Array:
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        return x

    def step(weights: Any, teacher: Any, moments: Any, x: jax.Array) -> Any:
        teacher = [0.9 * t + 0.1 * w for t, w in zip(teacher, weights, strict=True)]

        def loss(weights: Any) -> jax.Array:
            return jnp.mean((apply(weights, x) - apply(teacher, x[:, ::-1])) ** 2)

        value, grads = jax.value_and_grad(loss)(weights)
        moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
        weights = [w - 0.1 * m for w, m in zip(weights, moments, strict=True)]
        return weights, teacher, moments, value

    values = np.random.default_rng(0).standard_normal((4, width, width)).astype(np.float32) * 0.3
    zeros = [np.zeros((width, width), np.float32)] * 3
    return export_step(step, (list(values[:3]), zeros, zeros), (values[3, :rows],))


@pytest.mark.parametrize("of_model", [preconditioned, averaged])
def test_state_that_is_used_in_other_ways_keeps_its_numbers(of_model: Any) -> None:
    model = of_model()
    expected, outputs = (
        run(plan_of(model, offload=mode, layers=2), model[1]) for mode in ("none", "optimizer")
    )
    for one, other in zip(expected, outputs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_processes_keep_both_on_their_hosts_too() -> None:
    """Optimizer state, and activations."""
    model = momentum(64)
    plan = plan_of(model, offload="all")
    assert {row.offload for row in plan.summary.stages} == {"all"}
    expected, outputs = (run(plan, model[1], backend) for backend in ("local", "process"))
    for one, other in zip(expected, outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("of_model", "options", "share"),
    [
        # Two microbatches in flight on the first mesh, and one on the last.
        (momentum, {}, 0.8),
        pytest.param(gpt, {}, 0.75, marks=pytest.mark.slow),
        # One of the two has the second half of the backward still to come.
        pytest.param(gpt, {"schedule": "zb-v", "stages": 4}, 0.9, marks=pytest.mark.slow),
        pytest.param(
            gpt, {"schedule": "gpipe", "recompute": "selective"}, 0.99, marks=pytest.mark.slow
        ),
        pytest.param(gpt, {"schedule": "pipedream-2bw"}, 0.9, marks=pytest.mark.slow),
    ],
)
def test_activations_wait_on_hosts(
    of_model: Callable[[int, int], Model], options: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """Of the same stages, as the search may cut others."""
    model = of_model(32, 64) if of_model is gpt else of_model(512, 16)
    plain = plan_of(model, **options)
    document: Any = plain.to_json()
    for stage in document["stages"]:
        stage["offload"] = "activations"
    file = tmp_path / "plan.json"
    file.write_text(json_text(document))
    without_cuts = {**options, "stages": None, "submesh": None}
    offloaded = plan_of(model, **without_cuts, plan=str(file))
    before, after = (measure(plan, model[1], STEPS) for plan in (plain, offloaded))
    for expected, output in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_array_equal(expected, output)
    for each in after.meshes:
        assert each.measured == each.of_program
        assert each.ratio == pytest.approx(1.0, abs=0.02)
    assert after.meshes[0].measured < share * before.meshes[0].measured
    # What waits of all microbatches in flight.
    first = offloaded.summary.stages[0]
    assert first.offload == "activations" and first.host_bytes > 0


@cache
def mixed() -> Model:
    """Adam on float32 weights of which the loop reads copies in bfloat16, clipped by the norm of all
    gradients: the copies are made in one step and read in the next."""

    def loss_fn(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(jnp.square(x.astype(jnp.float32) - y))

    def step(low: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        masters, first, second, count = state
        loss, grads = jax.value_and_grad(loss_fn)(low, x, y)
        grads = [grad.astype(jnp.float32) for grad in grads]
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in grads))
        grads = [grad / jnp.maximum(norm, 1.0) for grad in grads]
        count = count + 1
        first = [0.9 * m + 0.1 * grad for m, grad in zip(first, grads, strict=True)]
        second = [0.99 * v + 0.01 * grad**2 for v, grad in zip(second, grads, strict=True)]
        rate = 0.01 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        masters = [
            w - rate * m / (jnp.sqrt(v) + 1e-6)
            for w, m, v in zip(masters, first, second, strict=True)
        ]
        low = [w.astype(jnp.bfloat16) for w in masters]
        return (low, (masters, first, second, count)), loss

    keys = jax.random.split(jax.random.key(0), 6)
    masters = [jax.random.normal(key, (32, 32)) / 6 for key in keys[:4]]
    zeros = [jnp.zeros_like(w) for w in masters]
    state = (masters, zeros, zeros, jnp.float32(0))
    low = [w.astype(jnp.bfloat16) for w in masters]
    x = jax.random.normal(keys[4], (16, 32)).astype(jnp.bfloat16)
    return export_step(step, (low, state), (x, jax.random.normal(keys[5], (16, 32))))


def test_master_weights_and_moments_rest_on_the_hosts() -> None:
    """Three of four bytes of the state: of each weight a float32 copy and two moments, but neither
    what the loop reads nor the number of the step."""
    model = mixed()
    plan = plan_of(model, offload="optimizer")
    with make_context() as context:
        exported = read_exported(load_module(plan.module, context))
        program = prepare(load_module(plan.module, context))
    resting = [each for each in exported.arguments if each.value.spec.memory == "host"]
    assert [each.value.spec.dtype for each in resting] == ["float32"] * 12
    assert sum(row.host_bytes for row in plan.summary.stages) == 12 * 4 * 32 * 32
    moves = [
        each for part in program.meshes for each in part.instructions if isinstance(each, Move)
    ]
    assert len(moves) == 2 * 12
    expected, outputs = (
        run(plan_of(model, offload=mode), model[1]) for mode in ("none", "optimizer")
    )
    for one, other in zip(expected, outputs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_search_offloads_where_memory_binds(tmp_path: Path) -> None:
    """The first of two equal stages would take a few hundred bytes more."""
    model = momentum()
    free, tight = (
        plan_of(model, offload="auto", memory_budget=str(budget)) for budget in (80_000, 33_000)
    )
    assert [row.offload for row in free.summary.stages] == ["none", "none"]
    assert [row.offload for row in tight.summary.stages] == ["optimizer", "none"]
    assert tight.summary.step_seconds > free.summary.step_seconds
    assert all(row.peak_bytes <= 33_000 for row in tight.summary.stages)
    with pytest.raises(UserError, match="fits the memory of a device"):
        plan_of(model, memory_budget="33000")
    # What was decided stands in the plan file, and is not decided again.
    file = tmp_path / "plan.json"
    file.write_text(json_text(tight.to_json()))
    again = plan_of(model, plan=str(file), stages=None, submesh=None)
    assert [row.offload for row in again.summary.stages] == ["optimizer", "none"]


def test_nothing_is_offloaded_over_a_link_that_nobody_knows(tmp_path: Path) -> None:
    described = describe(load_cluster("cpu-test:1x2"))
    del described["host_link"]
    file = tmp_path / "cluster.json"
    file.write_text(json_text(described))
    with pytest.raises(UserError, match="option offload: expected field 'host_link' of a host"):
        plan_of(momentum(), cluster=str(file), offload="optimizer")


def test_the_loop_says_what_is_offloaded() -> None:
    with make_context() as context:
        for mode, expected in (("none", None), ("optimizer", '["optimizer", "optimizer"]')):
            plan = plan_of(momentum(), offload=mode)
            loop = read_program(load_module(plan.module, context)).loop
            attributes = loop.attributes
            found = (
                str(attributes["shardopt.offload"]) if "shardopt.offload" in attributes else None
            )
            assert found == expected

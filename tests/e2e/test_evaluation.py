"""An evaluation step through all phases and the runtime, alone, and beside training on the weights
where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.frontend.planning.follow import follow
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.reference import Reference, compare
from shardopt.runtime.run import Run
from shardopt.support.errors import UserError
from tests.e2e.models import export_step


@pytest.fixture(scope="module")
def evaluation() -> tuple[bytes, list[np.ndarray]]:
    """A mean loss, a number of hits, the largest logit, and what is predicted for every example."""

    def step(params: Any, x: jax.Array, labels: jax.Array) -> Any:
        hidden = x
        for weight in params[:-1]:
            hidden = jnp.tanh(hidden @ weight) + hidden
        logits = hidden @ params[-1]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        predicted = jnp.argmax(logits, axis=1)
        return -jnp.mean(chosen), jnp.sum(predicted == labels), jnp.max(logits), predicted

    keys = jax.random.split(jax.random.key(0), 6)
    params = (
        *(0.3 * jax.random.normal(key, (16, 16)) for key in keys[:3]),
        jax.random.normal(keys[3], (16, 4)),
    )
    batch = (jax.random.normal(keys[4], (16, 16)), jax.random.randint(keys[5], (16,), 0, 4))
    return export_step(lambda x, labels, *weights: step(weights, x, labels), (), (*batch, *params))


def test_every_result_is_that_of_one_device(evaluation: tuple[bytes, list[np.ndarray]]) -> None:
    artifact, inputs = evaluation
    options = PlanOptions("cpu-test:1x2", microbatches=4, stages=2, submesh="1x1", batch_args="0,1")
    plan = make_plan(artifact, options)
    assert plan.summary.schedule == "inference"
    assert str(plan.simulate().schedule) == "0F0 0F1 0F2 0F3\n1F0 1F1 1F2 1F3"
    with make_context() as context:
        reference = Reference(load_module(plan.original, context, name="original"))
        program = prepare(load_module(plan.module, context, name="plan"))
    with open_run(program, "local", quick_compile=True) as run:
        run.load(inputs)
        outputs = list(run.step())
    assert [row for row in compare(outputs, reference(inputs)) if not row.within(1e-5)] == []


@pytest.fixture(scope="module")
def trained() -> tuple[Plan, Program, Program, Program]:
    """A plan for training; programs of training, of an evaluation that follows it, and of one that
    does not."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((forward(params, x) - y) ** 2)

    def train(params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    weights = tuple(jax.ShapeDtypeStruct((16, 16), jnp.float32) for _ in range(4))
    batch = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    step = jax.export.export(jax.jit(train, donate_argnums=0))(weights, batch, batch)
    other = jax.export.export(jax.jit(evaluate, keep_unused=True))(batch, batch, weights)
    options = PlanOptions("cpu-test:1x4", microbatches=4, stages=2, submesh="1x2")
    plan = make_plan(step.mlir_module_serialized, options)
    following = follow(plan, other.mlir_module_serialized, FOLLOWED, batch_args="0,1")
    alone = make_plan(
        other.mlir_module_serialized, replace(options, batch_args="0,1", stages=1, submesh="1x4")
    )
    with make_context() as context:
        programs = [prepare(load_module(each.module, context)) for each in (plan, following, alone)]
    return plan, programs[0], programs[1], programs[2]


FOLLOWED = {2 + k: k for k in range(4)}  # the weights, behind the batch


def forward(params: Any, x: jax.Array) -> jax.Array:
    for weight in params:
        x = jnp.tanh(x @ weight) + x
    return x


def evaluate(x: jax.Array, y: jax.Array, params: Any) -> Any:
    error = jnp.abs(forward(params, x) - y)
    return jnp.max(error), jnp.mean(error)


@pytest.mark.parametrize("backend", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_weights_are_evaluated_where_training_has_left_them(
    trained: tuple[Plan, Program, Program, Program], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, training, following, alone = trained
    generator = np.random.default_rng(0)
    weights = [0.3 * generator.normal(size=(16, 16)).astype(np.float32) for _ in range(4)]
    x, y, z = (generator.normal(size=(16, 16)).astype(np.float32) for _ in range(3))
    for number, source in FOLLOWED.items():
        assert following.arguments[number].value == training.arguments[source].value
    with open_run(training, backend, quick_compile=True) as run:
        run.load([*weights, x, y])
        with pytest.raises(
            UserError,
            match=r"the attached program has mesh m0.*, which the running one does not have",
        ):
            run.attach(alone, FOLLOWED)
        evaluation = run.attach(following, FOLLOWED, quick_compile=True)
        with pytest.raises(UserError, match="2 arguments have no value"):
            evaluation.step()
        sent: list[tuple[int, ...]] = []
        by_worker = Run._by_worker
        monkeypatch.setattr(
            Run,
            "_by_worker",
            lambda mine, values: sent.append(tuple(values)) or by_worker(mine, values),
        )
        for step in range(3):
            now = [run.argument(number) for number in range(4)]
            expected = jax.jit(evaluate)(z, y, tuple(now))
            np.testing.assert_allclose(evaluation.step({0: z, 1: y})[:], expected, rtol=1e-5)
            assert evaluation.steps_done == step + 1 and sent[-1] == (0, 1)
            run.step()
            assert not np.array_equal(run.argument(0), now[0])


def test_what_cannot_be_followed_is_refused(
    trained: tuple[Plan, Program, Program, Program],
) -> None:
    plan = trained[0]
    batch = jax.ShapeDtypeStruct((16, 16), jnp.float32)

    def turned(x: jax.Array, y: jax.Array, params: Any) -> Any:
        return evaluate(x, y, params[::-1])

    backwards = jax.export.export(jax.jit(turned))(batch, batch, (batch,) * 4)
    with pytest.raises(UserError, match="weights are read in another order than the plan has them"):
        follow(plan, backwards.mlir_module_serialized, FOLLOWED, batch_args="0,1")
    with pytest.raises(UserError, match="argument 2 cannot follow argument 9: the plan has 6"):
        follow(plan, backwards.mlir_module_serialized, {2: 9}, batch_args="0,1")

"""An evaluation step through all phases and the runtime: forwards only, under the schedule `inference`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.frontend.plan import PlanOptions
from shardopt.frontend.planning import make_plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import Reference, compare
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
    params = (*(0.3 * jax.random.normal(key, (16, 16)) for key in keys[:3]), jax.random.normal(keys[3], (16, 4)))
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

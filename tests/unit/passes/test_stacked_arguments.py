"""State with rows of several stages is told of, and state that has none is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.options.plan_options import PlanOptions

LAYERS, WIDTH = 4, 64
Weights = list[jax.Array] | jax.Array


def run(weights: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


def train_step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    def loss(weights: Weights) -> jax.Array:
        return jnp.mean(run(jnp.stack(weights), x) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


@pytest.mark.parametrize(
    ("stages", "rows", "split", "said"),
    [(2, True, False, 1), (1, True, False, 0), (2, False, False, 0), (2, True, True, 0)],
)
def test_stacked_weights_of_several_stages_are_told_of(
    stages: int, rows: bool, split: bool, said: int
) -> None:
    weights: Weights = jnp.zeros((LAYERS, WIDTH, WIDTH))
    weights = weights if rows else list(weights)
    step = jax.jit(train_step, donate_argnums=0)
    exported = jax.export.export(step)(weights, jnp.zeros((8, WIDTH)))
    told: list[str] = []
    options = PlanOptions("cpu-test:1x2", stages=stages, microbatches=2, split_stacks=split)
    plan = make_plan(exported, options, cache=False, handler=lambda each: told.append(each.message))
    found = [message for message in told if "several stages read rows of" in message]
    assert len(found) == said
    if said:
        assert "1 argument (weights)" in found[0]
    held = [stage.peak_bytes for stage in plan.summary.stages]
    assert (held[0] > 1.5 * held[-1]) == bool(said)

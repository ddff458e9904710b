"""What plans do to the rounding of programs in bfloat16.

XLA leaves out a rounding to bfloat16 where the next operation computes in float32 again
(`xla_allow_excess_precision`), and finds fewer such places where a program is annotated. On one
device a plan leaves it those of plain `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt
from benchmarks.cost.checkpoint_models import Params
from examples import gpt

CONFIG = gpt.Config(layers=1, hidden=32, heads=4, vocab=64, length=16)


def step(params: Params, tokens: jax.Array) -> tuple[Params, jax.Array]:
    """A GPT that computes in bfloat16, from weights and to a loss in float32."""

    def loss(params: Params) -> jax.Array:
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        x = p["embed"][tokens[:, :-1]] + p["position"]
        for block in p["blocks"]:
            x = x + gpt._attention(gpt._norm(x, block["norm1"]), block, CONFIG)
            x = x + jax.nn.gelu(gpt._norm(x, block["norm2"]) @ block["up"]) @ block["down"]
        logits = (gpt._norm(x, p["norm"]) @ p["embed"].T).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        return -chosen.mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


@pytest.mark.parametrize("microbatches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_device_rounds_as_plain_jit_does(microbatches: int) -> None:
    params = gpt.init_params(CONFIG, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (8, CONFIG.length + 1), 0, CONFIG.vocab)
    compiled = jax.jit(step).lower(params, tokens)
    expected = float(compiled.compile()(params, tokens)[1])
    rounded = compiled.compile({"xla_allow_excess_precision": False})(params, tokens)[1]
    assert abs(float(rounded) - expected) > 1e-5  # what one would see
    planned = shardopt.parallelize(
        cluster="cpu-test:1x1", stages=1, microbatches=microbatches, batch_argnums=(1,)
    )(step)
    assert float(np.asarray(planned(params, tokens)[1])) == pytest.approx(expected, abs=2e-6)

"""Causal models that are cut along their tokens: the parameters of one device, and as much memory as
was predicted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.schedule.live_bytes import gpt, measure, reference_steps
from examples.gpt import Config, init_params, loss_fn
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.runtime.reference import compare
from shardopt.support.documents import json_text
from shardopt.support.errors import UserError
from tests.e2e.models import export_step

STEPS = 3


@cache
def model() -> tuple[bytes, list[np.ndarray]]:
    """Two blocks, on sequences of eight tokens."""
    return gpt(4, 16, layers=2)


@cache
def expected() -> list[np.ndarray]:
    return reference_steps(*model(), STEPS)


@cache
def plan_of(slices: str, **options: Any) -> Plan:
    return plan_model(model()[0], slices, **options)


def plan_model(artifact: bytes, slices: str, **options: Any) -> Plan:
    keywords = {
        "microbatches": 2,
        "layers": 2,
        "stages": 2,
        "submesh": "1x1",
        "schedule": "terapipe",
        "recompute": "none",
        **options,
    }
    cluster = keywords.pop("cluster", "cpu-test:1x2")
    return make_plan(artifact, PlanOptions(cluster, token_slices=slices, **keywords))


# Unequal slices, equal ones; devices that share a stage; what else a
# stage may choose; and one sequence at a time, as in the paper.
@pytest.mark.parametrize(
    ("slices", "lengths", "options"),
    [
        ("1,4,3", (1, 4, 3), {}),
        pytest.param(
            "2", (4, 4), {"cluster": "cpu-test:1x4", "submesh": "1x2"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "5,3",
            (5, 3),
            {"recompute": "selective", "offload": "optimizer"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "5,3", (5, 3), {"microbatches": 1, "recompute": "full"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "1,4,3",
            (1, 4, 3),
            {"cluster": "cpu-test:1x4", "submesh": "1x2", "intra_op": "megatron"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_parameters_are_those_of_one_device(
    slices: str, lengths: tuple[int, ...], options: dict[str, Any]
) -> None:
    plan = plan_of(slices, **options)
    assert plan.summary.schedule == "terapipe"
    assert plan.summary.token_slices == lengths
    check_run(plan, model()[1], expected())


def check_run(plan: Plan, inputs: list[np.ndarray], expected: list[np.ndarray]) -> None:
    run = measure(plan, inputs, STEPS)
    assert [row for row in compare(list(run.outputs), expected) if not row.within(1e-5)] == []
    assert [mesh for mesh in run.meshes if not 0.9 < mesh.ratio < 1.1] == []


class Decoder(nn.Module):
    """Of flax: the mask is an array of the batch, which padding takes part in, and each of its
    two blocks draws dropout."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        mask = nn.combine_masks(
            nn.make_causal_mask(tokens), nn.make_attention_mask(tokens >= 0, tokens > 0)
        )
        x = nn.Embed(32, 16)(tokens) + nn.Embed(8, 16)(jnp.arange(8))
        for _ in range(2):
            attend = nn.MultiHeadDotProductAttention(
                2, use_bias=False, dropout_rate=0.1, deterministic=False
            )
            x = x + attend(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dropout(0.1, deterministic=False)(
                nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
            )
        return nn.Dense(32)(nn.LayerNorm()(x))


def decoder_step() -> tuple[bytes, list[np.ndarray]]:
    """Sequences of seven and eight tokens, and padding. The key is state, as in trainers."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.02, momentum=0.9))

    def step(params: Any, state: Any, key: jax.Array, tokens: jax.Array) -> Any:
        drawn = jax.random.wrap_key_data(key)

        def loss_fn(params: Any) -> jax.Array:
            logits = Decoder().apply(params, tokens[:, :-1], rngs={"dropout": drawn})
            labels = tokens[:, 1:]
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.sum(losses * (labels > 0)) / jnp.sum(labels > 0)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(grads, state)
        key = jax.random.key_data(jax.random.fold_in(drawn, 1))
        return optax.apply_updates(params, updates), state, key, loss

    key = jax.random.key(0)
    tokens = jax.random.randint(key, (2, 9), 1, 32).at[0, 8].set(0)
    params = Decoder().init({"params": key, "dropout": key}, tokens[:, :-1])
    return export_step(step, (params, optimizer.init(params), jax.random.key_data(key)), (tokens,))


@pytest.mark.slow
def test_a_model_of_another_library_with_padding_and_dropout() -> None:
    artifact, inputs = decoder_step()
    plan = plan_model(artifact, "3,5", microbatches=1, layers=2)
    check_run(plan, inputs, reference_steps(artifact, inputs, STEPS))


def test_a_plan_file_keeps_the_slices(tmp_path: Path) -> None:
    first = plan_of("5,3", microbatches=1, recompute="full")
    # Two slices go through each of two stages, which have the layers of the model.
    first_stage, again, last_stage, last_again = [row.layers for row in first.summary.stages]
    assert (again, last_again) == (first_stage, last_stage)
    assert first_stage + last_stage == ("layer_0", "layer_1")
    file = tmp_path / "plan.json"
    file.write_text(json_text(first.to_json()))
    replanned = make_plan(model()[0], options_after(str(file), {}))
    assert replanned.summary == first.summary


def test_slices_belong_to_terapipe() -> None:
    with pytest.raises(UserError, match="token_slices with schedule terapipe, found 1f1b"):
        plan_of("5,3", schedule="1f1b")


@pytest.mark.slow
def test_slices_that_are_found_are_as_good_as_equal_ones() -> None:
    """Simulated with all costs of the plan, on devices for which one call is short."""
    config = Config(layers=2, hidden=1024, heads=8, vocab=512, length=2048)
    state = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((1, config.length + 1), jnp.int32)

    def step(params: Any, tokens: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, config)
        return jax.tree.map(lambda p, g: p - 0.02 * g, params, grads), loss

    exported = jax.export.export(jax.jit(step, donate_argnums=0))(state, tokens)
    artifact = bytes(exported.mlir_module_serialized)

    def seconds(slices: str) -> float:
        options = PlanOptions(
            "p3.16xlarge:1x2",
            microbatches=1,
            stages=2,
            submesh="1x1",
            schedule="terapipe",
            token_slices=slices,
            recompute="none",
        )
        return make_plan(artifact, options).summary.step_seconds

    found, *equal = map(seconds, ("auto", "1", "2", "4"))
    assert found < 1.02 * min(equal)
    assert found < 0.9 * equal[0]

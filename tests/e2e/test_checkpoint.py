"""Programs with `jax.checkpoint` give what `jax.jit` gives, in stages and microbatches, and need as
much less memory as is predicted."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

import shardopt
from benchmarks.cost.checkpoint_models import LOSSES, batch, gpt_step, init_params, make_step
from examples.gpt import Config
from shardopt.dialect.cluster import write_cluster
from shardopt.forms.sharded_form import read_cost
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import BARRIER, functions, operations
from shardopt.mesh.mesh import parse_mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_bytes
from shardopt.runtime.reference import run_reference
from tests.e2e.models import export_step
from tests.e2e.older_xla import check_peaks
from tests.e2e.test_sharding_against_xla import SLOW, stage_function

STEPS = 3
KEYS = jax.random.split(jax.random.key(7), STEPS)
# The others take seconds each.
QUICK = ("plain", "save_only_these_names")
VARIANTS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LOSSES]


@cache
def expected(name: str) -> list[np.ndarray]:
    """Weights and loss after every step."""
    return outputs_of(jax.jit(make_step(LOSSES[name])))


def outputs_of(step: object) -> list[np.ndarray]:
    params, outputs = init_params(), []
    for key in KEYS:
        params, loss = step(params, batch(), key)  # type: ignore[operator]
        outputs += [np.asarray(leaf) for leaf in jax.tree.leaves((params, loss))]
    return outputs


def planned(name: str, stages: int, microbatches: int, **options: Any) -> list[np.ndarray]:
    step = shardopt.parallelize(
        cluster="cpu-test:1x2",
        stages=stages,
        layers=stages,  # where to cut is no matter of these tests
        microbatches=microbatches,
        **options,
        donate_argnums=(0,),
        batch_argnums=(1,),
    )
    return outputs_of(step(make_step(LOSSES[name])))


def check(name: str, stages: int, microbatches: int, **options: Any) -> None:
    pairs = zip(planned(name, stages, microbatches, **options), expected(name), strict=True)
    assert max(float(np.max(np.abs(got - want))) for got, want in pairs) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_in_two_stages_and_four_microbatches(name: str) -> None:
    check(name, 2, 4)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "plain" else pytest.mark.slow) for name in LOSSES],
)
def test_every_variant_with_selective_recomputation_beside_it(name: str) -> None:
    check(name, 2, 4, recompute="selective")


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 4), (2, 1)])
@pytest.mark.parametrize("name", ["nested"])
def test_nested_ones_in_one_stage_or_microbatch(name: str, stages: int, microbatches: int) -> None:
    check(name, stages, microbatches)


def test_a_barrier_in_a_small_loop() -> None:
    """XLA would make one kernel of the loop, which may not have a barrier."""

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, v: jax.lax.optimization_barrier(2 * v) + 1, x)

    ones = np.ones(4, np.float32)
    planned_loop = shardopt.parallelize(cluster="cpu-test:1x2", stages=1, microbatches=1)(loop)
    np.testing.assert_array_equal(np.asarray(planned_loop(ones)), np.asarray(jax.jit(loop)(ones)))


def test_a_value_that_is_read_beside_a_barrier() -> None:
    """XLA told to keep barriers would overwrite it, since jaxlib 0.11."""

    def function(x: jax.Array) -> jax.Array:
        kept = jnp.tanh(x)
        summed = jax.lax.optimization_barrier(kept) + jnp.sum(x, 0)
        return (summed + summed[:, ::-1]) * kept

    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    artifact, inputs = export_step(function, (), (x,))
    with make_context() as context:
        [found] = run_reference(load_module(artifact, context), inputs)
    np.testing.assert_allclose(found, np.asarray(jax.jit(function)(x)), rtol=1e-5, atol=1e-5)


def planned_memory(policy: str, is_scanned: bool) -> tuple[int, int, int, float]:
    """Of a GPT on one device: barriers, predicted and compiled bytes, predicted seconds."""
    config = Config(4, 64, 4, 64, 64)
    state, tokens, step = gpt_step(config, 16, policy, is_scanned=is_scanned)
    artifact, _ = export_step(step, (state,), (tokens,))
    with make_context() as context, ir.Location.unknown():
        module = load_module(artifact, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        write_cluster(module, SLOW)
        run_pipeline(module, "builtin.module(shardopt-shard{mesh=1})")
        barriers = len(operations(module.operation, [BARRIER]))
        [main] = functions(module)
        cost = read_cost(main)
        function = stage_function(module, parse_mesh("1"))
    compiled = compiled_bytes(function.bytecode, 1, shardy=False)
    return barriers, cost.peak_bytes, compiled, cost.compute_seconds


@pytest.mark.slow
@pytest.mark.parametrize("is_scanned", [False, True])
def test_memory_falls_as_predicted(is_scanned: bool) -> None:
    policies = ("none", "checkpoint_dots", "nothing_saveable")
    rows = (planned_memory(policy, is_scanned) for policy in policies)
    barriers, predicted, compiled, seconds = zip(*rows, strict=True)
    assert barriers == ((0, 1, 1) if is_scanned else (0, 4, 4))
    assert list(predicted) == sorted(predicted, reverse=True)
    assert list(compiled) == sorted(compiled, reverse=True)
    # Which of the products kept is cheaper is for the order of a scan to say; less of it is not.
    assert seconds[-1] == max(seconds)
    assert compiled[-1] < 0.4 * compiled[0] and predicted[-1] < 0.4 * predicted[0]
    check_peaks(predicted, compiled, 0.1)

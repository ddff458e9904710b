"""Programs with `jax.checkpoint` give what `jax.jit` gives, in stages and microbatches, and need as
much less memory as is predicted."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

import shardopt
from tests.e2e.checkpoint_models import LOSSES, batch, init_params, make_step

STEPS = 3
KEYS = jax.random.split(jax.random.key(7), STEPS)
# The others take seconds each.
QUICK = ("plain", "around_two_blocks", "save_only_these_names")
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


def planned(name: str, stages: int, microbatches: int) -> list[np.ndarray]:
    step = shardopt.parallelize(
        cluster="cpu-test:1x2",
        stages=stages,
        microbatches=microbatches,
        donate_argnums=(0,),
        batch_argnums=(1,),
    )
    return outputs_of(step(make_step(LOSSES[name])))


def check(name: str, stages: int, microbatches: int) -> None:
    pairs = zip(planned(name, stages, microbatches), expected(name), strict=True)
    assert max(float(np.max(np.abs(got - want))) for got, want in pairs) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_in_two_stages_and_four_microbatches(name: str) -> None:
    check(name, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 4), (2, 1)])
@pytest.mark.parametrize("name", ["nested", "dropout"])
def test_some_in_one_stage_or_microbatch(name: str, stages: int, microbatches: int) -> None:
    check(name, stages, microbatches)

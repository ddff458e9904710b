"""The models of the Alpa experiments have the published sizes, and a small one of each kind
learns."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from benchmarks.alpa import figure8
from benchmarks.alpa.models import main
from benchmarks.alpa.specs import CASES, TINY, find_spec
from shardopt.measured.case import case_of
from shardopt.models.build import build, bytecode
from shardopt.models.specs import GptSpec, MoeSpec

_PUBLISHED = re.compile(r"(\d+(?:\.\d+)?)([mb])$")


def _published(name: str) -> float:
    match = _PUBLISHED.search(name)
    assert match
    return float(match[1]) * {"m": 1e6, "b": 1e9}[match[2]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_are_as_many_as_published(case: Any) -> None:
    from shardopt.models.weights import count

    weights = count(build(case.spec).weights)
    if not hasattr(case.spec, "vocab"):
        # The names are rounded to one or two digits.
        assert abs(weights / _published(case.name) - 1) < 0.07
        return
    spec = case.spec
    assert abs(spec.parameters / _published(case.name) - 1) < 0.07
    # The artifact's formula leaves out the weight of the head, positions, and a part of the biases.
    beside = spec.vocab * spec.hidden + spec.sequence * spec.hidden
    assert abs((weights - beside) / spec.parameters - 1) < 2e-3


def test_flops_of_gpt_are_those_of_its_products() -> None:
    spec = GptSpec(1024, 24, 16)
    tokens, h = spec.batch * spec.sequence, spec.hidden
    products = (
        2 * tokens * (12 * h * h * spec.layers + spec.vocab * h)
        + 4 * tokens * spec.sequence * h * spec.layers
    )
    assert spec.flops() == pytest.approx(3 * products)


# FLOPs of products in a step as XLA counted them in the artifact's program: TFLOPS of a GPU, times
# GPUs and seconds, of results_intra_ablation_ref.tsv (benchmark_2d_one_case_moe.py).
_COUNTED = {1: 22.663e12, 2: 33.145e12, 4: 45.545e12, 8: 45.545e12}


@pytest.mark.parametrize(
    "devices", [2, 4, *(pytest.param(devices, marks=pytest.mark.slow) for devices in (1, 8))]
)
def test_products_of_a_mixture_of_experts_are_those_that_xla_counted(devices: int) -> None:
    """Beside ours there is the lookup of positions, forwards, again and backwards, and that of
    words once more, which XLA finds that nobody needs."""
    case = case_of(figure8.published()[f"moe-{devices}-auto_sharding"])
    assert isinstance(case.spec, MoeSpec) and case.layout.recomputation is not None
    how = replace(case.how, recomputed=case.layout.recomputation.within)
    ours = products(bytecode(case.spec, case.dtype, text=True, how=how).decode())
    tokens = case.spec.batch * case.spec.sequence
    looked_up = 2 * tokens * case.spec.hidden * (3 * case.spec.sequence + case.spec.vocab)
    assert ours + looked_up == pytest.approx(_COUNTED[devices], rel=3e-3)


_PRODUCT = re.compile(
    r"stablehlo.dot_general (?P<side>.*)contracting_dims = \[(?P<contracted>[\d, ]*)\] x .*"
    r": \(tensor<(?P<left>[\dx]*)x\w+>, .*\) -> tensor<(?P<result>[\dx]*)x\w+>"
)


def products(text: str) -> float:
    """FLOPs of all products of a module."""
    total = 0.0
    for match in _PRODUCT.finditer(text):
        left, result = ([int(n) for n in match[part].split("x")] for part in ("left", "result"))
        depth = prod(left[int(dim)] for dim in match["contracted"].split(", "))
        total += 2.0 * prod(result) * depth
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_tiny_model_learns(name: str) -> None:
    import jax

    from shardopt.models.train_step import first_state, make_step

    model = build(find_spec(name))
    rng = np.random.default_rng(0)
    batch = jax.tree.map(
        lambda shape: (
            rng.integers(0, 16, shape.shape).astype(shape.dtype)
            if np.issubdtype(shape.dtype, np.integer)
            else rng.standard_normal(shape.shape).astype(shape.dtype)
        ),
        model.batch,
    )
    state, losses = first_state(model), []
    step = jax.jit(make_step(model)).lower(state, batch).compile()
    for _ in range(5):
        state, loss = step(state, batch)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


def test_module_of_a_published_model_holds_no_weights(tmp_path: Any) -> None:
    target = tmp_path / "gpt.mlirbc"
    assert main(["gpt-350m", "-o", str(target)]) == 0
    assert target.stat().st_size < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "microbatches"),
    [("gpt-tiny", 4), ("llama-tiny", 4), ("moe-tiny", 4), ("wresnet-tiny", 1)],
)
def test_tiny_model_runs_as_planned(name: str, microbatches: int, tmp_path: Any) -> None:
    """On 2x2 host devices against one, in float32: float16 sums of microbatches differ from those
    of a batch.

    Batch normalisation couples the batch: one microbatch.
    """
    from shardopt.tools.shardopt import main as shardopt

    model, plan = str(tmp_path / "model.mlirbc"), str(tmp_path / "plan")
    assert main([name, "--float32", "-o", model]) == 0
    options = ["--cluster", "cpu-test:2x2", "--microbatches", str(microbatches)]
    stages = ["--stages", "2", "--layers", "2", "--submesh", "1x2"]
    assert shardopt(["plan", model, *options, *stages, "-o", plan]) == 0
    assert shardopt(["run", plan, "--check", "--quick-compile"]) == 0

"""Numbers and recomputation of blocks: the same loss and gradients, and what planning makes of
both."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.alpa.phases import run_phases
from benchmarks.alpa.specs import TINY
from shardopt.dialect.program import read_program
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.measured.short_plan import ShortCase, ShortPlan, short_plan
from shardopt.models.blocks import dropped, product
from shardopt.models.build import build, bytecode
from shardopt.models.computing import PLAIN, Computing, Recomputed
from shardopt.models.specs import GptSpec, LlamaSpec
from shardopt.models.train_step import first_state, make_step
from shardopt.models.transformer import norm, residual
from shardopt.models.weights import WideSummed, draw

DECODERS = ("gpt-tiny", "llama-tiny", "moe-tiny")


@cache
def _gradients(name: str, how: Computing) -> list[np.ndarray]:
    """Loss and gradients of a tiny model on one batch."""
    model = build(TINY[name], "f32", how)
    params = draw(model.weights)
    shape = model.batch["tokens"].shape
    tokens = jax.random.randint(jax.random.key(0), shape, 0, 64)
    batch = {"tokens": tokens, "labels": jnp.roll(tokens, 1, axis=1)}
    results = jax.jit(jax.value_and_grad(model.loss))(params, batch)
    return [np.asarray(each, np.float64) for each in jax.tree.leaves(results)]


@pytest.mark.parametrize(
    "name", [DECODERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in DECODERS[1:])]
)
@pytest.mark.parametrize("recomputed", [each for each in get_args(Recomputed) if each != "none"])
def test_recomputation_changes_no_number(name: str, recomputed: Any) -> None:
    plain, ours = (_gradients(name, how) for how in (PLAIN, Computing(False, recomputed)))
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gpt-tiny", Computing(looks_up_by_product=True)),
        ("gpt-tiny", Computing(entropy="wide")),
        ("gpt-tiny", Computing(keeps_shares=True)),
        ("gpt-tiny", Computing(entropy="in-passes")),
        ("llama-tiny", Computing(rotates_in_passes=True)),
        ("llama-tiny", Computing(repeats_keys=True)),
        ("llama-tiny", Computing(in_passes=True)),
    ],
)
def test_how_a_library_computes_changes_no_number(name: str, how: Computing) -> None:
    for mine, theirs in zip(_gradients(name, how), _gradients(name, PLAIN), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt-tiny", pytest.param("moe-tiny", marks=pytest.mark.slow)])
def test_sums_are_normalized_where_parts_end(name: str) -> None:
    """By as many norms as weigh otherwise; blocks end with one, and the loss begins with none."""
    how, plain = Computing(normalizes_sums=True), _gradients(name, PLAIN)
    ours = _gradients(name, how)
    assert [each.shape for each in ours] == [each.shape for each in plain]
    assert abs(ours[0] - plain[0]) > 1e-4
    again = _gradients(name, replace(how, recomputed="whole"))
    for mine, theirs in zip(again, ours, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))
    weights = {"gain": jnp.ones(8), "bias": jnp.zeros(8)}
    sums = residual(how, x, lambda part: 3 * part, weights)
    np.testing.assert_allclose(jnp.mean(sums**2, axis=-1), 1.0, rtol=1e-4)
    np.testing.assert_allclose(sums, norm(4 * x, weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("float8", [False, True])
def test_wide_sums_are_those_of_float32_products(float8: bool) -> None:
    """Every weight of a product has one; without, its gradient is rounded before it is summed."""
    spec, how = TINY["gpt-tiny"], Computing(float8=float8, sums_wide=True)
    text = bytecode(spec, "bf16", text=True, how=how).decode()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    wide = [line for line in products if line.rstrip().partition(" loc")[0].endswith("xf32>")]
    assert len(wide) == 4 * spec.layers + 1
    x = jax.random.normal(jax.random.key(0), (2, 8, 16), jnp.bfloat16)
    weight, sums = jnp.ones((16, 4), jnp.bfloat16), jnp.zeros((16, 4))

    def total(sums: jax.Array) -> jax.Array:
        made = product(how, "bsh,hw->bsw", x, WideSummed(weight, sums))
        return jnp.sum(made.astype(jnp.float32))

    exact = np.sum(np.asarray(x, np.float64), axis=(0, 1))[:, None]
    grad = jax.grad(total)(sums)
    assert grad.dtype == jnp.float32
    np.testing.assert_allclose(
        grad, np.broadcast_to(exact, (16, 4)), rtol=0, atol=0.5 * float8 + 1e-4
    )


def test_copies_are_the_weights_rounded() -> None:
    model = build(TINY["gpt-tiny"], "bf16", Computing(carries_copies=True))
    tokens = jnp.zeros(model.batch["tokens"].shape, jnp.int32)
    after, _ = jax.jit(make_step(model))(first_state(model), {"tokens": tokens, "labels": tokens})
    pairs = zip(*(jax.tree.leaves(after[name]) for name in ("copies", "weights")), strict=True)
    assert all(bool(jnp.all(copy == weight.astype(jnp.bfloat16))) for copy, weight in pairs)


def test_narrow_sums_are_carried_as_they_are_made() -> None:
    """From microbatch to microbatch, where others are cast before they are added; of a whole batch
    nothing changes."""
    steps = [Computing(carries_copies=True, sums_narrow=narrow) for narrow in (False, True)]
    carried = [_carried_types(bytecode(TINY["gpt-tiny"], "f16", how=how)) for how in steps]
    matrices = [{kind for kind in kinds if "x" in kind.rpartition("x")[0]} for kinds in carried]
    assert [{kind.rpartition("x")[2] for kind in kinds} for kinds in matrices] == [{"f32"}, {"f16"}]
    models = [build(TINY["gpt-tiny"], "f16", how) for how in steps]
    tokens = jax.random.randint(jax.random.key(0), models[0].batch["tokens"].shape, 0, 64)
    batch = {"tokens": tokens, "labels": jnp.roll(tokens, 1, axis=1)}
    first, second = (jax.jit(make_step(model))(first_state(model), batch) for model in models)
    jax.tree.map(np.testing.assert_array_equal, first, second)


def _carried_types(source: bytes) -> set[str]:
    """Shapes and types of what the microbatch loop of a step carries."""
    with make_context() as context:
        module = load_module(source, context)
        options = PlanOptions("cpu-test", microbatches=2, microbatch_sums="own")
        run_phases(module, options, ("import", "microbatch"))
        types = [str(each.type) for each in read_program(module).loop.results]
    return {text.removeprefix("tensor<").removesuffix(">") for text in types}


@pytest.mark.parametrize("clips", [False, True])
def test_clipping_bounds_the_norm_of_gradients(clips: bool) -> None:
    """Of which the first moments of Adam are a tenth behind the first step."""
    model = build(TINY["gpt-tiny"], "f32", Computing(clips=clips))
    state, shape = first_state(model), model.batch["tokens"].shape
    heads = state["weights"]["ends"]["head"]
    state["weights"]["ends"]["head"] = 100 * heads  # gradients of norm above one
    tokens = jax.random.randint(jax.random.key(0), shape, 0, 64)
    after, _ = jax.jit(make_step(model))(state, {"tokens": tokens, "labels": tokens})
    moments = [leaf["mean"] for leaf in jax.tree.leaves(after["kept"], is_leaf=_has_mean)]
    norm = 10 * np.sqrt(sum(float(jnp.sum(moment**2)) for moment in moments))
    assert norm == pytest.approx(1.0, rel=1e-4) if clips else norm > 2


def _has_mean(tree: Any) -> bool:
    return isinstance(tree, dict) and "mean" in tree


def test_products_in_8_bits_are_close() -> None:
    """e4m3 rounds to 1/16 of a number, e5m2 to 1/8, at most; in products errors cancel."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (4, 16, 64), jnp.bfloat16)
    weight = 0.1 * jax.random.normal(keys[1], (64, 3, 32), jnp.bfloat16)
    grad = jax.random.normal(keys[2], (4, 16, 3, 32), jnp.bfloat16)

    def results(how: Computing) -> list[np.ndarray]:
        made, pull = jax.vjp(lambda *args: product(how, "bsh,hcn->bscn", *args), x, weight)
        return [np.asarray(each, np.float64) for each in (made, *pull(grad))]

    pairs = list(zip(results(Computing(True)), results(PLAIN), strict=True))
    errors = [np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) for ours, theirs in pairs]
    assert 0.01 < errors[0] < 0.05 and max(errors[1:]) < 0.1


WIDE = GptSpec(8192, 1, 64, sequence=2048, vocab=1024, batch=8)
LONG = GptSpec(1024, 3, 32, sequence=4096, vocab=1024, batch=2)


def _planned(spec: GptSpec, how: Computing) -> ShortPlan:
    machine = load_cluster("h100-sxm").groups[0]
    return short_plan(
        ShortCase(
            spec=spec,
            dtype="bf16",
            how=how,
            machine=machine,
            stages=1,
            shape=(1, 1),
            intra_op="replicate",
            recompute="none",
            microbatches=2,
        )
    )


def _seconds(plan: ShortPlan) -> float:
    return sum(plan.pipeline.task_seconds.values())


@pytest.mark.slow
def test_planning_sees_the_rate_of_8_bits() -> None:
    assert _seconds(_planned(WIDE, Computing(True))) < 0.95 * _seconds(_planned(WIDE, PLAIN))


@pytest.mark.slow
def test_planning_sees_what_is_recomputed() -> None:
    plain, less = (_planned(LONG, how) for how in (PLAIN, Computing(False, "attention")))
    assert _seconds(plain) < _seconds(less) < 1.34 * _seconds(plain)
    scores = 32 * 4096**2 * 2  # bytes of one block
    assert max(less.fragment_bytes) < max(plain.fragment_bytes) - scores


def test_passes_write_what_they_make() -> None:
    """Bytes of a token and a number, forwards and backwards: a norm by operations moves 128 where
    one kernel each way moves 12, and SiLU with the product behind it 28 where those move 16."""
    spec = LlamaSpec(1024, 2, 8, 8, 4096, sequence=4096, vocab=256, batch=2)
    merged, passes = (_planned(spec, Computing(in_passes=each)) for each in (False, True))
    tokens = spec.batch // 2 * spec.sequence  # of a microbatch
    norms = 2 * spec.layers + 1
    more = tokens * (norms * 116 * spec.hidden + spec.layers * 12 * spec.ffn)
    device = merged.cluster.groups[0].device
    assert device.kernels is not None
    expected = more / (device.kernels.memory * device.memory_bandwidth)
    assert _seconds(passes) - _seconds(merged) == pytest.approx(expected, rel=0.15)


def test_dropout_keeps_a_byte_an_element_for_its_backward_pass() -> None:
    """A tenth is dropped, another one in each layer, and of the gradient what was dropped of the
    values: the mask is all that is kept."""
    drop = partial(dropped, Computing(drops=True), seed=1)
    layers = jax.random.normal(jax.random.key(0), (2, 64, 256), jnp.bfloat16)
    kept = []
    for values in layers:
        left, pull_back = jax.vjp(drop, values)
        [mask] = jax.tree.leaves(pull_back)
        assert (mask.dtype, mask.shape) == (jnp.bool_, values.shape)
        assert jnp.mean(mask) == pytest.approx(0.9, abs=0.01)
        np.testing.assert_array_equal(left, jnp.where(mask, values / 0.9, 0))
        [into] = pull_back(jnp.ones_like(values))
        np.testing.assert_array_equal(into != 0, mask)
        kept.append(mask)
    assert jnp.mean(kept[0] == kept[1]) == pytest.approx(0.9**2 + 0.1**2, abs=0.01)


@pytest.mark.slow
def test_running_a_block_again_takes_what_its_backward_pass_does_not_read() -> None:
    """The last product of a feed forward: 1.26 times what a step takes, and 1.18 without it."""
    short = replace(WIDE, sequence=256)
    plain, whole = (_planned(short, how) for how in (PLAIN, Computing(recomputed="whole")))
    assert _seconds(whole) > 1.23 * _seconds(plain)

"""Attention split along the sequence: every way in which libraries write it gives the numbers of
one device, and what cannot be split is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.cost.traffic import comparable
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.passes.base import PassFailure
from tests.e2e.models import export_step
from tests.e2e.test_sharding_against_xla import Compiled, compile_sharded

BATCH, LENGTH, HIDDEN, HEADS, SIZE, WORDS = 2, 16, 16, 4, 4, 32
TOLERANCE = 1e-5
_LINK = Link(0.0, 1e8)
EIGHT = Cluster.uniform(
    "test", 1, 8, Device("d", {"f32": 1e8}, 1 << 31, 1e8, platform="cpu"), _LINK, _LINK, 0.0
)
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def library(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def grouped_queries(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k[:, :, :4], v[:, :, :4], is_causal=True)


def einsum(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """With a maximum that autodiff goes through."""
    scores = jnp.einsum("bqnd,bknd->bnqk", q, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    shares = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bnqk,bknd->bqnd", shares / shares.sum(-1, keepdims=True), v)


def heads_first(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (each.transpose(0, 2, 1, 3) for each in (q, k, v))
    row, column = jnp.arange(LENGTH)[:, None], jnp.arange(LENGTH)[None]
    scores = jnp.where(row >= column, q @ k.transpose(0, 1, 3, 2), -jnp.inf)
    return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)


def flax_masked(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    mask = nn.make_causal_mask(jnp.ones((BATCH, LENGTH)))
    return nn.dot_product_attention(q, k, v, mask=mask)


def biased(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """As Hugging Face's Flax models: the mask becomes a bias."""
    mask = jnp.broadcast_to(
        jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool)), (BATCH, 1, LENGTH, LENGTH)
    )
    bias = jax.lax.select(mask, jnp.zeros(mask.shape), jnp.full(mask.shape, -1e9))
    weights = nn.attention.dot_product_attention_weights(q, k, bias=bias)
    return jnp.einsum("...hqk,...khd->...qhd", weights, v)


def rotated(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return library(_rotated(q), _rotated(k), v)


def _rotated(x: jax.Array) -> jax.Array:
    angle = jnp.arange(LENGTH)[:, None] / 10.0 ** jnp.arange(SIZE)[None]
    half = jnp.concatenate([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], axis=-1)
    return x * jnp.cos(angle)[None, :, None] + half * jnp.sin(angle)[None, :, None]


def checkpointed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.checkpoint(library)(q, k, v)


IDIOMS: dict[str, Attention] = {
    each.__name__: each
    for each in (
        library,
        grouped_queries,
        einsum,
        heads_first,
        flax_masked,
        biased,
        rotated,
        checkpointed,
    )
}


def model(attend: Attention, heads: int = HEADS) -> tuple[bytes, list[np.ndarray]]:
    """A step of a language model of one block, with momentum."""

    def loss(weights: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        x = weights["words"][tokens] + weights["positions"]
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, weights[name]) for name in "qkv")
        x = x + jnp.einsum("bsnd,ndh->bsh", attend(q, k, v), weights["o"])
        shares = jax.nn.log_softmax(x @ weights["words"].T)
        return -jnp.mean(jnp.take_along_axis(shares, labels[..., None], -1))

    def step(weights: Any, momenta: Any, tokens: jax.Array, labels: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, tokens, labels)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momenta), momenta, value

    shapes = {"words": (WORDS, HIDDEN), "positions": (LENGTH, HIDDEN), "o": (heads, SIZE, HIDDEN)}
    shapes |= dict.fromkeys("qkv", (HIDDEN, heads, SIZE))
    rng = np.random.default_rng(0)
    weights = {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    tokens, labels = (rng.integers(0, WORDS, (BATCH, LENGTH), dtype=np.int32) for _ in range(2))
    momenta = jax.tree.map(np.zeros_like, weights)
    return export_step(step, (weights, momenta), (tokens, labels))


_FAST = {
    ("library", "context-gather"),
    ("einsum", "ulysses"),
    ("library", "ring"),
    *(("checkpointed", preset) for preset in ("context-gather", "ulysses", "ring")),
}
REFUSALS = [
    ("library", "3", "context-gather", "sequence of attention: expected an extent that x=3 .* 16"),
    ("library", "8", "ulysses", "heads of attention: expected a number that x=8 divides, found 4"),
    ("average", "4", "ulysses", "expected a softmax between two products .*, found none"),
]


def average(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return q + v.mean(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param(name, preset, marks=() if (name, preset) in _FAST else pytest.mark.slow)
        for name in IDIOMS
        for preset in ("context-gather", "ulysses", "ring")
    ],
)
def test_every_way_to_write_attention_gives_the_numbers_of_one_device(
    name: str, preset: str
) -> None:
    each = compile_sharded(model(IDIOMS[name], 8 if name == "grouped_queries" else 4), "4", preset)
    kinds = {"context-gather": "reduce_scatter", "ulysses": "all_to_all", "ring": "permute"}
    used = {own for own, kind in kinds.items() if kind in each.predicted}
    assert used == {preset}
    check_numbers(each)


def test_a_ring_sends_blocks_of_keys_and_values_and_their_gradients() -> None:
    """Keys and values go past all other devices (Ring Attention, section 3.2), forward once and
    backward twice; their gradients go all the way round. Each is a block of `batch x length x
    hidden`, and XLA compiles what is planned."""
    each, devices = compile_sharded(model(library), "4", "ring"), 4
    [sent] = [row for row in each.plan if row.kind == "permute"]
    assert sent.tensors == 3 * 2 * (devices - 1) + 2 * devices
    assert sent.bytes == sent.tensors * 4 * BATCH * LENGTH * HIDDEN // devices
    assert comparable(each.traffic) == comparable(each.plan)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["context-gather-zero3", "ulysses-zero1", "ring", "ring-zero1"])
def test_sequences_over_eight_devices_give_the_numbers_of_one(preset: str) -> None:
    check_numbers(compile_sharded(model(library), "2x4", preset, EIGHT))


@pytest.mark.parametrize(
    ("name", "mesh", "preset"),
    [
        ("library", "2x2", "context-gather-sequence"),
        ("library", "2x2", "ulysses-megatron"),
        pytest.param(
            "grouped_queries", "2x2", "context-gather-megatron-zero1", marks=pytest.mark.slow
        ),
        pytest.param("library", "2x2", "ulysses-sequence-zero3", marks=pytest.mark.slow),
        pytest.param("library", "2x2x2", "context-gather-sequence-zero1", marks=pytest.mark.slow),
    ],
)
def test_sequences_and_weights_split_together_give_the_numbers_of_one_device(
    name: str, mesh: str, preset: str
) -> None:
    """Keys are gathered, or heads exchanged, along one axis, and what products add up along the
    other; XLA compiles what is planned."""
    heads = 8 if name == "grouped_queries" else 4
    each = compile_sharded(model(IDIOMS[name], heads), mesh, preset, EIGHT)
    check_numbers(each)
    assert comparable(each.traffic) == comparable(each.plan)
    last = "xyz"[mesh.count("x")]
    used = {(row.kind, row.axes) for row in each.plan}
    attention = "all_to_all" if preset.startswith("ulysses") else "reduce_scatter"
    weights = "reduce_scatter" if "sequence" in preset else "all_reduce"
    assert {(attention, (chr(ord(last) - 1),)), (weights, (last,))} <= used


def test_one_axis_does_not_split_sequences_and_weights() -> None:
    with pytest.raises(PassFailure, match="expected a mesh of at least two axes"):
        compile_sharded(model(library), "4", "context-gather-sequence")


@pytest.mark.parametrize(("name", "mesh", "preset", "message"), REFUSALS)
def test_attention_that_cannot_be_split_is_refused_with_a_reason(
    name: str, mesh: str, preset: str, message: str
) -> None:
    with pytest.raises(PassFailure, match=f"preset '{preset}' splits the .*{message}"):
        compile_sharded(model({**IDIOMS, "average": average}[name]), mesh, preset, EIGHT)


def check_numbers(compiled: Compiled) -> None:
    for got, expected in zip(compiled.run(), compiled.reference, strict=True):
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)

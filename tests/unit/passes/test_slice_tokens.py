"""Causal models of many idioms, cut along their tokens, compute what the whole step computes; what
is not causal is refused at the operation that is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.mpmd import IN_FLIGHT, TOPOLOGY, write_methods, write_topology
from shardopt.dialect.program import read_program
from shardopt.dialect.stages import PlacedStage, write_stages
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import module_bytecode
from shardopt.mesh.mesh import Mesh
from shardopt.passes.base import PassContext
from shardopt.passes.layers.cluster_layers import ClusterLayers
from shardopt.passes.stages.slice_tokens import SliceTokens
from shardopt.passes.stages.verify_placed import VerifyPlaced
from shardopt.runtime.reference import Reference
from tests.unit.passes.loop_expansion import expand_loop
from tests.unit.passes.split_checks import lower, normal, sgd, split

STAGES = 2
BATCH, LENGTH, HIDDEN, VOCAB = 2, 6, 8, 7
Attention = Callable[..., jax.Array]


def sliced(module: ir.Module, lengths: tuple[str, ...], microbatches: int = 1) -> ir.Module:
    """Behind the pass, with two stages of one layer each."""
    split(module, microbatches)
    with module.context, ir.Location.unknown():
        ClusterLayers(layers=STAGES, delta=1.0).run(module, PassContext())
        program = read_program(module)
        meshes = [Mesh(f"m{s}", (("x", 1),), (s,)) for s in range(STAGES)]
        write_topology(program.main, meshes, devices=True)
        write_stages(program.main, [PlacedStage(s, s, f"m{s}") for s in range(STAGES)])
        program.loop.attributes[IN_FLIGHT] = ir.DenseI64ArrayAttr.get([2, 1])
        write_methods(program.loop, ["ilp"] * STAGES)
        write_cluster(module, load_cluster("cpu-test"))
        VerifyPlaced().run(module, PassContext())
        SliceTokens(token_slices=lengths).run(module, PassContext())
        VerifyPlaced().run(module, PassContext())
        module.operation.verify()
    return module


def check(
    step: Callable[..., Any],
    *arguments: Any,
    lengths: tuple[str, ...] = ("1", "3", "2"),
    microbatches: int = 1,
) -> None:
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    original = lower(step, *arguments)
    imported = module_bytecode(original)
    module = sliced(ir.Module.parse(imported, make_context()), lengths, microbatches)
    with module.context:
        main = read_program(module).main
        expand_loop(module)
        del main.attributes[TOPOLOGY]  # of no dialect that XLA knows
        # The interpreter scatters into its operand, which slices share.
        expected, actual = (Reference(each)(flat) for each in (original, module))
    for left, right in zip(expected, actual, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6)


# ---- a model of two blocks, of which each part may be another ----


def heads(x: jax.Array, count: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def tril(scores: jax.Array) -> jax.Array:
    length = scores.shape[-1]
    return jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)


def large_bias(scores: jax.Array) -> jax.Array:
    places = jnp.arange(scores.shape[-1])
    return scores + jnp.where(places[None, :] <= places[:, None], 0.0, -1e9)


def product_bias(scores: jax.Array) -> jax.Array:
    """As GPT-2 writes it."""
    length = scores.shape[-1]
    mask = jnp.tril(jnp.ones((length, length)))
    return scores * mask - 1e10 * (1 - mask)


def literal(scores: jax.Array) -> jax.Array:
    length = scores.shape[-1]
    return jnp.where(np.tril(np.ones((1, 1, length, length), bool)), scores, np.float32(-1e30))


def least_float(scores: jax.Array) -> jax.Array:
    """As flax does, with a mask of floats that is compared."""
    places = jnp.arange(scores.shape[-1])
    mask = jnp.greater_equal(places[:, None], places[None, :]).astype(jnp.float32)
    return jnp.where(mask[None, None] > 0, scores, jnp.finfo(scores.dtype).min)


def window(scores: jax.Array) -> jax.Array:
    """Causal, and no more than three tokens back."""
    places = jnp.arange(scores.shape[-1])
    back = places[:, None] - places[None, :]
    return jnp.where((back >= 0) & (back < 3), scores, -1e9)


def least_of_both(scores: jax.Array) -> jax.Array:
    """As Keras joins the mask of the batch, of any numbers, and that of positions."""
    places = jnp.arange(scores.shape[-1], dtype=jnp.float32)
    causal = (places[:, None] >= places).astype(jnp.int32)
    padding = jnp.maximum(1, jnp.round(scores).astype(jnp.int32))
    return jnp.where(jnp.minimum(padding, causal) > 0, scores, jnp.finfo(scores.dtype).min)


def longest(scores: jax.Array) -> jax.Array:
    """Made for longer sequences, and cut: so do Hugging Face's models."""
    length = scores.shape[-1]
    places = jnp.arange(2 * length)
    mask = (places[:, None] >= places)[2 : 2 + length, 2 : 2 + length]
    wide = np.tril(np.ones((length + 1, 2 * length), bool))[:length, :length]
    back = places[length:, None] - places[None, length:]
    return jnp.where(mask & jnp.asarray(wide) & (back >= 0), scores, -jnp.inf)


MASKS = [tril, large_bias, product_bias, literal, least_float, window, least_of_both, longest]


def attention(
    x: jax.Array, w: dict[str, jax.Array], mask: Attention, shared: int = 1, **how: Any
) -> jax.Array:
    """Multi-head attention; `shared` query heads have one of keys and values."""
    q = heads(x @ w["q"], 4)
    k, v = (heads(x @ w[name][:, : HIDDEN // shared], 4 // shared) for name in "kv")
    if "turn" in how:
        q, k = how["turn"](q), how["turn"](k)
    if shared > 1:
        k, v = (jnp.repeat(each, shared, axis=2) for each in (k, v))
    scores = mask(jnp.einsum("bqnd,bknd->bnqk", q, k) / np.sqrt(q.shape[-1]))
    o = jnp.einsum("bnqk,bknd->bqnd", jax.nn.softmax(scores), v)
    return o.reshape(x.shape) @ w["o"]


def library(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    q, k, v = (heads(x @ w[name], 2) for name in "qkv")
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["o"]


def grouped(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """Without repeated keys: groups are a dimension of the queries."""
    q = heads(x @ w["q"], 4)
    k, v = (heads(x @ w[name][:, :4], 2) for name in "kv")
    q = q.reshape(*q.shape[:2], 2, 2, 2)
    scores = tril(jnp.einsum("bqngd,bknd->bngqk", q, k))
    o = jnp.einsum("bngqk,bknd->bqngd", jax.nn.softmax(scores), v)
    return o.reshape(x.shape) @ w["o"]


def rotary(x: jax.Array) -> jax.Array:
    size = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10 ** (jnp.arange(size) / size)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-3) * scale


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-3) * scale


def weights(blocks: int = 2) -> Any:
    def block(seed: int) -> dict[str, jax.Array]:
        drawn = {name: normal(seed + k, HIDDEN, HIDDEN) for k, name in enumerate("qkvoud")}
        return {**drawn, "norm": 1 + normal(seed + 9, HIDDEN)}

    return {
        "embed": normal(1, VOCAB, HIDDEN),
        "position": normal(2, LENGTH, HIDDEN),
        "blocks": [block(10 * (1 + k)) for k in range(blocks)],
    }


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1))


def one_hot_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    hot = jax.nn.one_hot(labels, VOCAB)
    return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits), axis=-1))


_CAUSAL = partial(attention, mask=tril)


def model(
    params: Any,
    tokens: jax.Array,
    attend: Attention | Sequence[Attention] = _CAUSAL,
    norm: Callable[..., jax.Array] = rms_norm,
    loss: Callable[..., jax.Array] = cross_entropy,
) -> jax.Array:
    """A decoder with tied embeddings on tokens [B, L + 1]; `attend` for all blocks, or for each."""
    x = embedded(params, tokens)
    kinds = [attend] * len(params["blocks"]) if callable(attend) else attend
    for block, each in zip(params["blocks"], kinds, strict=True):
        x = x + each(norm(x, block["norm"]), block)
        x = x + jax.nn.gelu(x @ block["u"]) @ block["d"]
    return loss(x @ params["embed"].T, tokens[:, 1:])


def tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(0), (BATCH, LENGTH + 1), 0, VOCAB)


@pytest.mark.parametrize("masks", [MASKS[:4], MASKS[4:]], ids=["first", "others"])
def test_masks(masks: Sequence[Attention]) -> None:
    """A block each."""
    blocks = [partial(attention, mask=mask) for mask in masks]
    check(partial(sgd, partial(model, attend=blocks)), weights(len(blocks)), tokens())


def test_kinds_of_attention() -> None:
    blocks = [
        library,
        grouped,
        partial(attention, mask=tril, shared=2),
        partial(attention, mask=tril, turn=rotary),
        jax.checkpoint(partial(attention, mask=tril)),
    ]
    check(partial(sgd, partial(model, attend=blocks)), weights(len(blocks)), tokens())


def shifted_loss(params: Any, tokens: jax.Array) -> jax.Array:
    """As Hugging Face's trainers: the model sees all tokens, and the loss leaves its last row out.
    And a square of a mean over tokens, as losses that balance experts have."""
    x = params["embed"][tokens[:, 1:]] + params["position"]
    block = params["blocks"][0]
    x = x + _CAUSAL(x, block)
    x = x + _CAUSAL(x, params["blocks"][1])
    loss = cross_entropy((x @ params["embed"].T)[:, :-1], tokens[:, 2:])
    return loss + jnp.sum(jnp.mean(jax.nn.softmax(x @ block["u"]), axis=(0, 1)) ** 2)


def test_losses_of_all_tokens() -> None:
    check(partial(sgd, shifted_loss), weights(2), tokens())


def pooled(params: Any, tokens: jax.Array) -> jax.Array:
    """Of whose second half no slice has a part."""
    x = jnp.mean(attention(embedded(params, tokens), params["blocks"][0], tril), axis=1)
    for _ in range(4):
        x = jax.nn.gelu(x @ params["blocks"][0]["u"])
    return jnp.mean((x @ params["embed"].T) ** 2)


@pytest.mark.parametrize(
    "lengths", [("1",), pytest.param(("6",), marks=pytest.mark.slow), ("5", "1")]
)
def test_slices(lengths: tuple[str, ...]) -> None:
    loss = partial(model, norm=layer_norm, loss=one_hot_loss)
    check(partial(sgd, loss), weights(1), tokens(), lengths=lengths, microbatches=2)


def test_one_example() -> None:
    """The loop takes no rows of it."""
    check(partial(sgd, model), weights(1), tokens()[:1])


def test_what_the_batch_says_of_tokens() -> None:
    """Examples that are packed, a mask of the loss whose sum divides it, positions by running sums,
    and what is there for all tokens at the end of the step."""

    def loss_fn(params: Any, tokens: jax.Array, examples: jax.Array, mask: jax.Array) -> Any:
        places = jnp.cumsum(mask, axis=1) - 1
        x = params["embed"][tokens[:, :-1]] + params["position"][places]
        same = examples[:, None, :, None] == examples[:, None, None, :]
        block = params["blocks"][0]
        x = x + attention(
            x, block, lambda scores: jnp.where(same, tril(scores), jnp.finfo(scores.dtype).min)
        )
        logits = x @ params["embed"].T
        losses = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        loss = -jnp.sum(losses[..., 0] * mask) / jnp.sum(mask)
        return loss, (jnp.mean(jnp.argmax(logits, -1) == tokens[:, 1:]), logits)

    def step(params: Any, *batch: jax.Array) -> Any:
        out, grads = jax.value_and_grad(loss_fn, has_aux=True)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), out

    examples = jnp.arange(LENGTH)[None] // jnp.asarray([[4], [3]])
    mask = jnp.ones((BATCH, LENGTH), jnp.int32).at[0, -1].set(0)
    check(step, weights(1), tokens(), examples, mask)


def dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


def test_dropout_draws_what_the_whole_step_draws() -> None:
    """On tokens and on shares of attention, by a key that the step replaces."""

    def loss_fn(params: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        x, block = dropped(embedded(params, tokens), first), params["blocks"][0]
        q, k, v = (heads(x @ block[name], 2) for name in "qkv")
        shares = jax.nn.softmax(tril(jnp.einsum("bqnd,bknd->bnqk", q, k)))
        o = jnp.einsum("bnqk,bknd->bqnd", dropped(shares, second), v)
        x = x + o.reshape(x.shape) @ block["o"]
        return cross_entropy(x @ params["embed"].T, tokens[:, 1:])

    def step(params: Any, key: jax.Array, tokens: jax.Array) -> Any:
        drawn = jax.random.wrap_key_data(key)
        loss, grads = jax.value_and_grad(loss_fn)(params, drawn, tokens)
        after = jax.random.key_data(jax.random.fold_in(drawn, 1))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), after, loss

    check(step, weights(1), jax.random.key_data(jax.random.key(0)), tokens())


def test_each_slice_makes_its_own_part_of_what_labels_say() -> None:
    """Not one of the vocabulary for all tokens, of which each slice takes a part."""
    loss = partial(model, loss=one_hot_loss)
    text = str(sliced(lower(partial(sgd, loss), weights(1), tokens()), ("1", "3", "2")))
    assert f"tensor<{BATCH}x3x{VOCAB}xf32>" in text
    assert f"tensor<{BATCH}x{LENGTH}x{VOCAB}xf32>" not in text


def refused(step: Callable[..., Any]) -> str:
    with pytest.raises(DiagnosedError) as raised:
        sliced(lower(step, weights(1), tokens()), ("3", "3"))
    return str(raised.value)


def embedded(params: Any, tokens: jax.Array) -> jax.Array:
    return params["embed"][tokens[:, :-1]] + params["position"]


def before(mix: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """A model that does something with all tokens before attention."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = attention(mix(embedded(params, tokens)), params["blocks"][0], tril)
        return cross_entropy(x @ params["embed"].T, tokens[:, 1:])

    return loss


def ahead(scores: jax.Array) -> jax.Array:
    places = jnp.arange(scores.shape[-1])
    return jnp.where(places[:, None] <= places[None, :], scores, -jnp.inf)


def shifted(scores: jax.Array) -> jax.Array:
    """Cut so that the next token is seen."""
    length = scores.shape[-1]
    places = jnp.arange(2 * length)
    return jnp.where((places[:, None] >= places)[1 : 1 + length, :length], scores, -jnp.inf)


def weak(scores: jax.Array) -> jax.Array:
    places = jnp.arange(scores.shape[-1])
    return scores + jnp.where(places[None, :] <= places[:, None], 0.0, -10.0)


def scaled_behind(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """The mask comes when the maximum is taken, of later keys too."""
    q, k, v = (x @ w[name] for name in "qkv")
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    e = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True)) * np.tril(np.ones((LENGTH,) * 2))
    return (e / jnp.sum(e, axis=-1, keepdims=True)) @ v @ w["o"]


def patches(params: Any, tokens: jax.Array) -> jax.Array:
    """Tokens that a convolution makes of what lies closer."""
    rows = jnp.repeat(tokens[:, 1:].astype(jnp.float32), 2, axis=1)[..., None]
    kernel = params["blocks"][0]["u"][:2, None]
    x = jax.lax.conv_general_dilated(rows, kernel, (2,), "VALID", None, None, ("NWC", "WIO", "NWC"))
    return jnp.mean(attention(x, params["blocks"][0], tril) ** 2)


def mixed_last(params: Any, tokens: jax.Array) -> jax.Array:
    """What mixes tokens stands in the stage of the loss."""
    x = embedded(params, tokens)
    for block in params["blocks"] * 3:
        x = attention(x, block, tril)
    x = attention(x - jnp.mean(x, axis=1, keepdims=True), params["blocks"][0], tril)
    return cross_entropy(x @ params["embed"].T, tokens[:, 1:])


def batch_norm(x: jax.Array) -> jax.Array:
    mean, variance = (f(x, axis=(0, 1), keepdims=True) for f in (jnp.mean, jnp.var))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-3)


def shorter(params: Any, tokens: jax.Array) -> jax.Array:
    """A block that leaves the last two tokens out."""
    x = attention(embedded(params, tokens), params["blocks"][0], tril)[:, :-2]
    return jnp.mean(attention(x, params["blocks"][0], tril) ** 2)


def numbered(x: jax.Array) -> jax.Array:
    """As experts of limited capacity number their tokens."""
    return x * (jnp.cumsum(x > 0, axis=1) < 3)


def with_scores(params: Any, tokens: jax.Array) -> Any:
    def loss(params: Any) -> Any:
        x = embedded(params, tokens)
        weights = jax.nn.softmax(tril(jnp.einsum("bqd,bkd->bqk", x, x)))
        return cross_entropy(weights @ x @ params["embed"].T, tokens[:, 1:]), weights

    out, grads = jax.value_and_grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), out


REFUSED = {
    "no mask": (partial(model, attend=partial(attention, mask=lambda each: each)), "sums scores"),
    "later keys": (partial(model, attend=partial(attention, mask=ahead)), "sums scores"),
    "next key": (partial(model, attend=partial(attention, mask=shifted)), "sums scores"),
    "weak mask": (partial(model, attend=partial(attention, mask=weak)), "sums scores"),
    "mask behind": (partial(model, attend=scaled_behind), "known to be minus infinity"),
    "reversed": (before(lambda x: x[:, ::-1]), "'stablehlo.reverse' moves data along the tokens"),
    "shifted": (
        before(lambda x: x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]),
        "'stablehlo.pad' moves data along the tokens",
    ),
    "numbered": (before(numbered), "moves data along the tokens"),
    "normalized": (
        before(lambda x: x - jnp.mean(x, axis=1, keepdims=True)),
        "'stablehlo.reduce' sums over all tokens",
    ),
    "batch norm": (before(batch_norm), "'stablehlo.reduce' sums over all tokens"),
    "pooled": (pooled, "runs on all tokens at once, as does all of its layer"),
    "normalized last": (mixed_last, "'stablehlo.reduce' sums over all tokens"),
    "two lengths": (shorter, "expected sequences of one length, found 4, 6"),
    "patches": (patches, "'stablehlo.convolution' moves data along the tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_causal_is_refused_where_it_is_not(name: str) -> None:
    loss, reason = REFUSED[name]
    message = refused(partial(sgd, loss))
    assert message.count("error:") == 1
    assert "cannot cut the step along its tokens" in message
    assert reason in message


def test_scores_do_not_leave_the_step() -> None:
    assert "gives scores of attention out" in refused(with_scores)

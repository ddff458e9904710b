"""The batch of small steps of each kind, told from weights, tables, sequences and state by where
rows go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardopt.extract.batch_arguments import UndecidedBatch, argument_name
from shardopt.extract.chosen_plan import main_of
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.passes.microbatches.find_batch import FoundBatch, find_batch
from shardopt.pipeline.manager import run_pipeline

Step = Callable[..., Any]
ROWS = 6


def shape(*extents: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def numbers(*extents: int) -> jax.ShapeDtypeStruct:
    return shape(*extents, dtype=jnp.int32)


def batch_of(
    step: Step, *arguments: Any, donate: tuple[int, ...] = (), unroll: bool = True
) -> dict[str, int]:
    """name -> dimension, of what the caller brings and of state."""
    with make_context() as context:
        exported = jax.export.export(jax.jit(step, donate_argnums=donate))(*arguments)
        module = load_module(exported.mlir_module_serialized, context)
        run_pipeline(module, f"builtin.module(shardopt-import{{unroll={str(unroll).lower()}}})")
        batch: FoundBatch = find_batch(module)
        names = [argument_name(each) for each in main_of(module).regions[0].blocks[0].arguments]
        return {names[each.index]: each.dim for each in batch.all}


def parts_of(step: Step, *arguments: Any) -> set[tuple[str, int, int]]:
    """Name, dimension and parts, of what the caller brings."""
    with make_context() as context:
        exported = jax.export.export(jax.jit(step, donate_argnums=0))(*arguments)
        module = load_module(exported.mlir_module_serialized, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        names = [argument_name(each) for each in main_of(module).regions[0].blocks[0].arguments]
        return {(names[each.index], each.dim, each.parts) for each in find_batch(module).inputs}


def mlp(p: Any, x: jax.Array) -> jax.Array:
    for w, b in p:
        x = jax.nn.relu(x @ w + b)
    return x


def mlp_params(*widths: int) -> Any:
    return [(shape(a, b), shape(b)) for a, b in pairwise(widths)]


def trained(loss: Step, p: Any, *batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(p, *batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value


def mse(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((mlp(p, x) - y) ** 2)


def train(p: Any, x: jax.Array, y: jax.Array) -> Any:
    return trained(mse, p, x, y)


def attend(p: Any, x: jax.Array, cache: Any = None, at: Any = None) -> tuple[jax.Array, Any]:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in "qkv")
    if cache is not None:
        keys, values = cache
        k = lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
        v = lax.dynamic_update_slice(values, v, (0, at, 0, 0))
    scores = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k))
    return x + jnp.einsum("bhqs,bshk,hkd->bqd", scores, v, p["o"]), (k, v)


ATTENTION = {**dict.fromkeys("qkv", shape(8, 2, 4)), "o": shape(2, 4, 8)}
MODEL = {"table": shape(32, 8), "layer": ATTENTION, "out": shape(8, 32)}


def logits(p: Any, ids: jax.Array) -> jax.Array:
    return attend(p["layer"], p["table"][ids])[0] @ p["out"]


def decode(p: Any, cache: Any, token: jax.Array, at: jax.Array) -> Any:
    x, cache = attend(p["layer"], p["table"][token], cache, at)
    return x @ p["out"], cache


def decode_alone(p: Any, cache: Any, token: jax.Array, at: jax.Array) -> Any:
    scores, cache = decode(p, cache, token, at)
    return jnp.argmax(scores, -1), cache, at + 1


def decode_scanned(p: Any, cache: Any, token: jax.Array, at: jax.Array) -> Any:
    """Weights and caches of all layers in one array each."""

    def layer(x: jax.Array, of: Any) -> Any:
        return attend(of[0], x, of[1], at)

    x, cache = lax.scan(layer, p["table"][token], (p["layer"], cache))
    return jnp.argmax(x @ p["out"], -1), cache, at + 1


CACHE = (shape(ROWS, 16, 2, 4), shape(ROWS, 16, 2, 4))


def evaluate(p: Any, x: jax.Array, label: jax.Array) -> Any:
    found = jnp.argmax(mlp(p, x), -1)
    return jnp.zeros((3, 3), jnp.int32).at[label, found].add(1), found, jnp.sum(found == label)


def quantized(p: Any, x: jax.Array) -> jax.Array:
    for layer in p:
        x = jax.nn.relu((x @ layer["q"].astype(jnp.float32)) * layer["scale"])
    return x


def int8(rows: int, columns: int) -> Any:
    return {"q": shape(rows, columns, dtype=jnp.int8), "scale": shape(columns)}


def normalized(p: Any, image: jax.Array) -> tuple[jax.Array, Any]:
    x = lax.conv_general_dilated(
        image, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-3) * p["scale"])
    return x.mean((1, 2)) @ p["out"], mean


def train_normalized(p: Any, mean: jax.Array, image: jax.Array, label: jax.Array) -> Any:
    def loss(p: Any) -> Any:
        scores, now = normalized(p, image)
        return jnp.mean(jnp.logaddexp(0.0, scores) - scores * label), now

    (value, now), grads = jax.value_and_grad(loss, has_aux=True)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), 0.9 * mean + 0.1 * now, value


CONVOLUTION = {"kernel": shape(3, 3, 3, 8), "scale": shape(8), "out": shape(8, 5)}


def recurrent(p: Any, xs: jax.Array) -> jax.Array:
    def cell(h: jax.Array, x: jax.Array) -> Any:
        h = jnp.tanh(x @ p["in"] + h @ p["hidden"])
        return h, h

    return lax.scan(cell, jnp.zeros((xs.shape[1], 8)), xs)[1] @ p["out"]


def train_with_states(p: Any, states: Any, xs: jax.Array) -> Any:
    """Truncated backpropagation through time: the states go on to the next step."""

    def cell(h: Any, x: jax.Array) -> Any:
        h = (jnp.tanh(x @ p["in"] + h[0] @ p["hidden"]), 0.5 * h[1] + h[0])
        return h, h[0]

    def loss(p: Any) -> Any:
        last, outputs = lax.scan(cell, states, xs[:-1])
        return jnp.mean((outputs @ p["out"])[:, :, :1] - xs[1:, :, :1]), last

    (value, last), grads = jax.value_and_grad(loss, has_aux=True)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), last, value


RECURRENT = {"in": shape(4, 8), "hidden": shape(8, 8), "out": shape(8, 3)}


def denoise(p: Any, latent: jax.Array, time: jax.Array, context: jax.Array) -> jax.Array:
    wave = jnp.sin(time[:, None] * jnp.arange(1.0, 5.0)) @ p["time"]
    scores = jax.nn.softmax(jnp.einsum("bsc,btc->bst", latent + wave[:, None], context))
    return latent - jnp.einsum("bst,btc->bsc", scores, context) @ p["out"]


def train_noisy(p: Any, rates: jax.Array, latent: jax.Array, time: jax.Array, key: Any) -> Any:
    noise = jax.random.normal(key, latent.shape)
    noisy = latent + rates[time][:, None] * noise
    return trained(mse, p, noisy, noise)


def train_pairs(p: Any, image: jax.Array, text: jax.Array) -> Any:
    def loss(p: Any) -> jax.Array:
        scores = mlp(p["image"], image) @ (p["table"][text].mean(1) @ p["text"]).T
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(scores)))

    return trained(lambda p: loss(p), p)


PAIRS = {"image": mlp_params(5, 8), "table": shape(16, 8), "text": shape(8, 8)}


def adversaries(p: Any, q: Any, real: jax.Array, noise: jax.Array) -> Any:
    def loss(q: Any) -> jax.Array:
        return jnp.mean(jax.nn.softplus(-mlp(q, real))) + jnp.mean(
            jax.nn.softplus(mlp(q, mlp(p, noise)))
        )

    return trained(loss, q)


def averaged(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """Counters, flags, a history and an average beside the weights."""
    p, value = trained(mse, state["p"], x, y)
    return {
        "p": p,
        "average": jax.tree.map(lambda e, w: 0.9 * e + 0.1 * w, state["average"], p),
        "count": state["count"] + 1,
        "finite": state["finite"] & jnp.isfinite(value),
        "losses": jnp.roll(state["losses"], 1).at[0].set(value),
        "nothing": None,
    }


AVERAGED = {
    "p": mlp_params(4, 8, 3),
    "average": mlp_params(4, 8, 3),
    "count": numbers(),
    "finite": shape(dtype=jnp.bool_),
    "losses": shape(10),
    "nothing": None,
}


def q_learning(p: Any, old: Any, seen: Any, action: Any, reward: Any, then: Any) -> Any:
    def loss(p: Any) -> jax.Array:
        goal = reward + 0.9 * mlp(old, then).max(-1)
        return jnp.mean((jnp.take_along_axis(mlp(p, seen), action[:, None], 1)[:, 0] - goal) ** 2)

    return trained(loss, p)


def adapted(p: Any, base: Any, x: jax.Array, y: jax.Array) -> Any:
    def loss(p: Any) -> jax.Array:
        (w, b), *rest = base
        return mse([(w + p["a"] @ p["b"], b), *rest], x, y)

    return trained(loss, p)


def residual(p: Any, x: jax.Array) -> jax.Array:
    """All layers have one width, so that all weights have the features."""
    for w in p:
        x = x + jnp.tanh(x @ w)
    return x


def orthogonal(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """SGD along orthogonal matrices: most of the work is that of the optimizer."""

    def root(g: jax.Array) -> jax.Array:
        g = g / jnp.linalg.norm(g)
        return jax.lax.fori_loop(0, 3, lambda _, g: 1.5 * g - 0.5 * g @ g.T @ g, g)

    grads = jax.grad(lambda p: jnp.mean((residual(p, x) - y) ** 2))(p)
    return jax.tree.map(lambda w, g: w - root(g), p, grads)


def generated(p: Any, q: Any, real: jax.Array, key: jax.Array) -> Any:
    """A small critic beside a generator of noise that the step makes."""
    noise = jax.random.normal(key, real.shape)

    def distance(p: Any, q: Any) -> jax.Array:
        return jnp.mean(residual(q, real) ** 2 - residual(q, residual(p, noise)) ** 2)

    by_p, by_q = jax.grad(distance, argnums=(0, 1))(p, q)
    return jax.tree.map(lambda w, g: w - g, (p, q), (by_p, by_q))


X, Y = shape(ROWS, 4), shape(ROWS, 3)
MLP = mlp_params(4, 8, 3)
BOTH = {"x": 0, "y": 0}
CACHED = {"cache[0]": 0, "cache[1]": 0, "token": 0}
CASES: Mapping[str, tuple[Step, tuple[Any, ...], tuple[int, ...], dict[str, int]]] = {
    "floats": (train, (MLP, X, Y), (0,), BOTH),
    "nothing donated": (train, (MLP, X, Y), (), BOTH),
    "gradients": (jax.grad(mse), (MLP, X, Y), (), BOTH),
    "square": (train, (mlp_params(8, 8, 8), shape(8, 8), shape(8, 8)), (0,), BOTH),
    "one layer": (lambda w, x: x @ w.T, (shape(3, 4), X), (), {"x": 0}),
    "inference": (mlp, (MLP, X), (), {"x": 0}),
    "counts beside predictions": (
        evaluate, (MLP, X, numbers(ROWS)), (), {"x": 0, "label": 0},
    ),
    "tokens": (logits, (MODEL, numbers(ROWS, 5)), (), {"ids": 0}),
    "a table of as many rows": (
        logits, ({**MODEL, "table": shape(ROWS, 8)}, numbers(ROWS, 5)), (), {"ids": 0},
    ),
    "embeddings": (lambda p, x: attend(p, x)[0], (ATTENTION, shape(ROWS, 5, 8)), (), {"x": 0}),
    "donated cache": (decode, (MODEL, CACHE, numbers(ROWS, 1), numbers()), (1,), CACHED),
    "cache": (decode, (MODEL, CACHE, numbers(ROWS, 1), numbers()), (), CACHED),
    "all is state": (
        decode_alone, (MODEL, CACHE, numbers(ROWS, 1), numbers()), (1, 2, 3), CACHED,
    ),
    "all is state, of all layers": (
        decode_scanned,
        (
            {**MODEL, "layer": jax.tree.map(lambda leaf: shape(2, *leaf.shape), ATTENTION)},
            tuple(shape(2, *leaf.shape) for leaf in CACHE),
            numbers(ROWS, 1),
            numbers(),
        ),
        (1, 2, 3),
        {"cache[0]": 1, "cache[1]": 1, "token": 0},
    ),
    "quantized": (quantized, ([int8(4, 8), int8(8, 3)], X), (), {"x": 0}),
    "batch normalization": (
        train_normalized,
        (CONVOLUTION, shape(8), shape(4, 6, 6, 3), shape(4, 5)),
        (0, 1),
        {"image": 0, "label": 0},
    ),
    "time first": (recurrent, (RECURRENT, shape(5, ROWS, 4)), (), {"xs": 1}),
    "states that go on": (
        train_with_states,
        (RECURRENT, (shape(ROWS, 8), shape(ROWS, 8)), shape(5, ROWS, 4)),
        (0, 1),
        {"states[0]": 0, "states[1]": 0, "xs": 1},
    ),
    "latents": (
        denoise,
        ({"time": shape(4, 8), "out": shape(8, 8)}, shape(4, 9, 8), shape(4), shape(4, 3, 8)),
        (),
        {"latent": 0, "time": 0, "context": 0},
    ),
    "schedule and key": (
        train_noisy,
        (mlp_params(4, 8, 4), shape(50), X, numbers(ROWS), shape(2, dtype=jnp.uint32)),
        (0,),
        {"latent": 0, "time": 0},
    ),
    "typed key": (
        train_noisy,
        (mlp_params(4, 8, 4), shape(50), X, numbers(ROWS), jax.eval_shape(jax.random.key, 0)),
        (0,),
        {"latent": 0, "time": 0},
    ),
    "contrastive": (
        train_pairs, (PAIRS, shape(4, 5), numbers(4, 3)), (0,), {"image": 0, "text": 0},
    ),
    "two batches": (
        adversaries,
        (mlp_params(3, 8, 4), mlp_params(4, 8, 1), X, shape(ROWS, 3)),
        (1,),
        {"real": 0, "noise": 0},
    ),
    "state of all kinds": (averaged, (AVERAGED, X, Y), (0,), BOTH),
    "frozen weights": (adapted, ({"a": shape(4, 2), "b": shape(2, 8)}, MLP, X, Y), (0,), BOTH),
    "rewards": (
        q_learning,
        (MLP, MLP, X, numbers(ROWS), shape(ROWS), X),
        (0,),
        dict.fromkeys(("seen", "action", "reward", "then"), 0),
    ),
    "an optimizer of more work": (
        orthogonal, ([shape(16, 16)] * 2, shape(ROWS, 16), shape(ROWS, 16)), (0,), BOTH,
    ),
    "noise of more work": (
        generated,
        ([shape(16, 16)] * 4, [shape(16, 16)], shape(ROWS, 16), shape(2, dtype=jnp.uint32)),
        (0, 1),
        {"real": 0},
    ),
    "one row": (mlp, (MLP, shape(1, 4)), (), {"x": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_batch_is_found(name: str) -> None:
    step, arguments, donated, expected = CASES[name]
    assert batch_of(step, *arguments, donate=donated) == expected


def graph_network(w: jax.Array, nodes: jax.Array, sender: jax.Array, receiver: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        sent = (nodes @ w)[sender]
        return jnp.mean(jnp.tanh(jax.ops.segment_sum(sent, receiver, len(nodes))) ** 2)

    return trained(loss, w)


def accumulated(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Microbatches as many write them."""

    def add(total: Any, rows: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(mse)(p, *rows)), None

    parts = (x.reshape(3, 4, 4), y.reshape(3, 4, 3))
    grads, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, p), parts)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


def chunked(p: Any, tokens: jax.Array) -> Any:
    """Logits of a few flattened rows at a time."""

    def loss(p: Any) -> jax.Array:
        hidden = jnp.tanh(p["table"][tokens[:, :-1]] @ p["w"]).reshape(4, -1, 8)

        def chunk(total: jax.Array, rows: Any) -> Any:
            logits = jax.nn.log_softmax(rows[0] @ p["table"].T)
            return total - jnp.take_along_axis(logits, rows[1][:, None], 1).sum(), None

        labels = tokens[:, 1:].reshape(4, -1)
        return lax.scan(jax.checkpoint(chunk), jnp.zeros(()), (hidden, labels))[0]

    value, grads = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value


def several_steps(p: Any, x: jax.Array, y: jax.Array) -> Any:
    rows = (x.reshape(2, 5, 4), y.reshape(2, 5, 3))
    return lax.scan(lambda p, rows: (train(p, *rows)[0], None), p, rows)[0]


def test_the_batch_that_a_step_takes_in_parts() -> None:
    """One that accumulates gradients over parts as well, whose sizes tell it from the layers."""
    params = {"table": shape(11, 8), "w": shape(8, 8)}
    assert parts_of(chunked, params, numbers(12, 7)) == {("tokens", 0, 4)}
    # 10 rows are no 4 parts of rows.
    with pytest.raises(UndecidedBatch):
        parts_of(chunked, params, numbers(10, 7))
    # What follows needs what all rows of a part went into.
    with pytest.raises(UndecidedBatch, match="which the step takes in parts"):
        parts_of(several_steps, MLP, shape(10, 4), shape(10, 3))


@pytest.mark.parametrize(
    ("step", "arguments", "message"),
    [
        (
            graph_network,
            (shape(4, 4), shape(9, 4), numbers(7), numbers(7)),
            r"1: nodes tensor<9x4xf32>, whose rows are picked by an index; 2: sender tensor<7xi32>",
        ),
        (
            lambda w, x, y: w - x.sum() * y.sum(),
            (shape(2), shape(4), shape(3)),
            r"several arguments could be it \(1: x tensor<4xf32>, 4 rows; 2: y tensor<3xf32>, 3 r",
        ),
        (mlp, (MLP, shape(4)), r"x tensor<4xf32>, in a tree|in a tree of which"),
        (
            accumulated,
            (MLP, shape(12, 4), shape(12, 3)),
            r"x tensor<12x4xf32>, which the step takes in parts, as microbatches of its own; .*"
            r"\); take parts of the batch along a dimension behind its rows \(reshape it to rows x "
            r"parts, and take \[:, part\]\), name them",
        ),
    ],
)
def test_what_is_undecided_names_the_candidates(
    step: Step, arguments: tuple[Any, ...], message: str
) -> None:
    donate = () if step is mlp else (0,)
    with pytest.raises(UndecidedBatch, match=message):
        batch_of(step, *arguments, donate=donate)


def test_the_batch_of_a_recurrent_network_in_loops_that_stay() -> None:
    """Rows come into the state, which begins as zeros, by the first iteration, and are rows of all
    products from the second one on."""

    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(xs: jax.Array, w: jax.Array) -> Any:
            def cell(h: jax.Array, x: jax.Array) -> Any:
                h = jnp.tanh(h @ w[0] + x @ w[1])
                return h, h

            return lax.scan(cell, jnp.zeros_like(xs[0]), xs)[1], None

        return jnp.mean((lax.scan(layer, jnp.swapaxes(x, 0, 1), p)[0][-1] - y) ** 2)

    arguments = shape(2, 2, 3, 3), shape(ROWS, 5, 3), shape(ROWS, 3)
    step = partial(trained, loss)
    assert batch_of(step, *arguments, donate=(0,), unroll=False) == {"batch[0]": 0, "batch[1]": 0}

"""Training steps of the kinds that are published: cut into microbatches they compute what they
compute whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardopt.ir.diagnostics import DiagnosedError
from tests.unit.passes.split_checks import (
    ROWS,
    check,
    lower,
    mlp,
    mlp_params,
    mse,
    names,
    normal,
    sgd,
    split,
)

KEY = jnp.asarray([7, 11], jnp.uint32)


def step_of(optimizer: optax.GradientTransformation, state: Any, *batch: Any) -> Any:
    params, memory = state
    value, grads = jax.value_and_grad(mse)(params, *batch)
    updates, memory = optimizer.update(grads, memory, params)
    return (optax.apply_updates(params, updates), memory), value


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(optax.cosine_decay_schedule(0.1, 10), momentum=0.9, nesterov=True),
        optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1, weight_decay=0.01)),
        optax.adafactor(0.1, min_dim_size_to_factor=2),
        optax.lamb(0.1),
        optax.apply_if_finite(optax.adam(0.1), 3),
    ],
    ids=["momentum", "clipped-adamw", "adafactor", "lamb", "if-finite"],
)
def test_optimizers_stay_behind_the_loop(optimizer: optax.GradientTransformation) -> None:
    params = mlp_params()
    state = params, optimizer.init(params)
    program = check(
        partial(step_of, optimizer), state, normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(4,)
    )
    assert len(program.loop.results) == 4, "the loss and one gradient a parameter"


@pytest.mark.parametrize("scale", [1024.0, 1e30], ids=["finite", "overflow"])
def test_dynamic_loss_scaling(scale: float) -> None:
    """Of half precision: one gradient that is not finite skips the update of all, and halves the
    scale."""

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, scale, good = state

        def loss(params: Any) -> jax.Array:
            half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), (params, x, y))
            return mse(*half).astype(jnp.float32) * scale

        value, grads = jax.value_and_grad(loss)(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
        good = jnp.where(finite, good + 1, 0)
        scale = jnp.where(finite, jnp.where(good >= 2, 2 * scale, scale), scale / 2)
        return (params, scale, jnp.where(good >= 2, 0, good)), value, finite

    state = mlp_params(), jnp.float32(scale), jnp.int32(1)
    program = check(
        step, state, normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(2, 4), rtol=1e-2, atol=1e-3
    )
    assert "is_finite" not in names(program.body_ops)


def test_a_loss_weighted_by_examples() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.average(jnp.sum((mlp(params, x) - y) ** 2, axis=-1), weights=weight)

    weight = jnp.asarray([0.5, 2.0, 0.0, 1.0])
    check(
        partial(sgd, loss),
        mlp_params(),
        normal(3, ROWS, 3),
        normal(4, ROWS, 2),
        weight,
        counts=(4,),
    )


def test_losses_with_weight_decay_and_metrics() -> None:
    """Several losses in one, a penalty on the parameters, and metrics: means, sums, extremes and
    spreads."""

    def losses(params: Any, x: jax.Array, y: jax.Array) -> Any:
        out = mlp(params, x)
        first, second = jnp.mean((out - y) ** 2), jnp.sum(optax.huber_loss(out, y))
        penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        right = jnp.mean(jnp.argmax(out, -1) == jnp.argmax(y, -1))
        return first + 0.1 * second + 0.01 * penalty, (
            first,
            second,
            right,
            jnp.max(out),
            out.std(),
        )

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        (value, more), grads = jax.value_and_grad(losses, has_aux=True)(params, x, y)
        return (
            jax.tree.map(lambda p, g: p - 0.1 * g, params, grads),
            value,
            more,
            optax.tree.norm(grads),
        )

    check(step, mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(4,))


def test_two_losses_with_gradients_of_their_own() -> None:
    """A generator and a discriminator."""

    def step(state: Any, x: jax.Array, real: jax.Array) -> Any:
        maker, judge = state

        def verdict(judge: Any, maker: Any) -> jax.Array:
            return mlp(judge, mlp(maker, x) @ jnp.ones((2, 3)))

        def fools(maker: Any) -> jax.Array:
            return jnp.mean(jax.nn.softplus(-verdict(judge, maker)))

        def judges(judge: Any) -> jax.Array:
            return jnp.mean(jax.nn.softplus(verdict(judge, maker))) + jnp.mean(
                jax.nn.softplus(-mlp(judge, real))
            )

        return (sgd(fools, maker)[0], sgd(judges, judge)[0]), fools(maker), judges(judge)

    check(step, (mlp_params(), mlp_params()), normal(3, ROWS, 3), normal(4, ROWS, 3), counts=(4,))


def test_outputs_of_each_example_are_gathered_in_order() -> None:
    """Concatenated, transposed, sorted and boolean ones, beside a training step."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        out = mlp(params, x)
        both = jnp.concatenate([out, y], axis=-1)
        return (
            *sgd(mse, params, x, y),
            both,
            both[:, ::-1].T,
            jnp.argsort(both, -1),
            out > 0,
            jnp.cumsum(both, 0),
        )

    check(step, mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(2, 4))


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_an_evaluation_step() -> None:
    def evaluate(params: Any, x: jax.Array, y: jax.Array) -> Any:
        out = mlp(params, x)
        right = jnp.argmax(out, -1) == jnp.argmax(y, -1)
        return {
            "logits": out,
            "loss": jnp.mean((out - y) ** 2),
            "right": right.sum(),
            "count": right.size,
        }

    arguments = mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2)
    program = check(evaluate, *arguments, counts=(4,), batch_args=("x", "y"))
    assert "dot_general" not in names(program.prologue) | names(program.epilogue)


def test_one_argument_of_the_batch_is_enough() -> None:
    """What meets its rows has to have rows: the inputs are sliced, too, and the model runs in the
    loop."""

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(mlp(params, x), labels).mean()

    labels = jnp.asarray([0, 1, 1, 0], jnp.int32)
    program = check(
        partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), labels, counts=(2,), batch_args=("4",)
    )
    assert "dot_general" not in names(program.prologue) | names(program.epilogue)


def dropout(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(key)
    hidden = jnp.tanh(x @ params["w1"] + params["b1"]) * jax.random.bernoulli(key, 0.5, (len(x), 5))
    return jnp.mean(
        (hidden @ params["w2"] + 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (len(x), 2)))
        ** 2
    )


@pytest.mark.parametrize("partitionable", [True, False])
def test_random_bits_are_those_of_the_whole_batch(partitionable: bool) -> None:
    """Both ways in which jax numbers the elements of what threefry makes."""
    with jax.threefry_partitionable(partitionable):
        check(partial(sgd, dropout), mlp_params(), normal(3, ROWS, 3), KEY, counts=(2, 4))


def test_a_random_key_for_each_example() -> None:
    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.wrap_key_data(key), len(x))
        return jnp.mean(
            (mlp(params, x) * jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (2,)))(keys)) ** 2
        )

    check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), KEY, counts=(4,))


def shuffled(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    return mse(params, jax.random.permutation(jax.random.wrap_key_data(key), x), x[:, :2])


def mixed_up(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    share = jax.random.uniform(jax.random.wrap_key_data(key), (len(x), 1))
    return jnp.mean(mlp(params, share * x + (1 - share) * x[::-1]) ** 2)


def standardized(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    return dropout(params, (x - x.mean(0)) / (x.std(0) + 1e-3), key)


def branched(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    return dropout(params, jax.lax.cond(jnp.mean(x) > 0, jnp.sin, lambda x: 2 * x, x), key)


def halved(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Until the largest of all rows is small, with a counter beside them."""

    def half(carried: Any) -> Any:
        return carried[0] + 1, carried[1] / 2

    times, small = jax.lax.while_loop(lambda c: jnp.max(jnp.abs(c[1])) > 0.1, half, (0, x))
    return dropout(params, small * times, key)


@pytest.mark.parametrize("loss", [shuffled, mixed_up, standardized, branched, halved])
def test_rows_of_the_inputs_may_be_mixed_before_the_model(loss: Callable[..., jax.Array]) -> None:
    """On the whole batch, before the loop, which costs little: the model sees slices of what comes
    out."""
    program = check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), KEY, counts=(2, 4))
    assert "dot_general" not in names(program.prologue)


def test_a_scan_over_time() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        def cell(h: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(inputs @ params["w"] + h @ params["u"])
            return h, h

        return jnp.mean(jax.lax.scan(cell, jnp.zeros((x.shape[1], 5)), x)[1] ** 2)

    params = {"w": normal(0, 3, 5), "u": normal(1, 5, 5)}
    check(partial(sgd, loss), params, normal(3, 3, ROWS, 3), counts=(4,), batch_args=("batch:1",))


def test_a_scan_over_checkpointed_layers_with_dropout() -> None:
    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(carry: Any, weight: jax.Array) -> Any:
            h, key = carry
            key, mine = jax.random.split(key)
            return (h + jnp.tanh(h @ weight) * jax.random.bernoulli(mine, 0.5, h.shape), key), None

        return jnp.mean(jax.lax.scan(layer, (x, jax.random.wrap_key_data(key)), params)[0][0] ** 2)

    check(partial(sgd, loss), normal(0, 3, 3, 3), normal(3, ROWS, 3), KEY, counts=(4,))


def test_gradients_clipped_for_each_example() -> None:
    """As differential privacy wants it: the batch is a batch of gradients."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        grads = jax.vmap(jax.grad(lambda p, x, y: mse(p, x[None], y[None])), (None, 0, 0))(
            params, x, y
        )
        norms = jnp.sqrt(
            sum(jnp.sum(g.reshape(len(g), -1) ** 2, -1) for g in jax.tree.leaves(grads))
        )
        share = jnp.minimum(1, 0.5 / norms) / len(norms)
        return jax.tree.map(lambda p, g: p - jnp.tensordot(share, g, 1), params, grads), norms

    check(step, mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(4,))


def test_a_mixture_of_experts_by_one_hot_products() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        gate = jax.nn.softmax(x @ params["router"])
        hot = jax.nn.one_hot(jnp.argmax(gate, -1), 2)
        return jnp.mean(jnp.einsum("nd,edf,ne,ne->nf", x, params["up"], hot, gate) ** 2)

    check(
        partial(sgd, loss),
        {"router": normal(0, 3, 2), "up": normal(1, 2, 3, 5)},
        normal(3, ROWS, 3),
        counts=(4,),
    )


def test_a_teacher_that_averages_its_student() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        student, teacher = state
        target = mlp(teacher, x)
        student, value = sgd(lambda p: jnp.mean((mlp(p, x) - target) ** 2), student)
        return (student, jax.tree.map(lambda t, s: 0.9 * t + 0.1 * s, teacher, student)), value

    check(step, (mlp_params(), mlp_params()), normal(3, ROWS, 3), counts=(4,))


def test_double_precision_agrees_to_ten_digits() -> None:
    with jax.enable_x64(True):
        optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1))
        params, x, y = jax.tree.map(
            lambda leaf: leaf.astype(jnp.float64),
            (mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2)),
        )
        check(
            partial(step_of, optimizer),
            (params, optimizer.init(params)),
            x,
            y,
            rtol=1e-10,
            atol=1e-14,
        )


def norm_with_running_statistics(state: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> Any:
        hidden = x @ params["w1"]
        mean, spread = hidden.mean(0), hidden.var(0)
        hidden = (hidden - mean) * jax.lax.rsqrt(spread + 1e-3)
        return jnp.mean((jnp.tanh(hidden) @ params["w2"]) ** 2), (mean, spread)

    params, running = state
    (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, statistics)
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), running), value


def test_batch_statistics_of_equal_microbatches_are_those_of_the_batch() -> None:
    """So a step whose microbatches stand for the batch is exact there; the running statistics leave
    the loop, too."""
    params = {"w1": normal(0, 3, 5), "w2": normal(1, 5, 2)}
    state = params, (jnp.zeros(5), jnp.ones(5))
    rows = jnp.tile(normal(3, 2, 3), (2, 1))
    check(
        norm_with_running_statistics,
        state,
        rows,
        counts=(2,),
        batch_coupling="per-microbatch",
        atol=1e-5,
    )
    with pytest.raises(
        DiagnosedError,
        match=r"'stablehlo\.subtract' .* reduced over the whole batch by 'stablehlo\.",
    ):
        split(lower(norm_with_running_statistics, state, rows), 2)


def test_statistics_that_are_state_do_not_couple_the_batch() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        params, (mean, spread) = state

        def loss(params: Any) -> jax.Array:
            hidden = (x @ params["w1"] - mean) * jax.lax.rsqrt(spread + 1e-3)
            return jnp.mean((jnp.tanh(hidden) @ params["w2"]) ** 2)

        return (sgd(loss, params)[0], (mean, spread))

    state = {"w1": normal(0, 3, 5), "w2": normal(1, 5, 2)}, (normal(2, 5), jnp.ones(5))
    check(step, state, normal(3, ROWS, 3), counts=(4,))


def self_weighted(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    out = mlp(params, x)
    weight = jax.nn.sigmoid(out[:, 0])
    return jnp.sum((out[:, 1] - y[:, 0]) ** 2 * weight) / jnp.sum(weight)


def worst(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.max(jnp.sum((mlp(params, x) - y) ** 2, -1))


@pytest.mark.parametrize("loss", [self_weighted, worst])
def test_losses_whose_gradient_needs_the_whole_forward_pass(loss: Callable[..., jax.Array]) -> None:
    """Refused, with the operation that needs a total and the one that makes it."""
    module = lower(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2))
    with pytest.raises(
        DiagnosedError, match=r"needs a value reduced over the whole batch by 'stablehlo\.reduce'"
    ):
        split(module, 2)


def test_rows_that_a_loop_takes_one_by_one_are_refused_with_the_way_around() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((mlp(params, x) + jax.lax.map(partial(mlp, params), x)) ** 2)

    module = lower(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3))
    message = r"needs rows of the batch that are moved or mixed by 'stablehlo\.slice'; .*jax\.vmap"
    with pytest.raises(DiagnosedError, match=message):
        split(module, 2, batch_args=("3",))


def test_iota_masks_of_the_batch_are_sliced() -> None:
    """By position in the batch, as the whole batch would have had them."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        rows = jnp.arange(len(x))
        scale = jnp.where(rows % 3 == 1, 2.0, jnp.where(rows < 2, 0.5, 1.0))
        # A constant with a row for each example.
        table = jnp.asarray(np.arange(12.0, dtype=np.float32).reshape(4, 3))
        return jnp.mean(mlp(params, x + table) ** 2 * scale[:, None])

    check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), counts=(2, 4))

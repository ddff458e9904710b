"""A step cut into microbatches computes what the whole step computes, and mistakes are told with a
place."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.rewriting import operations
from shardopt.passes.microbatches.split_microbatches import SplitMicrobatches
from shardopt.pipeline.manager import run_pipeline
from tests.unit.passes.loop_expansion import evaluate, expand_loop
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


def test_mlp_with_sgd() -> None:
    program = check(partial(sgd, mse), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2))
    assert "dot_general" not in names(program.prologue) | names(program.epilogue)
    assert "subtract" in names(program.epilogue)
    # the loss and one gradient a parameter
    assert len(program.loop.results) == 4


def adam(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """A step with gradients clipped by their common norm."""
    params, first, second, count = state
    grads = jax.grad(mse)(params, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, grads)
    rate = 0.1 / (1 + count)
    params = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-3), params, first, second
    )
    return params, first, second, count + 1


def adam_state() -> Any:
    params = mlp_params()
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, zeros, jnp.float32(2)


def test_adam_updates_stay_behind_the_loop() -> None:
    program = check(adam, adam_state(), normal(3, ROWS, 3), normal(4, ROWS, 2))
    assert "sqrt" not in names(program.body_ops)


def test_a_mask_sum_that_scales_gradients_is_computed_before_the_loop() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
        errors = jnp.sum((mlp(params, x) - y) ** 2, axis=-1)
        return jnp.sum(errors * mask) / jnp.sum(mask)

    mask = jnp.asarray([1, 0, 1, 1], jnp.int32).astype(jnp.float32)
    program = check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), mask)
    assert "reduce" in names(program.prologue)


def test_weights_next_to_sums_of_inputs_are_known_before_the_loop() -> None:
    """Groups weighed by state, divided by how many rows each has (GroupDRO); inputs normalised by
    running statistics."""

    def step(state: Any, x: jax.Array, y: jax.Array, member: jax.Array) -> Any:
        params, by_group, mean = state
        mean = 0.9 * mean + 0.1 * jnp.mean(x, axis=0)

        def loss(params: Any) -> Any:
            errors = jnp.sum((mlp(params, x - mean) - y) ** 2, axis=-1)
            losses = errors @ member / jnp.maximum(jnp.sum(member, axis=0), 1)
            return losses @ by_group, losses

        grads, losses = jax.grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, by_group * jnp.exp(losses), mean

    state = (mlp_params(), jnp.asarray([0.25, 0.75]), normal(5, 3))
    member = jax.nn.one_hot(jnp.asarray([0, 1, 1, 0]), 2)
    program = check(step, state, normal(3, ROWS, 3), normal(4, ROWS, 2), member)
    assert "reduce" in names(program.prologue)
    assert "exponential" in names(program.epilogue)


def test_small_products_of_a_metric_stand_behind_the_loop() -> None:
    """All pairs of the batch: of the predictions, beside a loss that has none of them."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        found = mlp(params, x)
        return sgd(mse, params, x, y), found[:, :1] @ found[:, :1].T

    params = {"w1": normal(1, 64, 64), "b1": normal(2, 64), "w2": normal(3, 64, 2)}
    program = check(step, params, normal(3, ROWS, 64), normal(4, ROWS, 2))
    assert "dot_general" in names(program.epilogue)


def test_sums_of_narrow_numbers_are_rounded_once() -> None:
    """In f16 4096 + 1 is 4096, however often it is added."""
    weight, x = jnp.ones((1, 1), jnp.float16), jnp.asarray([[64], *[[1]] * 7], jnp.float16)

    def step(weight: jax.Array, x: jax.Array) -> jax.Array:
        return x.T @ (x @ weight)

    def total(**options: Any) -> float:
        module = lower(step, weight, x)
        split(module, 8, batch_args=("1",), **options)
        with module.context:
            expand_loop(module)
            return float(evaluate(module, [np.asarray(weight), np.asarray(x)])[0][0, 0])

    assert total() == 4104  # 4103, rounded
    assert total(microbatch_sums="own") == 4096


def test_rows_of_two_arguments_side_by_side() -> None:
    """Pairs of answers that run as one batch, as preference learning has them."""

    def loss(params: Any, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        scores = mlp(params, jnp.concatenate([chosen, rejected])).sum(-1)
        margin = scores[: len(chosen)] - scores[len(chosen) :]
        return -jax.nn.log_sigmoid(margin).mean()

    program = check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 3))
    assert names(program.body_ops) >= {"concatenate", "slice", "pad"}
    assert "concatenate" not in names(program.prologue)


def test_more_rows_behind_few() -> None:
    """Labelled rows, and three times as many without labels: a microbatch has a block of each
    segment of as many rows."""

    def loss(params: Any, x: jax.Array, y: jax.Array, more: jax.Array) -> jax.Array:
        out = mlp(params, jnp.concatenate([x, more]))
        return jnp.mean((out[: len(x)] - y) ** 2) + jnp.mean(jnp.abs(out[len(x) :]))

    program = check(
        partial(sgd, loss), mlp_params(), *(normal(3, ROWS, 3), normal(4, ROWS, 2)),
        normal(5, 3 * ROWS, 3),
    )  # fmt: skip
    assert "concatenate" in names(program.body_ops)


def test_halves_of_the_batch_that_are_treated_differently() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        out, half = mlp(params, x), len(x) // 2
        return jnp.mean((out[:half] - y[:half]) ** 2) + jnp.mean(jnp.abs(out[half:]))

    check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(1, 2))


def test_a_named_batch_that_is_cut_in_parts_is_reported_so() -> None:
    def step(weight: jax.Array, x: jax.Array) -> Any:
        out, half = jnp.tanh(x @ weight), len(x) // 2
        return weight, jnp.mean(((out[:half] - out[half:]) @ weight) ** 2)

    module = lower(step, normal(0, 3, 3), normal(1, ROWS, 3))
    passes = "shardopt-split-microbatches{num-microbatches=2 batch-args=1:0}"
    said = run_pipeline(module, f"builtin.module({passes})").diagnostics
    assert "the batch is dimension 0 of argument 1 (x) in each of 2 parts" in str(said)


def test_a_branch_needs_what_was_summed_outside_of_it() -> None:
    """The error finds where, through what the branch makes of the sum."""

    def step(weight: jax.Array, x: jax.Array) -> Any:
        hidden = x @ weight
        total = hidden.sum(0)
        return weight, jax.lax.cond(
            weight[0, 0] > 0, jnp.sin, lambda h: jnp.tanh((h * total) @ weight), hidden
        )

    module = lower(step, normal(0, 3, 3), normal(1, ROWS, 3))
    with pytest.raises(
        DiagnosedError, match=r"'stablehlo.multiply' needs .* by 'stablehlo.reduce'"
    ):
        split(module, 2, batch_args=("1",))


def test_embedding_gradients_accumulate_through_scatter() -> None:
    def loss(table: jax.Array, tokens: jax.Array) -> jax.Array:
        rows = table[tokens]
        return jnp.mean(jnp.tanh(rows[:, 1:] - rows[:, :-1]) ** 2)

    tokens = jnp.asarray([[0, 3, 1], [2, 2, 0], [5, 1, 1], [4, 0, 3]], jnp.int32)
    program = check(partial(sgd, loss), normal(0, 6, 4), tokens)
    assert "scatter" in names(program.body_ops)


def test_outputs_of_each_row_are_collected() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        logits = mlp(params, x)
        return params, logits, jnp.argmax(logits, axis=-1), logits.T, x * 2

    program = check(step, mlp_params(), normal(3, ROWS, 3), batch_args=("3",))
    assert names(program.body_ops) >= {"dynamic_slice", "dynamic_update_slice"}


def test_dropout_bits_of_a_microbatch_are_those_of_its_rows() -> None:
    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, x.shape)
        return jnp.mean(mlp(params, jnp.where(keep, x, 0.0)) ** 2)

    key = jnp.asarray([7, 11], jnp.uint32)
    check(partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), key, counts=(1, 2))


def test_softmax_cross_entropy_by_label() -> None:
    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(mlp(params, x))
        return -jnp.mean(jnp.take_along_axis(log_probs, labels[:, None], axis=-1))

    check(
        partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), jnp.asarray([0, 1, 1, 0], jnp.int32)
    )


def attention(params: Any, x: jax.Array) -> jax.Array:
    """Causal, two heads, with layer normalization and a learned position."""
    rows, length, width = x.shape
    x = x + params["position"]
    normed = (
        (x - x.mean(-1, keepdims=True))
        * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        * params["scale"]
    )
    q, k, v = (jnp.reshape(normed @ params[name], (rows, length, 2, width // 2)) for name in "qkv")
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return x + mixed.reshape(rows * length, width).reshape(x.shape)


def test_attention_with_layer_norm() -> None:
    params = {"position": normal(0, 3, 4), "scale": normal(1, 4)}
    params |= {name: normal(seed, 4, 4) for seed, name in enumerate("qkv", start=2)}
    check(partial(sgd, lambda p, x: jnp.mean(attention(p, x) ** 2)), params, normal(9, ROWS, 3, 4))


def test_convolution_and_pooling() -> None:
    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        image = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(
            jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            ** 2
        )

    check(partial(sgd, loss), normal(0, 2, 2, 2, 3), normal(1, ROWS, 4, 4, 2), counts=(1, 2))


def test_a_batch_that_is_not_the_first_dimension() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1, 4) @ w
        return jnp.mean(jnp.cumsum(flat.reshape(x.shape), axis=0) ** 2) + jnp.max(x)

    check(partial(sgd, loss), normal(0, 4, 4), normal(1, 3, ROWS, 4), batch_args=("1:1",))


def test_checkpointed_blocks_keep_their_barrier() -> None:
    loss = jax.checkpoint(mse)
    program = check(
        partial(sgd, loss), mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), counts=(1, 2)
    )
    assert "optimization_barrier" in names(program.body_ops)


def test_row_numbers_continue_from_one_microbatch_to_the_next() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        numbers = jax.lax.broadcasted_iota(jnp.float32, x.shape, 0)
        y = x * w * numbers
        return w + y.sum(0), y.reshape(2, -1, 3) * numbers.reshape(2, -1, 3)

    check(step, normal(1, 3), normal(0, ROWS, 3), counts=(1, 2))


def test_a_step_of_cheap_functions_of_the_batch_has_a_loop_too() -> None:
    def step(state: jax.Array, x: jax.Array) -> Any:
        return state + jnp.sum(x), x * 2, jnp.max(x, axis=0), jnp.argmax(x, axis=1)

    program = check(step, jnp.float32(1), normal(0, ROWS, 3), batch_args=("1",))
    assert len(program.loop.results) == 4


def test_max_min_and_boolean_reductions() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        y = x * w
        total = jnp.sum((y * 8).astype(jnp.int32), axis=0)
        return (
            w + y.max(0),
            y.min(0),
            jnp.any(y > 0.3, axis=0),
            jnp.all(y > -0.3, axis=0),
            total,
            y.prod(0),
        )

    check(step, normal(1, 3), normal(0, ROWS, 3))


def test_unreduced_values_are_added_before_they_are_accumulated() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    program = check(lambda w, x: w - jax.grad(loss)(w, x), normal(0, 3, 3), normal(1, ROWS, 3))
    assert len(program.loop.results) == 1


def test_a_partial_sum_added_to_zeros_keeps_its_reducer() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        return w - (jnp.zeros((3, 3)) + x.T @ (x @ w)), w

    program = check(step, normal(0, 3, 3), normal(1, ROWS, 3))
    assert names(program.epilogue) <= {"subtract", "reshape"}


def batch_norm(params: Any, x: jax.Array) -> jax.Array:
    hidden = x @ params["w1"]
    hidden = (hidden - hidden.mean(0)) * jax.lax.rsqrt(hidden.var(0) + 1e-3) * params["b1"]
    return jnp.mean((jnp.tanh(hidden) @ params["w2"]) ** 2)


def test_batch_norm_is_refused_by_default() -> None:
    module = lower(partial(sgd, batch_norm), mlp_params(), normal(3, ROWS, 3))
    with pytest.raises(
        DiagnosedError, match=r"reduced over the whole batch by 'stablehlo\.reduce'"
    ) as caught:
        split(module, 2)
    assert caught.value.diagnostic.notes[0].message == "reduced over the batch here"


def test_batch_norm_of_a_microbatch() -> None:
    """With the rows of a microbatch repeated, the statistics of the whole batch are those of the
    microbatch."""
    params, x = mlp_params(), normal(3, ROWS, 3)

    def gradients(params: Any, x: jax.Array) -> Any:
        return jax.grad(batch_norm)(params, x)

    module = lower(gradients, params, x)
    split(module, 2, batch_coupling="per-microbatch", batch_args=("3",))
    flat = [np.asarray(leaf) for leaf in (*jax.tree.leaves(params), x)]
    with module.context:
        expand_loop(module)
        results = evaluate(module, flat)
    halves = [
        jax.tree.leaves(gradients(params, jnp.concatenate([half, half]))) for half in (x[:2], x[2:])
    ]
    for result, first, second in zip(results, *halves, strict=True):
        np.testing.assert_allclose(result, (first + second) / 2, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_one_microbatch_keeps_the_structure() -> None:
    program = check(partial(sgd, batch_norm), mlp_params(), normal(3, ROWS, 3), counts=(1,))
    assert "subtract" in names(program.epilogue)


def test_a_loop_that_divides_a_sum_by_its_norm_is_refused() -> None:
    """In every microbatch the norm would be that of its own terms."""

    def step(params: Any, x: jax.Array, y: jax.Array, count: jax.Array) -> Any:
        def add(_: int, total: Any) -> Any:
            grads = jax.grad(mse)(params, x, y)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda t, g: t + g / norm, total, grads)

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.fori_loop(0, count, add, zeros)

    module = lower(step, mlp_params(), normal(3, ROWS, 3), normal(4, ROWS, 2), jnp.int32(3))
    with pytest.raises(DiagnosedError, match="is no sum over it"):
        split(module, 2)


def measured(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """In every other step, an average of squared gradients."""
    params, squares, count = state

    def measure() -> Any:
        grads = jax.grad(mse)(params, x, y)
        return jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g**2, squares, grads)

    return params, jax.lax.cond(count % 2 == 0, measure, lambda: squares), count + 1


def delayed(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """In every other step, an update whose gradients are clipped by their common norm."""

    def update() -> Any:
        new, first, second, _ = adam(state, x, y)
        return new, first, second, mse(state[0], x, y)

    def skip() -> Any:
        return *state[:3], jnp.float32(7)

    *parts, loss = jax.lax.cond(state[3] % 2 == 0, update, skip)
    return *parts, state[3] + 1, loss


def switched(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """A gradient in each of two branches, and another value in the third."""
    params, count = state
    branches = (
        lambda: jax.grad(mse)(params, x, y),
        lambda: jax.tree.map(jnp.sign, jax.grad(mse)(params, 2 * x, y)),
        lambda: jax.tree.map(jnp.ones_like, params),
    )
    return jax.lax.switch(count, branches), count + 1


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("step", [measured, delayed])
def test_what_a_branch_makes_of_a_sum_stands_behind_the_loop(step: Any, count: int) -> None:
    """The operation that is in the way has a number in its branch, where the step has fewer: told
    with one microbatch, too."""
    state = (mlp_params(), mlp_params(), jnp.int32(count))
    if step is delayed:
        state = (*adam_state()[:3], jnp.int32(count))
    program = check(step, state, normal(3, ROWS, 3), normal(4, ROWS, 2))
    inner = {op.name for each in program.epilogue for op in operations(each)}
    assert "stablehlo.case" in inner
    assert "stablehlo.dot_general" not in inner


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_branch_has_sums_of_its_own(number: int) -> None:
    check(switched, (mlp_params(), jnp.int32(number)), normal(3, ROWS, 3), normal(4, ROWS, 2))


def test_contrastive_loss_is_refused() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        z = x @ w
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(z @ z.T)))

    module = lower(partial(sgd, loss), normal(0, 3, 3), normal(1, ROWS, 3))
    with pytest.raises(DiagnosedError, match="pairs every row of the batch with every other row"):
        split(module, 2)


def test_an_indivisible_batch_is_told_with_its_divisors() -> None:
    module = lower(partial(sgd, mse), mlp_params(), normal(3, 6, 3), normal(4, 6, 2))
    with pytest.raises(
        DiagnosedError,
        match=r"found extent 6 of dimension 0 of argument 3 \(batch\[0\]\); its divisors are 1, 2, "
        r"3, 6",
    ):
        split(module, 4)


def test_ambiguous_batch_arguments_are_listed() -> None:
    module = lower(
        partial(sgd, lambda p, x, y: jnp.sum(x) * jnp.sum(y) * jnp.sum(p)),
        normal(0, 2),
        normal(1, 4),
        normal(2, 3),
    )
    with pytest.raises(
        DiagnosedError,
        match=r"several arguments could be it \(1: batch\[0\] tensor<4xf32>, 4 rows; "
        r"2: batch\[1\] tensor<3xf32>, 3 rows\)",
    ):
        split(module, 2)


def test_a_step_without_a_batch_is_one_iteration() -> None:
    program = check(
        adam, adam_state(), normal(3, 3, 3), normal(4, 3, 2), counts=(1,), batch_args=("none",)
    )
    assert "dot_general" not in names(program.epilogue)
    assert "sqrt" not in names(program.body_ops), "updates stay behind the loop there, too"
    assert len(program.loop.results) == 3, "a gradient for each parameter"


def test_one_microbatch_needs_no_batch() -> None:
    """Such as a step that goes over parts of its batch itself, with statistics of those before."""

    def accumulated(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def add(carry: Any, rows: Any) -> Any:
            total, mean = carry
            mean = 0.9 * mean + 0.1 * mlp(params, rows[0]).mean()
            grads = jax.grad(mse)(params, rows[0] - mean, rows[1])
            return (jax.tree.map(jnp.add, total, grads), mean), None

        parts = (x.reshape(2, 3, 3), y.reshape(2, 3, 2))
        start = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
        (grads, _), _ = jax.lax.scan(add, start, parts)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)

    program = check(accumulated, mlp_params(), normal(3, 6, 3), normal(4, 6, 2), counts=(1,))
    assert len(program.loop.results) == 3, "a gradient for each parameter"
    module = lower(accumulated, mlp_params(), normal(3, 6, 3), normal(4, 6, 2))
    with pytest.raises(DiagnosedError, match="takes in parts, as microbatches of its own"):
        split(module, 2)


def test_losses_and_other_results_without_a_batch() -> None:
    """A result is returned by the loop although an update is computed from it, too."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mse)(params, x, y)
        return jax.tree.map(lambda p, g: p - loss * g, params, grads), loss, x @ y

    program = check(
        step, mlp_params(), normal(3, 3, 3), normal(4, 3, 2), counts=(1,), batch_args=("none",)
    )
    assert len(program.loop.results) == 5
    assert names(program.epilogue) <= {"broadcast_in_dim", "multiply", "subtract", "transpose"}


def test_a_step_that_is_all_state_is_one_iteration() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        return jnp.tanh(params) * 2 + 1, x

    program = check(step, normal(0, 3), normal(1, 2), counts=(1,), batch_args=("none",))
    assert not program.epilogue


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-microbatches=0", "at least 1"),
        ("num-microbatches=2 batch-args=none", "expected num-microbatches=1 with batch-args=none"),
        ("batch-args=1:x", r"INDEX\[:DIM\]"),
        ("batch-args=auto,3", r"INDEX\[:DIM\]"),
    ],
)
def test_options_are_checked(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        SplitMicrobatches.parse(text)

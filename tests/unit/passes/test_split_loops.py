"""Loops and branches that stay, cut into microbatches: inside of them the batch is followed like
outside, and what cannot be cut is refused at the line of the user."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardopt.dialect.program import StepProgram
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.rewriting import operations
from tests.unit.passes.split_checks import ROWS, Step, check, lower, names, normal, sgd, split

TIMES, WIDTH = 5, 3


def batch(*shape: int) -> tuple[jax.Array, jax.Array]:
    return normal(3, ROWS, *(shape or (WIDTH,))), normal(4, ROWS, WIDTH)


def square(*numbers: int) -> dict[str, jax.Array]:
    return {f"w{k}": normal(k, WIDTH, WIDTH) for k in numbers}


def check_rolled(step: Step, *arguments: Any, **options: Any) -> StepProgram:
    """Exact, with the loop or branch where it was: in the body."""
    program = check(step, *arguments, unroll=False, counts=(2, 4), **options)
    assert names(program.body_ops) & {"while", "case"}
    return program


def recurrent(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """A state of zeros that becomes one for each row; each of its values is a result."""

    def cell(h: jax.Array, x: jax.Array) -> Any:
        h = jnp.tanh(h @ params["w0"] + x @ params["w1"])
        return h, h

    zeros = jnp.zeros((x.shape[0], WIDTH))
    h, seen = lax.scan(cell, zeros, jnp.swapaxes(x, 0, 1), reverse=True)
    return jnp.mean((h @ params["w2"] - y) ** 2) + jnp.mean(seen**2)


def test_a_recurrent_network_over_time() -> None:
    program = check_rolled(partial(sgd, recurrent), square(0, 1, 2), *batch(TIMES, WIDTH))
    loops = [op for op in program.body_ops if op.name == "stablehlo.while"]
    assert len(loops) == 2
    # A row of the batch in each of four microbatches, all positions in time.
    assert any("tensor<5x1x3xf32>" in str(value.type) for value in loops[0].results)


def lstm(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    def cell(carry: Any, x: jax.Array) -> Any:
        h, c = carry
        gates = jnp.concatenate([h, x], -1) @ params["w"] + params["b"]
        i, f, o, g = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    start = jnp.zeros((x.shape[0], WIDTH))
    (h, _), _ = lax.scan(jax.checkpoint(cell), (start, start), jnp.moveaxis(x, 1, 0))
    return jnp.mean((h - y) ** 2)


def test_an_lstm_with_checkpoints() -> None:
    params = {"w": normal(0, 2 * WIDTH, 4 * WIDTH), "b": normal(1, 4 * WIDTH)}
    check_rolled(partial(sgd, lstm), params, *batch(TIMES, WIDTH))


def transformer(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    def block(x: jax.Array, weights: Any) -> Any:
        q, k, v = (x @ weights[name] for name in "qkv")
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
        scores = jnp.where(mask > 0, jnp.einsum("bid,bjd->bij", q, k), -1e9)
        x = x + jax.nn.softmax(scores) @ v
        x = x - jnp.mean(x, -1, keepdims=True)
        return x + jnp.tanh(x @ weights["u"]), jnp.mean(x**2)

    x, norms = lax.scan(block, x, params)
    return jnp.mean((x[:, 0] - y) ** 2) + 0.1 * jnp.sum(norms)


def test_transformer_blocks_with_a_metric_of_each() -> None:
    params = {name: normal(k, 2, WIDTH, WIDTH) for k, name in enumerate("qkvu")}
    check_rolled(partial(sgd, transformer), params, *batch(4, WIDTH))


def test_a_scan_over_layers_of_scans_over_time() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(xs: jax.Array, weights: Any) -> Any:
            def cell(h: jax.Array, x: jax.Array) -> Any:
                h = jnp.tanh(h @ weights[0] + x @ weights[1])
                return h, h

            return lax.scan(cell, jnp.zeros_like(xs[0]), xs)[1], None

        return jnp.mean((lax.scan(layer, jnp.swapaxes(x, 0, 1), params)[0][-1] - y) ** 2)

    params = normal(0, 2, 2, WIDTH, WIDTH)
    check_rolled(partial(sgd, loss), params, *batch(TIMES, WIDTH))


def test_random_masks_of_each_layer_are_those_of_the_whole_batch() -> None:
    """The key is carried, and leaves the step as it leaves the loop."""

    def step(params: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            def layer(carry: Any, w: jax.Array) -> Any:
                x, key = carry
                key, mine = jax.random.split(key)
                keep = jax.random.bernoulli(mine, 0.7, x.shape)
                return (jnp.where(keep, jnp.tanh(x @ w), 0.0), key), None

            (out, key_after), _ = lax.scan(layer, (x, key), params)
            return jnp.mean((out - y) ** 2), key_after

        (value, key), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return params - 0.1 * grads, key, value

    key = jnp.asarray([7, 11], jnp.uint32)
    check_rolled(step, normal(0, 3, WIDTH, WIDTH), key, *batch(), batch_args=("2", "3"))


def test_sums_and_extremes_over_the_batch_are_carried() -> None:
    """Of the losses of layers, of how many rows are large, and the largest element of all."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            def layer(carry: Any, w: jax.Array) -> Any:
                x, total, count, largest = carry
                x = jnp.tanh(x @ w)
                total += jnp.mean((x - y) ** 2)
                top = jnp.max(lax.stop_gradient(x))
                return (x, total, count + jnp.sum(x > 0), jnp.maximum(largest, top)), x.sum(0)

            start = x, jnp.float32(0), jnp.int32(0), jnp.float32(-1)
            (_, total, *metrics), sums = lax.scan(layer, start, params)
            return total, (metrics, sums)

        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return params - 0.1 * grads, value, metrics

    check_rolled(step, normal(0, 3, WIDTH, WIDTH), *batch())


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_branch_chosen_by_an_argument(kind: int) -> None:
    """Rows, one constant for all rows, and a sum over them leave it."""

    def step(params: Any, kind: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            h = jnp.tanh(x @ params["w0"])
            h, total = lax.switch(
                kind,
                [
                    lambda h: (h @ params["w1"], h.sum()),
                    lambda h: (jnp.ones_like(h), 0.0),
                    lambda h: (h * y, jnp.sum(h**2)),
                ],
                h,
            )
            return jnp.mean((h - y) ** 2) + 0.1 * total

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    check_rolled(step, square(0, 1), jnp.int32(kind), *batch(), batch_args=("3", "4"))


def test_a_loop_as_long_as_an_argument_says() -> None:
    def step(params: Any, length: jax.Array, x: jax.Array) -> Any:
        _, out = lax.while_loop(
            lambda carry: carry[0] < length,
            lambda carry: (carry[0] + 1, jnp.tanh(carry[1] @ params["w0"])),
            (0, x @ params["w1"]),
        )
        return params, out, jnp.sum(out)

    check_rolled(step, square(0, 1), jnp.int32(3), batch()[0], batch_args=("3",))


def test_row_numbers_inside_of_a_loop_go_on_from_one_microbatch_to_the_next() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> Any:
            number = lax.optimization_barrier(w[0, 0]) * lax.iota(jnp.float32, x.shape[0])
            return jnp.tanh(x @ w) * number[:, None], None

        return jnp.mean((lax.scan(layer, x, params)[0] - y) ** 2)

    check_rolled(partial(sgd, loss), normal(0, 3, WIDTH, WIDTH), *batch())


def centered(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> Any:
        x = jnp.tanh(x @ w)
        return x - jnp.mean(x, axis=0), None

    return jnp.mean((lax.scan(layer, x, params)[0] - y) ** 2)


def test_statistics_of_the_batch_in_a_loop_may_be_those_of_microbatches() -> None:
    """Microbatches of equal rows have the statistics of the batch."""
    x, y = (jnp.tile(each[:1], (ROWS, 1)) for each in batch())
    # Rows in pairs, so that two microbatches are alike.
    x = x.at[1::2].add(1.0)
    program = check(
        partial(sgd, centered),
        normal(0, 3, WIDTH, WIDTH),
        x,
        y,
        unroll=False,
        counts=(2,),
        batch_coupling="per-microbatch",
        batch_args=("1", "2"),
    )
    assert "while" in names(program.body_ops)


def summed_into_ones(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    def layer(carry: Any, w: jax.Array) -> Any:
        x, total = carry
        x = jnp.tanh(x @ w)
        return (x, total + jnp.sum(x * y)), None

    return lax.scan(layer, (x, jnp.float32(1)), params)[0][1]


def normed(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    def layer(carry: Any, w: jax.Array) -> Any:
        x, norm = carry
        x = jnp.tanh(x @ w)
        return (x, jnp.sqrt(norm + jnp.sum(x**2))), None

    return lax.scan(layer, (x, jnp.float32(0)), params)[0][1] + jnp.sum(y)


def turned(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Four rows of four features: what enters as rows goes on as columns."""
    wide = jnp.concatenate([x, y[:, :1]], -1)
    weights = jnp.pad(params, ((0, 0), (0, 1), (0, 1)))
    return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w).T, None), wide, weights)[0])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (centered, "'stablehlo.subtract' needs a value reduced over the whole batch by"),
        (summed_into_ones, "sums over the batch into a start value that is not 0"),
        (normed, "depends on a value reduced over the whole batch and is no sum over it"),
        (turned, "carries the batch along dimension 0 of a value, and along dimension 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_loops_that_mix_rows_are_refused(loss: Step, message: str) -> None:
    module = lower(partial(sgd, loss), normal(0, 3, WIDTH, WIDTH), *batch(), unroll=False)
    with pytest.raises(DiagnosedError) as caught:
        split(module, 2, batch_args=("1", "2"))
    assert message in str(caught.value)
    assert "num-microbatches=1" in str(caught.value) or "batch-coupling" in str(caught.value)


def test_rows_that_decide_how_long_a_loop_runs_are_named_at_their_line() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        def goes_on(x: jax.Array) -> jax.Array:
            return jnp.any(jnp.abs(x) > 0.1)  # this line

        return params, lax.while_loop(goes_on, lambda x: 0.5 * x @ params["w0"], x @ params["w1"])

    module = lower(step, square(0, 1), batch()[0], unroll=False)
    line = next(
        number
        for number, text in enumerate(open(__file__), 1)  # noqa: SIM115
        if text.endswith("# this line\n")
    )
    with pytest.raises(DiagnosedError, match=r"decide how often a loop runs .*jax\.vmap") as at:
        split(module, 2)
    assert f"test_split_loops.py:{line}:" in str(at.value)


def settled(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Rows that go on until they hardly change, each for itself, and count how long."""

    def of_row(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def goes_on(carry: Any) -> jax.Array:
            _, change, count = carry
            return (change > 0.05) & (count < 20)

        def again(carry: Any) -> Any:
            h, _, count = carry
            new = jnp.tanh(h @ params["w0"] + x)
            return new, jnp.max(jnp.abs(new - h)), count + 1

        h, _, count = lax.while_loop(goes_on, again, (jnp.zeros(WIDTH), jnp.inf, 0))
        return lax.stop_gradient(h), count

    h, counts = jax.vmap(of_row)(x @ params["w1"])
    return jnp.mean((jnp.tanh(h @ params["w0"]) - y) ** 2 * (1 + counts[:, None]))


def test_rows_that_end_by_themselves_need_no_other_rows() -> None:
    """As `jax.vmap` makes loops: what has ended is kept, however long the others go on."""
    x, y = batch()
    check_rolled(partial(sgd, settled), square(0, 1), x * jnp.arange(1.0, ROWS + 1)[:, None], y)


def test_rows_that_are_kept_by_another_condition_decide_for_others() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        def again(x: jax.Array) -> jax.Array:
            return jnp.where(jnp.abs(x) > 0.2, 0.5 * x @ params["w0"], x)

        def goes_on(x: jax.Array) -> jax.Array:
            return jnp.any(jnp.abs(x) > 0.1)

        return params, lax.while_loop(goes_on, again, x @ params["w1"])

    module = lower(step, square(0, 1), batch()[0], unroll=False)
    with pytest.raises(DiagnosedError, match="decide how often a loop runs"):
        split(module, 2)


def test_a_branch_chosen_by_the_batch_is_refused_and_may_be_chosen_by_microbatches() -> None:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ params["w0"])
        return jnp.mean((lax.cond(jnp.sum(h) > 0, jnp.sin, jnp.cos, h) - y) ** 2)

    module = lower(partial(sgd, loss), square(0), *batch())
    with pytest.raises(DiagnosedError, match=r"'stablehlo\.case' needs a value reduced over"):
        split(module, 2)
    module = lower(partial(sgd, loss), square(0), *batch())
    program = split(module, 2, batch_coupling="per-microbatch")
    assert operations(program.body, ["stablehlo.case"])


def in_groups(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """A contrastive loss of the rows of each group."""
    groups = x.reshape(2, -1, WIDTH)
    scores = jnp.einsum("gid,gjd->gij", jnp.tanh(groups @ params["w0"]), groups @ params["w1"])
    return -jnp.mean(jnp.trace(jax.nn.log_softmax(scores), axis1=1, axis2=2)) + jnp.sum(y)


def in_parts(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over two parts of the batch, each with a weight of its own."""
    parts = jnp.concatenate([x, y], -1).reshape(-1, 2, 2 * WIDTH)
    losses = [
        jnp.mean((jnp.tanh(parts[:, k, :WIDTH] @ params[f"w{k}"]) - parts[:, k, WIDTH:]) ** 2)
        for k in range(2)
    ]
    return sum(losses) / 2


@pytest.mark.parametrize("loss", [in_groups, in_parts])
def test_what_errors_advise_works(loss: Step) -> None:
    check(partial(sgd, loss), square(0, 1), *batch(), counts=(2,), batch_args=("2", "3"))

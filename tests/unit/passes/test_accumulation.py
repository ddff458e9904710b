"""Loops in which a step accumulates gradients over parts of its batch: they become the microbatch
loop, or it is said why not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.dialect.batch import STEP_LOOP, read_batch
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.accumulation import PRODUCTS, NoAccumulation, find_accumulation
from shardopt.extract.chosen_plan import main_of
from shardopt.extract.repeated_ops import repeated_ops
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import module_bytecode
from shardopt.ir.rewriting import operations
from shardopt.pipeline.manager import run_pipeline
from tests.unit.passes.loop_expansion import evaluate, expand_loop
from tests.unit.passes.split_checks import Step, lower, mlp, mse, normal, split
from tests.unit.passes.split_checks import check as check_split

PARTS, ROWS = 4, 8


def params() -> dict[str, jax.Array]:
    return {"w1": normal(0, 3, 5), "b1": normal(1, 5), "w2": normal(2, 5, 2)}


def batch() -> tuple[jax.Array, jax.Array]:
    return normal(3, ROWS, 3), normal(4, ROWS, 2)


def in_parts(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(each.reshape(PARTS, -1, *each.shape[1:]) for each in arrays)


def zeros(p: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, p)


def updated(p: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g / PARTS, p, grads)


def check_adopted(step: Step, *arguments: Any, count: int = 1, donated: bool = True) -> StepProgram:
    """The loop is the microbatch loop, and all results are equal."""
    original = lower(step, *arguments, donated=donated)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    with original.context:
        expected = evaluate(original, flat)
        module = ir.Module.parse(module_bytecode(original), make_context())
    program = split(module, count)
    assert program.num_microbatches == PARTS
    outside = [*program.prologue, *program.epilogue]
    assert not any(operations(op, PRODUCTS) for op in outside)
    text = str(module)
    with module.context:
        expand_loop(module)
        actual = evaluate(module, flat)
    for left, right in zip(expected, actual, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6)
    return read_program(ir.Module.parse(text, make_context()))


def scanned(p: Any, x: jax.Array, y: jax.Array) -> Any:
    def add(sums: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, sums, jax.value_and_grad(mse)(p, *part)), None

    (loss, grads), _ = lax.scan(add, (0.0, zeros(p)), in_parts(x, y))
    return updated(p, grads), loss / PARTS


@pytest.mark.parametrize(("count", "donated"), [(1, True), (PARTS, True), (PARTS, False)])
def test_a_scan_over_parts(count: int, donated: bool) -> None:
    program = check_adopted(scanned, params(), *batch(), count=count, donated=donated)
    assert len(program.loop.results) == 4, "the loss and one gradient a parameter"
    assert read_batch(program.main) == {3: 0, 4: 0}


def test_state_of_one_array_that_is_not_donated() -> None:
    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def add(grad: jax.Array, part: Any) -> Any:
            x, y = part
            return grad + jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w), None

        return w - lax.scan(add, jnp.zeros_like(w), in_parts(x, y))[0] / PARTS

    check_adopted(step, normal(0, 3, 2), *batch(), donated=False)


def test_a_loop_that_slices_by_its_counter() -> None:
    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        rows = ROWS // PARTS

        def add(k: jax.Array, grads: Any) -> Any:
            part = [lax.dynamic_slice_in_dim(each, k * rows, rows) for each in (x, y)]
            return jax.tree.map(jnp.add, grads, jax.grad(mse)(p, *part))

        return updated(p, lax.fori_loop(0, PARTS, add, zeros(p)))

    check_adopted(step, params(), *batch())


def test_metrics_of_parts_and_of_rows() -> None:
    """Stacked results, a largest one, and the outputs of all rows in their order."""

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def add(carry: Any, part: Any) -> Any:
            grads, worst = carry
            (loss, out), new = jax.value_and_grad(
                lambda p: (mse(p, *part), mlp(p, part[0])), has_aux=True
            )(p)
            worst = jnp.maximum(worst, jnp.abs(out).max())
            return (jax.tree.map(jnp.add, grads, new), worst), (loss, out)

        start = zeros(p), jnp.float32(-jnp.inf)
        (grads, worst), (losses, out) = lax.scan(add, start, in_parts(x, y))
        return updated(p, grads), worst, losses, out.reshape(ROWS, -1)

    check_adopted(step, params(), *batch())


@pytest.mark.parametrize("how", ["a key for each part", "folded in", "handed on"])
def test_random_masks_of_parts(how: str) -> None:
    def step(p: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(p: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            return mse(p, x * jax.random.bernoulli(key, 0.7, x.shape), y)

        def add(carry: Any, part: Any) -> Any:
            grads, key = carry
            number, part_key, *rows = part
            if how == "handed on":
                key, part_key = jax.random.split(key)
            elif how == "folded in":
                part_key = jax.random.fold_in(key, number)
            new = jax.grad(loss)(p, part_key, *rows)
            return (jax.tree.map(jnp.add, grads, new), key), None

        parts = (jnp.arange(PARTS), jax.random.split(key, PARTS), *in_parts(x, y))
        (grads, key), _ = lax.scan(add, (zeros(p), key), parts)
        return updated(p, grads), key

    key = jnp.asarray([7, 11], jnp.uint32)
    check_adopted(step, params(), key, *batch())


def test_sums_that_go_on_from_the_state_and_are_wider_than_the_model() -> None:
    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        p, before = state

        def add(sums: Any, part: Any) -> Any:
            half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), (p, *part))
            new = jax.grad(mse)(*half)
            return jax.tree.map(lambda s, g: s + g.astype(jnp.float32) / PARTS, sums, new), None

        grads, _ = lax.scan(add, before, in_parts(x, y))
        return updated(p, grads), grads

    check_adopted(step, (params(), jax.tree.map(jnp.ones_like, params())), *batch())


def test_running_means_of_inputs_are_made_before_the_loop() -> None:
    """They need no product, so that no part has to wait for the one before."""

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def add(carry: Any, part: Any) -> Any:
            grads, mean = carry
            mean = 0.9 * mean + 0.1 * part[0].mean(axis=0)
            new = jax.grad(mse)(p, part[0] - mean, part[1])
            return (jax.tree.map(jnp.add, grads, new), mean), None

        (grads, mean), _ = lax.scan(add, (zeros(p), jnp.zeros(3)), in_parts(x, y))
        return updated(p, grads), mean

    check_adopted(step, params(), *batch())


def test_layers_inside_of_parts() -> None:
    """A scan over layers in the body is written out; the loop around it stays."""

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))
        return jnp.mean((lax.scan(layer, x, w)[0][:, :2] - y) ** 2)

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def add(grads: jax.Array, part: Any) -> Any:
            return grads + jax.grad(loss)(w, *part), None

        return w - 0.1 * lax.scan(add, jnp.zeros_like(w), in_parts(x, y))[0]

    check_adopted(step, normal(0, 3, 3, 3), *batch())


def sliced(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """By a loop of Python, from nothing."""
    grads, losses, rows = None, [], ROWS // PARTS
    for k in range(PARTS):
        part = (each[k * rows : (k + 1) * rows] for each in (x, y))
        loss, new = jax.value_and_grad(mse)(p, *part)
        losses.append(loss)
        grads = new if grads is None else jax.tree.map(jnp.add, grads, new)
    return updated(p, grads), jnp.stack(losses)


def indexed(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Parts along a dimension of their own, a sum that begins with weight decay, and rows."""
    parts, outs = in_parts(x, y), []
    grads = jax.tree.map(lambda w: 0.01 * w, p)
    for k in range(PARTS):
        x, y = (each[k] for each in parts)
        outs.append(mlp(p, x))
        grads = jax.tree.map(jnp.add, grads, jax.grad(mse)(p, x, y))
    return updated(p, grads), jnp.concatenate(outs)


def halved(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """The gradient of a loss of parts: the backward passes run in reverse."""

    def loss(p: Any) -> jax.Array:
        parts = zip(jnp.split(x, PARTS), jnp.split(y, PARTS), strict=True)
        return sum(mse(p, *part) for part in parts) / PARTS

    value, grads = jax.value_and_grad(loss)(p)
    return updated(p, grads), value


@pytest.mark.parametrize("step", [sliced, indexed, halved])
def test_a_loop_of_python_over_slices(step: Step) -> None:
    check_adopted(step, params(), *batch())


def stacked_gradients(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """The mean over a stack of gradients, which a loop that maps has made."""
    losses, grads = lax.map(lambda part: jax.value_and_grad(mse)(p, *part), in_parts(x, y))
    return jax.tree.map(lambda w, g: w - 0.1 * g.mean(0), p, grads), losses.mean()


def differentiated(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """The gradient of a loop over parts: its backward loop reads what the forward loop has kept."""

    def loss(p: Any) -> jax.Array:
        return lax.scan(lambda sum, part: (sum + mse(p, *part), None), 0.0, in_parts(x, y))[0]

    value, grads = jax.value_and_grad(loss)(p)
    return updated(p, grads), value / PARTS


def differentiated_again(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """The backward loop computes the forward pass of each part again."""

    def loss(p: Any) -> jax.Array:
        part_loss = jax.checkpoint(lambda part: mse(p, *part))
        return lax.scan(lambda sum, part: (sum + part_loss(part), None), 0.0, in_parts(x, y))[0]

    value, grads = jax.value_and_grad(loss)(p)
    return updated(p, grads), value


def differentiated_with_its_sum(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """The checkpoint is around the sum, too, which nobody computes again."""

    def loss(p: Any) -> jax.Array:
        add = jax.checkpoint(lambda sum, part: (sum + mse(p, *part), None))
        return lax.scan(add, 0.0, in_parts(x, y))[0]

    value, grads = jax.value_and_grad(loss)(p)
    return updated(p, grads), value


def first_apart(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """What the loop adds to is the gradient of the first part."""
    (x0, xs), (y0, ys) = ((each[0], each[1:]) for each in in_parts(x, y))
    gradient = jax.value_and_grad(mse)
    (loss, grads), _ = lax.scan(
        lambda sums, part: (jax.tree.map(jnp.add, sums, gradient(p, *part)), None),
        gradient(p, x0, y0),
        (xs, ys),
    )
    return updated(p, grads), loss / PARTS


@pytest.mark.parametrize(
    "step",
    [
        stacked_gradients,
        differentiated,
        differentiated_again,
        differentiated_with_its_sum,
        first_apart,
    ],
)
def test_loops_that_are_copies_once_they_are_written_out(step: Step) -> None:
    check_adopted(step, params(), *batch())


def test_what_a_part_computes_again_is_told_from_its_backward_pass() -> None:
    """Copies share the broadcast of a bias, but not that of the bias behind a barrier."""
    program = check_adopted(differentiated_again, params(), *batch())
    assert "stablehlo.tanh" in {op.name for op in repeated_ops(program.body_ops)}


def test_a_loop_of_python_with_random_keys() -> None:
    def step(p: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        key, mine = jax.random.split(key)
        keys, grads = jax.random.split(mine, PARTS), zeros(p)
        for k, part in enumerate(zip(*in_parts(x, y), strict=True)):
            keep = jax.random.bernoulli(keys[k], 0.7, part[0].shape)
            grads = jax.tree.map(jnp.add, grads, jax.grad(mse)(p, part[0] * keep, part[1]))
        return updated(p, grads), key

    check_adopted(step, params(), jnp.asarray([7, 11], jnp.uint32), *batch())


def weighted_parts(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """No two copies are equal."""
    grads = zeros(p)
    for k, part in enumerate(zip(*in_parts(x, y), strict=True)):
        new = jax.grad(mse)(p, *part)
        grads = jax.tree.map(lambda g, n, k=k: g + (k + 1) * n, grads, new)
    return updated(p, grads)


def chained_parts(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Every part reads what the one before has made."""
    for part in zip(*in_parts(x, y), strict=True):
        p = jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(mse)(p, *part))
    return p


def halves_of_features(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Slices that are no parts of the batch."""

    def loss(p: Any) -> jax.Array:
        out = jnp.tanh(jnp.concatenate([x, x[:, :1]], -1))
        first, second = out[:, :2] @ p["w2"][:2], out[:, 2:] @ p["w2"][2:4]
        return jnp.mean((first - second - y) ** 2)

    return updated(p, jax.grad(loss)(p))


@pytest.mark.parametrize("step", [weighted_parts, chained_parts, halves_of_features])
def test_other_copies_stay(step: Step) -> None:
    module = lower(step, params(), *batch())
    with module.context:
        assert find_accumulation(main_of(module)) is None


def normalized(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Running statistics of the model are those of the parts before."""

    def add(carry: Any, part: Any) -> Any:
        grads, mean = carry
        out = mlp(p, part[0])
        mean = 0.9 * mean + 0.1 * jnp.mean(out, axis=0)  # of parts before
        new = jax.grad(lambda p: mse(p, part[0] - mean[0], part[1]))(p)
        return (jax.tree.map(jnp.add, grads, new), mean), None

    (grads, mean), _ = lax.scan(add, (zeros(p), jnp.zeros(2)), in_parts(x, y))
    return updated(p, grads), mean


def descended(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """A step of its own for every part."""

    def descend(p: Any, part: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(mse)(p, *part)), None

    return lax.scan(descend, p, in_parts(x, y))[0], x.sum()


def whitened(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Products on the whole batch come first."""
    return scanned(p, jnp.tanh(x @ (x.T @ x)), y)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (normalized, "it hands a value on from one part to the next that is no sum of terms"),
        (whitened, "made by products of the whole batch"),
    ],
)
def test_loops_that_are_none_tell_why(step: Step, message: str) -> None:
    module = lower(step, params(), *batch(), unroll=False)
    with module.context, pytest.raises(NoAccumulation, match=message):
        find_accumulation(main_of(module))


def over_experts(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """A sum over weights, not over rows."""
    outs, _ = lax.scan(lambda total, w: (total + x @ w, None), jnp.zeros_like(x), p)
    return p, outs + y.sum()


def recurrent(p: Any, x: jax.Array, y: jax.Array) -> Any:
    """Gradients are summed over time, of what is kept of each."""

    def loss(p: Any) -> jax.Array:
        h, _ = lax.scan(lambda h, x: (jnp.tanh(h + x @ p["w1"]), None), jnp.zeros(5), x)
        return jnp.sum(h @ p["w2"] * y[0])

    return updated(p, jax.grad(loss)(p))


@pytest.mark.parametrize("donated", [True, False])
@pytest.mark.parametrize("step", [descended, over_experts, recurrent])
def test_other_loops_are_not_taken_for_it(step: Step, donated: bool) -> None:
    p = normal(0, 3, 3, 3) if step is over_experts else params()
    module = lower(step, p, *batch(), unroll=False, donated=donated)
    with module.context:
        assert find_accumulation(main_of(module)) is None


STEP_LOOP_HINT = r"test_accumulation\.py:\d+:\d+ hands argument 0 \(p\['b1'\]\) on .*loop in Python"


def test_a_loop_over_steps_is_named_where_no_batch_is_found() -> None:
    with pytest.raises(DiagnosedError, match=STEP_LOOP_HINT):
        split(lower(descended, params(), *batch()), 2)


def test_a_loop_over_steps_is_named_where_there_are_too_few_layers() -> None:
    """More iterations than are written out are one operation."""

    def epoch(p: Any, xs: jax.Array, ys: jax.Array) -> Any:
        def descend(p: Any, part: Any) -> Any:
            return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(mse)(p, *part)), None

        return lax.scan(descend, p, (xs, ys))[0]

    module = lower(epoch, params(), normal(3, 200, 2, 3), normal(4, 200, 2, 2))
    pipeline = "builtin.module(shardopt-microbatch{num-microbatches=1},shardopt-cluster{layers=2})"
    with pytest.raises(DiagnosedError, match=f"into 2 layers.*{STEP_LOOP_HINT}"):
        run_pipeline(module, pipeline)


def test_what_is_planned_does_not_name_files() -> None:
    module = lower(descended, params(), *batch())
    assert STEP_LOOP in main_of(module).attributes
    run_pipeline(module, "builtin.module(shardopt-microbatch,shardopt-cluster{layers=2})")
    assert STEP_LOOP not in main_of(module).attributes


@pytest.mark.parametrize("step", [scanned, over_experts, recurrent])
def test_other_loops_are_not_taken_for_steps(step: Step) -> None:
    p = normal(0, 3, 3, 3) if step is over_experts else params()
    assert STEP_LOOP not in main_of(lower(step, p, *batch())).attributes


def test_another_number_of_microbatches_is_refused() -> None:
    module = lower(scanned, params(), *batch())
    with pytest.raises(DiagnosedError, match=r"accumulates over 4 parts .*found 2") as caught:
        split(module, 2)
    assert "test_accumulation.py" in str(caught.value)


def test_a_loop_over_random_keys_is_cut_along_the_batch() -> None:
    """Where its samples are as many as the microbatches, they are these."""

    def sampled(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, key = state

        def add(total: Any, key: jax.Array) -> Any:
            kept = jax.random.bernoulli(key, 0.7, y.shape)
            grads = jax.grad(mse)(params, x, y * kept)
            return jax.tree.map(jnp.add, total, grads), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, _ = lax.scan(add, zeros, jax.random.split(key, PARTS))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), key

    state = params(), jax.random.PRNGKey(0)
    check_split(sampled, state, *batch(), counts=(1, 2, PARTS))

"""Mixtures of experts that sort their tokens by expert, in the ways in which programs write that:
they compute what they computed, without a sort, and whole or in microbatches. What needs the order
keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.rewriting import operations, shape_of
from shardopt.passes.base import PassContext
from shardopt.passes.importing.batch_gathers import BatchGathers
from shardopt.passes.importing.coordinates import coordinate_dim
from shardopt.passes.importing.unsort_rows import UnsortRows
from tests.unit.passes.loop_expansion import evaluate
from tests.unit.passes.program_evaluation import run_xla
from tests.unit.passes.split_checks import check, lower, normal, sgd

EXPERTS, CHOSEN, WIDTH, HIDDEN = 5, 2, 4, 6
ROWS, POSITIONS = 4, 3
TILE, PADDED = 16, 32  # rows of a tile, and all 24 of them with padding

Array = jax.Array


# What is sent to experts: a row for each token and expert, sorted.
def taken(x: Array, order: Array) -> Array:
    return jnp.take(x, order // CHOSEN, axis=0)


def clipped(x: Array, order: Array) -> Array:
    return x.at[order // CHOSEN].get(mode="clip")


def repeated(x: Array, order: Array) -> Array:
    return jnp.repeat(x, CHOSEN, axis=0)[order]


# How many rows each expert has.
def bincount(expert: Array) -> Array:
    return jnp.bincount(expert, length=EXPERTS)


def one_hot(expert: Array) -> Array:
    return jnp.sum(expert[:, None] == jnp.arange(EXPERTS), axis=0, dtype=jnp.int32)


def added(expert: Array) -> Array:
    return jnp.zeros(EXPERTS, jnp.int32).at[expert].add(1)


def segments(expert: Array) -> Array:
    return jax.ops.segment_sum(jnp.ones_like(expert), expert, num_segments=EXPERTS)


# Rows of each group times the weights of its expert.
def ragged(rows: Array, weights: Array, sizes: Array) -> Array:
    return lax.ragged_dot(rows, weights, sizes)


def padded(rows: Array, weights: Array, sizes: Array) -> Array:
    """To a whole number of tiles, as kernels for groups want them."""
    count = len(rows)
    tiles = jnp.pad(rows, ((0, -count % TILE), (0, 0)))
    return lax.ragged_dot(tiles, weights, sizes)[:count]


def masked(rows: Array, weights: Array, sizes: Array) -> Array:
    """One expert after the other, with the sums of sizes by hand."""
    position, end, made = jnp.arange(len(rows))[:, None], jnp.int32(0), 0.0
    for expert in range(EXPERTS):
        start, end = end, end + sizes[expert]
        inside = (position >= start) & (position < end)
        made += jnp.where(inside, rows, 0) @ weights[expert]
    return made


def scanned(rows: Array, weights: Array, sizes: Array) -> Array:
    """A product with a mask of floats, whose ends are an associative scan."""
    ends = lax.associative_scan(jnp.add, sizes)
    position = jnp.arange(len(rows))[:, None]
    mask = (position < ends) & ~(position < ends - sizes)
    return jnp.einsum("re,rd,edf->rf", mask.astype(rows.dtype), rows, weights)


# Rows in the order of tokens again, and the experts of a token added up.
def inverted(y: Array, order: Array, weight: Array) -> Array:
    back = y[jnp.argsort(order)].reshape(-1, CHOSEN, WIDTH)
    return jnp.einsum("tkd,tk->td", back, weight)


def scattered(y: Array, order: Array, weight: Array) -> Array:
    weighted = y * weight.reshape(-1)[order][:, None]
    tokens = len(y) // CHOSEN
    return jnp.zeros((tokens, WIDTH), y.dtype).at[order // CHOSEN].add(weighted)


def put_back(y: Array, order: Array, weight: Array) -> Array:
    back = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
    return jnp.sum(back.reshape(-1, CHOSEN, WIDTH) * weight[..., None], axis=1)


def put_anywhere(y: Array, order: Array, weight: Array) -> Array:
    """That no two rows have one place is not said."""
    back = jnp.zeros_like(y).at[order].set(y)
    return jnp.sum(back.reshape(-1, CHOSEN, WIDTH) * weight[..., None], axis=1)


def looked_up(y: Array, order: Array, weight: Array) -> Array:
    place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
    return inverted(y[place][order], order, weight)


@dataclass(frozen=True)
class Routing:
    send: Callable[..., Array] = taken
    count: Callable[..., Array] = bincount
    multiply: Callable[..., Array] = ragged
    combine: Callable[..., Array] = inverted

    def __str__(self) -> str:
        parts = (self.send, self.count, self.multiply, self.combine)
        return "-".join(part.__name__ for part in parts)


ROUTINGS = [
    Routing(),
    Routing(clipped, one_hot, masked, scattered),
    Routing(repeated, added, padded, inverted),
    Routing(repeated, segments, scanned, scattered),
    Routing(taken, one_hot, padded, put_back),
    Routing(clipped, bincount, scanned, put_anywhere),
    Routing(repeated, bincount, masked, looked_up),
]


def experts(
    routing: Routing, params: dict[str, Array], x: Array, multiply: Callable[..., Array]
) -> Array:
    tokens = x.reshape(-1, WIDTH)
    weight, expert = lax.top_k(jax.nn.softmax(tokens @ params["router"]), CHOSEN)
    flat = expert.reshape(-1)
    order = jnp.argsort(flat)
    sizes = routing.count(flat)
    hidden = jax.nn.silu(multiply(routing.send(tokens, order), params["in"], sizes))
    hidden += params["bias"][flat[order]]
    y = multiply(hidden, params["out"], sizes)
    return routing.combine(y, order, weight).reshape(x.shape)


def state() -> dict[str, Array]:
    return {
        "before": normal(1, WIDTH, WIDTH),
        "router": normal(2, WIDTH, EXPERTS),
        "in": normal(3, EXPERTS, WIDTH, HIDDEN),
        "bias": normal(4, EXPERTS, HIDDEN),
        "out": normal(5, EXPERTS, HIDDEN, WIDTH),
    }


def step_of(layer: Callable[[dict[str, Array], Array], Array]) -> Callable[..., Any]:
    def loss(params: dict[str, Array], x: Array, y: Array) -> Array:
        h = jnp.tanh(x @ params["before"])
        return jnp.sum((h + layer(params, h) - y) ** 2)

    return lambda params, x, y: sgd(loss, params, x, y)


def batch() -> tuple[Array, Array]:
    return normal(6, ROWS, POSITIONS, WIDTH), normal(7, ROWS, POSITIONS, WIDTH)


def sorts(module: ir.Module) -> int:
    """Those of all rows; what a token chooses is sorted for each."""
    found = operations(module.operation, ("stablehlo.sort",))
    return sum(len(shape_of(op.operands[0])) == 1 for op in found)


def two_dimensional(module: ir.Module) -> list[ir.Value]:
    values = [value for op in operations(module.operation) for value in op.results]
    return [value for value in values if len(shape_of(value)) == 2]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_routed_rows_stay_in_their_order(routing: Routing) -> None:
    step = step_of(partial(experts, routing, multiply=routing.multiply))
    arguments = check_whole(step)
    check(step, *arguments, counts=(2, 4))


@pytest.mark.parametrize("recompute", [False, True])
def test_layers_in_a_scan(recompute: bool) -> None:
    """What the forward pass of a layer keeps stands behind a barrier."""
    routing = Routing(count=bincount)

    def layer(h: Array, params: dict[str, Array]) -> tuple[Array, None]:
        made = experts(routing, params, jnp.tanh(h @ params["before"]), ragged)
        return h + made, None

    def loss(params: dict[str, Array], x: Array, y: Array) -> Array:
        h, _ = lax.scan(jax.checkpoint(layer) if recompute else layer, x, params)
        return jnp.sum((h - y) ** 2)

    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, -0.5 * leaf]), state())
    check_whole(lambda params, x, y: sgd(loss, params, x, y), twice)


@pytest.mark.slow
@pytest.mark.parametrize(
    "routing",
    [
        Routing(*parts)
        for parts in product(
            (taken, clipped, repeated),
            (bincount, one_hot, added, segments),
            (ragged, padded, masked, scanned),
            (inverted, scattered, put_back, put_anywhere, looked_up),
        )
    ],
    ids=str,
)
def test_all_ways_to_route(routing: Routing) -> None:
    check_whole(step_of(partial(experts, routing, multiply=routing.multiply)))


def check_whole(step: Callable[..., Any], params: Any = None) -> tuple[Any, ...]:
    """The step has no sort and no padding, and computes what JAX does; returns its arguments."""
    arguments = (params or state(), *batch())
    module = lower(step, *arguments)
    assert sorts(module) == 0
    rows = {shape_of(value)[0] for value in two_dimensional(module)}
    assert PADDED not in rows
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    expected = jax.tree.leaves(jax.jit(step)(*arguments))
    for left, right in zip(expected, run_xla(module, flat), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6)
    return arguments


# What needs the order of rows: an expert that takes two of them, what came before, the first of all.
def first_two(rows: Array, weights: Array, sizes: Array) -> Array:
    starts = jnp.cumsum(sizes) - sizes
    position = jnp.arange(len(rows))[:, None]
    taken = (position >= starts) & (position < starts + 2)
    return jnp.einsum("re,rd,edf->rf", taken.astype(rows.dtype), rows, weights)


def with_the_row_before(rows: Array, weights: Array, sizes: Array) -> Array:
    shifted = jnp.concatenate([jnp.zeros_like(rows[:1]), rows[:-1]])
    return ragged(rows + shifted, weights, sizes)


def with_the_first(rows: Array, weights: Array, sizes: Array) -> Array:
    return ragged(rows + rows[0], weights, sizes)


def weighted_by_position(rows: Array, weights: Array, sizes: Array) -> Array:
    return ragged(rows * jnp.arange(len(rows))[:, None], weights, sizes)


def by_other_sizes(rows: Array, weights: Array, sizes: Array) -> Array:
    return ragged(rows, weights, sizes[::-1])


def at_most(rows: Array, weights: Array, sizes: Array) -> Array:
    """An end too far by one."""
    ends = jnp.cumsum(sizes)
    mask = jnp.arange(len(rows))[:, None] <= ends
    return jnp.einsum("re,rd,edf->rf", mask.astype(rows.dtype), rows, weights)


def with_padding_of_ones(rows: Array, weights: Array, sizes: Array) -> Array:
    count = len(rows)
    made = jnp.pad(rows, ((0, 8), (0, 0)), constant_values=1.0)
    return made[:count] @ weights[0] + jnp.mean(made)


@pytest.mark.parametrize(
    "multiply",
    [
        first_two,
        with_the_row_before,
        with_the_first,
        weighted_by_position,
        by_other_sizes,
        at_most,
        with_padding_of_ones,
    ],
)
def test_what_needs_the_order_keeps_it(multiply: Callable[..., Array]) -> None:
    step = step_of(partial(experts, Routing(), multiply=multiply))
    arguments = (state(), *batch())
    module = lower(step, *arguments)
    assert sorts(module) > 0
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    actual = run_xla(module, flat)
    for left, right in zip(jax.tree.leaves(jax.jit(step)(*arguments)), actual, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6)


def sorted_by(keys: Array) -> Array:
    """Rows of the argument, which may be anything, by a key that may be negative."""
    order = jnp.argsort(keys)
    sizes = jnp.zeros(3, jnp.int32).at[keys].add(1, mode="drop")
    mask = jnp.arange(len(keys)) < jnp.cumsum(sizes)[0]
    return jnp.zeros(len(keys)).at[order].set(jnp.where(mask, 1.0, 0.0))


def test_negative_keys_are_counted_nowhere() -> None:
    """A row with a negative key stands in front of those that are counted."""
    keys = np.array([2, -1, 0, 1, 0, -2, 2], np.int32)
    module = lower(sorted_by, keys, donated=False)
    assert sorts(module) > 0
    np.testing.assert_array_equal(run_xla(module, [keys])[0], sorted_by(keys))


@pytest.mark.parametrize("width", [1, 3])
def test_rows_taken_several_times_are_broadcast(width: int) -> None:
    """`x[i // k]` and what is added up at `i // k`, as such."""
    text = f"""func.func @main(%x: tensor<4x{width}xf32>, %u: tensor<{width}x8xf32>)
        -> (tensor<{width}x8xf32>, tensor<4x{width}xf32>) {{
      %i = stablehlo.iota dim = 0 : tensor<8xi32>
      %two = stablehlo.constant dense<2> : tensor<8xi32>
      %t = stablehlo.divide %i, %two : tensor<8xi32>
      %r = "stablehlo.gather"(%x, %t) <{{dimension_numbers = #stablehlo.gather<offset_dims = [0],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1, {width}>}}> : (tensor<4x{width}xf32>, tensor<8xi32>) -> tensor<{width}x8xf32>
      %s = "stablehlo.scatter"(%x, %t, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
        update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
        index_vector_dim = 1>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) : (tensor<4x{width}xf32>, tensor<8xi32>, tensor<{width}x8xf32>) -> tensor<4x{width}xf32>
      return %r, %s : tensor<{width}x8xf32>, tensor<4x{width}xf32>
    }}"""
    x, u = np.asarray(normal(1, 4, width)), np.asarray(normal(2, width, 8))
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        BatchGathers().run(module, PassContext())
        module.operation.verify()
        assert not operations(module.operation, ("stablehlo.gather", "stablehlo.scatter"))
        taken, summed = evaluate(module, [x, u])
    np.testing.assert_array_equal(taken, np.repeat(x, 2, axis=0).T)
    np.testing.assert_allclose(summed, x + u.T.reshape(4, 2, width).sum(axis=1), rtol=1e-6)


def test_keys_are_compared_with_experts() -> None:
    """What was said of positions is said of keys, and nobody counts rows any more."""
    step = step_of(partial(experts, Routing(send=repeated), multiply=masked))
    module = lower(step, state(), *batch())
    compares = operations(module.operation, ("stablehlo.compare",))
    assert compares
    assert all(coordinate_dim(value) is None for op in compares for value in op.operands)
    made = [op.results[0].type for op in operations(module.operation, ("stablehlo.scatter",))]
    assert not any("i32" in str(type_) for type_ in made)


def test_nothing_to_undo_is_nothing_changed() -> None:
    text = """func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
      %0 = "stablehlo.sort"(%x) ({
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %c = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
      }) {dimension = 0 : i64} : (tensor<4xi32>) -> tensor<4xi32>
      return %0 : tensor<4xi32>
    }"""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        before, context = str(module), PassContext()
        UnsortRows().run(module, context)
        assert str(module) == before
        assert context.statistics == {"sorts": 1, "undone": 0}

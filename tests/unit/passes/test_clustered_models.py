"""Models whose layers share something (a tied embedding, skip connections, an encoder's output):
who is in which layer.

Each is a whole training step with Adam, lowered by JAX, cut into microbatches and clustered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.donation import argument_attributes, read_donation
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import defining, shape_of
from shardopt.pipeline.manager import run_pipeline

ROWS, WIDTH, WORDS = 8, 16, 24
Params = dict[str, jax.Array]
Loss = Callable[..., jax.Array]


def weights(*names: str, seed: int = 0) -> Params:
    keys = jax.random.split(jax.random.key(seed), len(names))
    return {
        name: jax.random.normal(key, (WIDTH, WIDTH)) for name, key in zip(names, keys, strict=True)
    }


def block(x: jax.Array, w: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w)


def tied(params: Params, tokens: jax.Array, y: jax.Array) -> jax.Array:
    """A language model: the embedding is read by the first layer, its transpose by the last."""
    x = params["embedding"][tokens]
    for k in range(4):
        x = block(x, params[f"w{k}"])
    return jnp.mean((x @ params["embedding"].T - y) ** 2)


def encoder_decoder(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """All layers of the decoder read what the encoder makes."""
    for k in range(3):
        x = block(x, params[f"e{k}"])
    d = y
    for k in range(3):
        d = block(d, params[f"d{k}"]) + jnp.tanh(x @ params[f"x{k}"])
    return jnp.mean((d - y) ** 2)


def unet(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """What goes down on one side goes over to the other."""
    down = []
    for k in range(3):
        x = jnp.tanh(x @ params[f"down{k}"])
        down.append(x)
    for k in reversed(range(3)):
        x = jnp.tanh((x + down[k]) @ params[f"up{k}"])
    return jnp.mean((x - y) ** 2)


TIED = {"embedding": jnp.ones((WORDS, WIDTH)), **weights("w0", "w1", "w2", "w3")}
BATCH = jnp.ones((ROWS, WIDTH))
MODELS: dict[str, tuple[Loss, Params, tuple[jax.Array, jax.Array]]] = {
    "tied": (tied, TIED, (jnp.zeros((ROWS,), jnp.int32), jnp.ones((ROWS, WORDS)))),
    "encoder-decoder": (
        encoder_decoder,
        weights("d0", "d1", "d2", "e0", "e1", "e2", "x0", "x1", "x2"),
        (BATCH, BATCH),
    ),
    "unet": (unet, weights("down0", "down1", "down2", "up0", "up1", "up2"), (BATCH, BATCH)),
}


class Clustered:
    """A clustered program, by the names of its parameters."""

    def __init__(self, program: StepProgram, names: list[str]) -> None:
        self.program, self.names = program, names
        attributes = argument_attributes(program.main)
        self.argument_layer = [ir.IntegerAttr(each[LAYER]).value for each in attributes]

    def layer_of(self, name: str) -> int:
        return self.argument_layer[self.names.index(name)]

    def uses(self, name: str) -> list[int]:
        """Layers of the operations of the body that read a parameter, ascending."""
        argument = self.program.main_block.arguments[self.names.index(name)]
        layers = []
        for number, value in self.program.captured.items():
            if any(origin == argument for origin in same_size_origins(value)):
                readers = self.program.body_block.arguments[number].uses
                layers += [layer(use.owner.operation) for use in readers]
        return sorted(layers)

    def sums(self, name: str) -> list[ir.Operation]:
        """What accumulates the gradient of a parameter."""
        result = read_donation(self.program.main)[self.names.index(name)]
        numbers = {
            ir.OpResult(value).result_number
            for value in same_size_origins(self.program.returned[result])
            if (made_by := defining(value)) is not None and made_by == self.program.loop
        }
        return [
            operation(self.program.body_returned[self.program.carried[k][1]])
            for k in sorted(numbers)
        ]


def operation(value: ir.Value) -> ir.Operation:
    op = defining(value)
    assert op is not None
    return op


def layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def same_size_origins(value: ir.Value) -> list[ir.Value]:
    """Arguments and loop results of equal size that a value is computed from through values of that
    size."""
    size, origins, stack = prod(shape_of(value)), [], [value]
    while stack:
        current = stack.pop()
        op = defining(current)
        if op is None or op.name == "mpmd.for":
            origins.append(current)
        else:
            stack += [operand for operand in op.operands if prod(shape_of(operand)) == size]
    return origins


@cache
def clustered(model: str, layers: int, microbatches: int = 2) -> Clustered:
    """`microbatches` of 0: the step as a whole, without a batch."""
    loss, params, batch = MODELS[model]

    def step(state: Any, *batch: jax.Array) -> Any:
        params, first, second = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, grads)
        params = jax.tree.map(
            lambda p, m, v: p - 0.1 * m / (jnp.sqrt(v) + 1e-3), params, first, second
        )
        return (params, first, second), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, zeros, zeros)
    text = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state, *batch).as_text()
    names = [f"{kind}{name}" for kind in ("", "m:", "v:") for name in sorted(params)]
    module = ir.Module.parse(text, make_context())
    return Clustered(cluster(module, microbatches, layers), names)


def cluster(module: ir.Module, microbatches: int, layers: int) -> StepProgram:
    """No microbatches: a step that has no batch."""
    options = (
        f"num-microbatches={microbatches}" if microbatches else "num-microbatches=1 batch-args=none"
    )
    with module.context:
        run_pipeline(
            module,
            f"builtin.module(shardopt-import,shardopt-microbatch{{{options}}},shardopt-cluster{{layers={layers}}})",
        )
    return read_program(module)


@pytest.mark.parametrize("microbatches", [2, 0])
@pytest.mark.parametrize(
    ("model", "layers"), [("tied", 4), ("encoder-decoder", 3), ("encoder-decoder", 6), ("unet", 3)]
)
def test_state_gradients_and_updates_are_where_the_parameter_is(
    model: str, layers: int, microbatches: int
) -> None:
    model_layers = clustered(model, layers, microbatches)
    donation = read_donation(model_layers.program.main)
    for number, name in enumerate(model_layers.names):
        parameter = name.split(":")[-1]
        home = model_layers.layer_of(parameter)
        assert model_layers.argument_layer[number] == home == model_layers.uses(parameter)[0], name
        assert layer(operation(model_layers.program.returned[donation[number]])) == home, (
            f"update of {name}"
        )
        assert [layer(op) for op in model_layers.sums(name)] == [home], f"gradient of {parameter}"


@pytest.mark.parametrize("microbatches", [2, 0])
def test_a_parameter_is_read_in_one_layer_forward_and_backward(microbatches: int) -> None:
    for model, layers in (("encoder-decoder", 6), ("unet", 3)):
        model_layers = clustered(model, layers, microbatches)
        for name in MODELS[model][1]:
            assert len(set(model_layers.uses(name))) == 1, name


@pytest.mark.parametrize("microbatches", [2, 0])
def test_terms_of_a_tied_gradient_are_where_the_uses_are(microbatches: int) -> None:
    """The look-up and its scatter in the first layer, the product with the transpose and its
    gradient in the last; the sum of both terms in the first, which has the embedding."""
    model_layers = clustered("tied", 4, microbatches)
    uses = model_layers.uses("embedding")
    assert (uses[0], uses[-1], model_layers.layer_of("embedding")) == (0, 3, 0)
    assert {"scatter": 0, "gather": 0}.items() <= {
        op.name.removeprefix("stablehlo."): layer(op)
        for op in model_layers.program.body_ops
        if op.name in ("stablehlo.scatter", "stablehlo.gather")
    }.items()
    [head] = [
        op
        for op in model_layers.program.body_ops
        if op.name == "stablehlo.dot_general" and sorted(shape_of(op.results[0])) == [WIDTH, WORDS]
    ]
    assert layer(head) == 3
    sums = [
        op
        for op in model_layers.program.body_ops
        if op.name == "stablehlo.add" and sorted(shape_of(op.results[0])) == [WIDTH, WORDS]
    ]
    assert sums and {layer(op) for op in sums} == {0}


@pytest.mark.parametrize("microbatches", [2, 0])
def test_what_an_encoder_makes_is_read_by_several_layers_of_the_decoder(microbatches: int) -> None:
    """Each adds a term to its gradient, which reaches the encoder as one sum, from the decoder's
    first layer down."""
    model_layers = clustered("encoder-decoder", 6, microbatches)
    encoder, decoder = ([model_layers.layer_of(f"{side}{k}") for k in range(3)] for side in "ed")
    crossing = [model_layers.layer_of(f"x{k}") for k in range(3)]
    assert (
        encoder == sorted(encoder) and decoder == sorted(decoder) and crossing == sorted(crossing)
    )
    assert max(encoder) < min(decoder + crossing)
    assert len({*crossing}) == 3
    assert set(encoder + decoder + crossing) == set(range(6))


def test_both_sides_of_a_skip_connection_keep_their_order() -> None:
    model_layers = clustered("unet", 3)
    order = [f"down{k}" for k in range(3)] + [f"up{k}" for k in reversed(range(3))]
    assert [model_layers.layer_of(name) for name in order] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("adam", [False, True])
def test_a_copy_in_half_precision_is_where_the_parameter_is(adam: bool) -> None:
    """The body reads the copy, which no update reads: it is made anew from the parameter in full
    precision."""

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        half = jnp.float16

        def loss(copies: list[jax.Array]) -> jax.Array:
            h = x.astype(half)
            for w in copies:
                h = jnp.tanh(h @ w)
            return jnp.mean((h.astype(jnp.float32) - y) ** 2)

        grads = [grad.astype(jnp.float32) for grad in jax.grad(loss)(state["copy"])]
        first = [0.9 * m + 0.1 * grad for m, grad in zip(state["first"], grads, strict=True)]
        main = [
            w - 0.1 * (m if adam else g)
            for w, m, g in zip(state["main"], first, grads, strict=True)
        ]
        return {"copy": [w.astype(half) for w in main], "first": first, "main": main}

    main = list(weights("a", "b", "c", "d").values())
    state = {
        "copy": [w.astype(jnp.float16) for w in main],
        "first": [jnp.zeros_like(w) for w in main],
        "main": main,
    }
    lowered = jax.jit(step, donate_argnums=0).lower(
        state, jnp.zeros((ROWS, WIDTH)), jnp.zeros((ROWS, WIDTH))
    )
    module = ir.Module.parse(lowered.as_text(), make_context())
    program = cluster(module, 2, 4)
    layers = [ir.IntegerAttr(each[LAYER]).value for each in argument_attributes(program.main)]
    assert layers[:12] == [0, 1, 2, 3] * 3


def test_an_update_that_may_be_skipped_is_where_the_parameter_is() -> None:
    """The conditional around all updates becomes one for each parameter."""
    optimizer = optax.apply_if_finite(optax.sgd(0.1, momentum=0.9), 3)

    def step(params: Any, memory: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: list[jax.Array]) -> jax.Array:
            h = x
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.mean((h - y) ** 2)

        updates, memory = optimizer.update(jax.grad(loss)(params), memory, params)
        return optax.apply_updates(params, updates), memory

    params = list(weights("a", "b", "c", "d").values())
    batch = (jnp.zeros((ROWS, WIDTH)), jnp.zeros((ROWS, WIDTH)))
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, optimizer.init(params), *batch)
    program = cluster(ir.Module.parse(lowered.as_text(), make_context()), 2, 4)
    layers = [ir.IntegerAttr(each[LAYER]).value for each in argument_attributes(program.main)]
    shapes = [shape_of(argument) for argument in program.main_block.arguments]
    state = [layer for layer, shape in zip(layers, shapes, strict=True) if shape == (WIDTH, WIDTH)]
    assert state == [0, 1, 2, 3] * 2, "parameters, momentum"
    conditionals = [
        op for op in program.epilogue if op.name == "stablehlo.case" and shape_of(op.results[0])
    ]
    assert sorted(map(layer, conditionals)) == [0, 1, 2, 3]

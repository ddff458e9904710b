"""Which stacks become arguments of their layers: by models, by optimizers, and what keeps one
whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.dialect.parts import read_parts
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.layered_rows import read_by_layers
from shardopt.ir.context import make_context
from shardopt.mesh.parts import Part
from shardopt.pipeline.manager import run_pipeline

LAYERS, WIDTH, WIDE, ROWS = 6, 4, 8, 4
Tree = Any
Model = Callable[[Tree, jax.Array], jax.Array]


def block(x: jax.Array, w: Tree) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ w["in"]) @ w["out"] * w["scale"], None


def rows(tree: Tree, at: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[at], tree)


def indexed(blocks: Tree, x: jax.Array) -> jax.Array:
    for k in range(LAYERS):
        x, _ = block(x, rows(blocks, k))
    return x


def in_half(blocks: Tree, x: jax.Array) -> jax.Array:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), blocks)
    return lax.scan(block, x.astype(jnp.bfloat16), half)[0].astype(jnp.float32)


def in_groups(blocks: Tree, x: jax.Array) -> jax.Array:
    groups = jax.tree.map(lambda leaf: leaf.reshape(LAYERS // 2, 2, *leaf.shape[1:]), blocks)
    return lax.scan(lambda x, group: lax.scan(block, x, group), x, groups)[0]


def in_turns(blocks: Tree, x: jax.Array) -> jax.Array:
    def two(x: jax.Array, pair: Tree) -> tuple[jax.Array, None]:
        return jnp.sin(block(block(x, pair[0])[0], pair[1])[0]), None

    return lax.scan(two, x, (rows(blocks, slice(0, None, 2)), rows(blocks, slice(1, None, 2))))[0]


def on_second_axis(blocks: Tree, x: jax.Array) -> jax.Array:
    turned = {**blocks, "in": jnp.moveaxis(blocks["in"], 1, 0)}
    return lax.scan(block, x, turned)[0]


MODELS: dict[str, Model] = {
    "scan": lambda blocks, x: lax.scan(block, x, blocks)[0],
    "checkpoint": lambda blocks, x: lax.scan(jax.checkpoint(block), x, blocks)[0],
    "unrolled by two": lambda blocks, x: lax.scan(block, x, blocks, unroll=2)[0],
    "indexed": indexed,
    "in half": in_half,
    "in groups": in_groups,
    "in turns": in_turns,
    "second axis": on_second_axis,
    "twice": lambda blocks, x: indexed(blocks, lax.scan(block, x, blocks)[0]),
}
OPTIMIZERS = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "clipped adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "lamb": optax.lamb(1e-2),
    "block rms": optax.chain(optax.clip_by_block_rms(0.1), optax.lion(1e-3)),
    "sm3": optax.sm3(0.1),
    "if finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "every second": optax.MultiSteps(optax.adam(1e-2), 2),
    "centralized": optax.chain(optax.centralize(), optax.sgd(0.1)),
}


def at_once(grad: Callable[..., Any], params: Tree, x: jax.Array, y: jax.Array) -> Any:
    return grad(params, x, y)


def lowered(
    model: Model,
    optimizer: Any,
    more: Callable[[Tree], Any] = lambda params: (),
    gradients: Callable[..., Any] = at_once,
) -> str:
    def step(params: Tree, state: Tree, x: jax.Array, y: jax.Array) -> tuple:
        def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.mean((model(params["blocks"], x @ params["first"]) - y) ** 2)

        value, grads = gradients(jax.value_and_grad(loss), params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value, more(params)

    axis = 1 if model is on_second_axis else 0
    params = {
        "blocks": {
            "in": jnp.moveaxis(jnp.zeros((LAYERS, WIDTH, WIDE)), 0, axis),
            "out": jnp.zeros((LAYERS, WIDE, WIDTH)),
            "scale": jnp.zeros((LAYERS, WIDTH)),
        },
        "first": jnp.zeros((WIDTH, WIDTH)),
    }
    x, state = jnp.zeros((ROWS, WIDTH)), optimizer.init(params)
    return jax.jit(step, donate_argnums=(0, 1)).lower(params, state, x, x).as_text()


def split(text: str, **options: int) -> tuple[StepProgram, list[str]]:
    """The module behind the pass, which verifies, and the remarks."""
    module, said = ir.Module.parse(text, make_context()), list[str]()
    phases = (
        "import{unroll=true}",
        "microbatch{num-microbatches=2}",
        f"split-stacks{{{' '.join(f'{name}={value}' for name, value in options.items())}}}",
        "cluster{layers=3}",
    )
    with module.context:
        run_pipeline(
            module,
            f"builtin.module({','.join(f'shardopt-{each}' for each in phases)})",
            handler=lambda each: said.append(each.message),
        )
    return read_program(module), said


def stacks(program: StepProgram) -> dict[int, list[Part]]:
    found: dict[int, list[Part]] = {}
    for part in read_parts(program.main, "arg_attrs").values():
        found.setdefault(part.whole, []).append(part)
    return found


def is_stack(type_: ir.Type) -> bool:
    return LAYERS in ir.RankedTensorType(type_).shape


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_models_get_arguments_of_their_own(name: str) -> None:
    program, said = split(lowered(MODELS[name], OPTIMIZERS["clipped adamw"]))
    found = stacks(program)
    assert len(found) == 9, said  # weights and two moments
    assert all(len(parts) == LAYERS for parts in found.values())
    assert not any(is_stack(argument.type) for argument in program.main_block.arguments)
    assert not read_by_layers(program)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_goes_with_the_weights(name: str) -> None:
    program, said = split(lowered(MODELS["scan"], OPTIMIZERS[name]))
    assert len(stacks(program)) >= 3, said
    left = [str(value.type) for value in program.main_block.arguments if is_stack(value.type)]
    assert not left, said
    replaced = read_donation(program.main)
    parts, results = (read_parts(program.main, side) for side in ("arg_attrs", "res_attrs"))
    for number, part in parts.items():
        assert results[replaced[number]].bounds == part.bounds


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", ["scan", "in half", "second axis"])
def test_steps_that_accumulate_gradients_themselves(name: str, mean: bool) -> None:
    def gradients(grad: Callable[..., Any], params: Tree, x: jax.Array, y: jax.Array) -> Any:
        def part(sums: Any, batch: Any) -> tuple[Any, None]:
            found = grad(params, *batch)
            if mean:
                found = jax.tree.map(lambda g: g / 2, found)
            return jax.tree.map(jnp.add, sums, found), None

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        parts = tuple(each.reshape(2, ROWS // 2, WIDTH) for each in (x, y))
        return lax.scan(part, zeros, parts)[0]

    text = lowered(MODELS[name], OPTIMIZERS["clipped adamw"], gradients=gradients)
    program, said = split(text)
    assert len(stacks(program)) == 9, said
    returned = [value.type for value in program.body_returned]
    assert not any(is_stack(argument.type) for argument in program.main_block.arguments)
    assert not any(map(is_stack, returned))  # nor are gradients summed in stacks


def test_what_reads_a_stack_as_a_whole_keeps_it() -> None:
    def sorted_weights(params: Tree) -> jax.Array:
        return jnp.sort(params["blocks"]["scale"].ravel())

    program, said = split(lowered(MODELS["scan"], OPTIMIZERS["sgd"], sorted_weights))
    assert len(stacks(program)) == 4  # weights and momenta of the others
    kept = [each for each in said if "stay in one argument" in each]
    assert len(kept) == 1
    assert "'stablehlo.reshape' reads all of it" in kept[0]


def test_a_row_that_a_number_chooses_is_no_sum_of_rows() -> None:
    def chosen(params: Tree) -> tuple[jax.Array, jax.Array]:
        number = jnp.argmax(params["first"][0]) % LAYERS
        return lax.dynamic_index_in_dim(params["blocks"]["in"], number), params["blocks"]["out"][
            jnp.argsort(params["first"][0])
        ]

    program, said = split(lowered(MODELS["scan"], OPTIMIZERS["sgd"], chosen))
    assert len(stacks(program)) == 2, said  # the scales, and their momenta
    assert sum("reads all of it" in each for each in said) == 2


def test_stacks_of_too_many_layers_stay() -> None:
    program, said = split(lowered(MODELS["scan"], OPTIMIZERS["sgd"]), **{"max-parts": LAYERS - 1})
    assert not stacks(program)
    assert sum("it has 6 parts, more than 5" in each for each in said) == 3


def test_rows_that_meet_the_same_activations_are_no_layers() -> None:
    """Experts, or queries, keys and values of one matrix."""

    def experts(blocks: Tree, x: jax.Array) -> jax.Array:
        return sum((block(x, rows(blocks, k))[0] for k in range(LAYERS)), jnp.zeros_like(x))

    program, said = split(lowered(experts, OPTIMIZERS["sgd"]))
    assert not stacks(program)
    assert not any("stay in one argument" in each for each in said)

"""Weights of all layers in one array, and each layer's on the stage of the layer: steps, state,
checkpoints and steps beside see whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import shardopt
from shardopt.runtime.program.signature import Signature
from shardopt.runtime.state.initializers import normal
from shardopt.support.errors import UserError

LAYERS, WIDTH, WIDE, ROWS = 4, 16, 32, 8
Tree = Any
OPTIMIZERS = {
    "clipped adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "if finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "lamb": optax.lamb(1e-2),
    "every second": optax.MultiSteps(optax.adam(1e-2), 2),
}
# Where the optimizer is not what is looked at: plans take less time.
MOMENTUM = optax.sgd(1e-2, momentum=0.9)


def block(x: jax.Array, w: Tree) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ w["in"]) @ w["out"] * w["scale"], None


def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    x, _ = lax.scan(jax.checkpoint(block), x @ params["first"], params["blocks"])
    return jnp.mean((x @ params["last"] - y) ** 2)


def train_step(optimizer: Any) -> Callable[..., Any]:
    def step(params: Tree, state: Tree, x: jax.Array, y: jax.Array) -> tuple:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def initial(optimizer: Any) -> tuple[Tree, Tree]:
    keys = iter(jax.random.split(jax.random.key(3), 4))

    def weights(*shape: int) -> jax.Array:
        return 0.2 * jax.random.normal(next(keys), shape)

    params = {
        "blocks": {
            "in": weights(LAYERS, WIDTH, WIDE),
            "out": weights(LAYERS, WIDE, WIDTH),
            "scale": jnp.ones((LAYERS, WIDTH)),
        },
        "first": weights(WIDTH, WIDTH),
        "last": weights(WIDTH, WIDTH),
    }
    return params, optimizer.init(params)


X, Y = (jax.random.normal(jax.random.key(k), (ROWS, WIDTH)) for k in (5, 6))


def parallel(optimizer: Any, **options: Any) -> Any:
    return shardopt.parallelize(
        train_step(optimizer),
        cluster="cpu-test:1x4",
        batch_argnums=(2, 3),
        donate_argnums=(0, 1),
        **{"microbatches": 2, "layers": 3, "quick_compile": True, **options},
    )


def assert_close(found: Any, expected: Any, atol: float = 2e-5) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=atol)


def signature_of(step: Any) -> Signature:
    [session] = step.sessions
    return session.run.program.signature


def assert_trains(name: str, **options: Any) -> Signature:
    optimizer = OPTIMIZERS[name]
    expected = found = initial(optimizer)
    reference = jax.jit(train_step(optimizer))
    with parallel(optimizer, **options) as step:
        for _ in range(3):
            *found, value = step(*found, X, Y)
            *expected, other = reference(*expected, X, Y)
            assert_close(value, other)
        assert_close(found, expected)
        return signature_of(step)


def test_a_step_trains_as_on_one_device() -> None:
    signature = assert_trains("clipped adamw", stages=3)
    split = [each for each in signature.arguments if len(each.homes) > 1]
    assert len(split) == 9
    assert all(len({home.value.mesh for home in each.homes}) == 3 for each in split)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"schedule": "pipedream-2bw"}, {"schedule": "zero-bubble"}, {"schedule": "interleaved:2", "layers": 4, "stages": 4, "submesh": "1x2"},
    {"offload": "all", "recompute": "full"}, {"intra_op": "zero3"},
], ids=str)  # fmt: skip
def test_other_plans_train_alike(options: dict[str, Any]) -> None:
    if options.get("schedule") == "pipedream-2bw":
        with parallel(OPTIMIZERS["clipped adamw"], stages=2, **options) as step:
            *_, value = step(*initial(OPTIMIZERS["clipped adamw"]), X, Y)
            assert_close(value, loss(initial(OPTIMIZERS["clipped adamw"])[0], X, Y))
            assert (
                len(signature_of(step).arguments)
                == len(jax.tree.leaves(initial(OPTIMIZERS["clipped adamw"]))) + 2
            )
        return
    assert_trains("clipped adamw", **{"stages": 2, **options})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "clipped adamw"])
def test_other_optimizers_train_alike(name: str) -> None:
    signature = assert_trains(name, stages=2)
    assert any(len(each.homes) > 1 for each in signature.arguments)


def test_checkpoints_hold_whole_arrays(tmp_path: Path) -> None:
    """Made in parts, written in parts, and read by a plan that keeps stacks whole, and back."""
    optimizer = MOMENTUM
    expected = initial(optimizer)
    reference = jax.jit(train_step(optimizer))
    for number, options in enumerate(({"stages": 2}, {"stages": 1}, {"stages": 3})):
        with parallel(optimizer, **options) as step:
            started = step.start(*expected, X, Y)
            if number:
                state = tuple(started.load(tmp_path / str(number - 1)))
            else:
                state = started.create(lambda: initial(optimizer))
            assert_close(started.fetch(state), expected)
            *state, _ = step(*state, X, Y)
            *expected, _ = reference(*expected, X, Y)
            assert_close(started.fetch(state), expected)
            started.save(tmp_path / str(number))


def test_a_step_beside_reads_the_rows_where_they_are() -> None:
    optimizer = MOMENTUM
    state = initial(optimizer)
    with parallel(optimizer, stages=2) as step:
        evaluate = step.beside(loss)
        *state, _ = step(*state, X, Y)
        *expected, _ = jax.jit(train_step(optimizer))(*initial(optimizer), X, Y)
        assert_close(evaluate(state[0], X, Y), loss(expected[0], X, Y))

        def norms(params: Tree, x: jax.Array) -> jax.Array:
            layers = params["blocks"]["in"].reshape(-1, WIDTH)  # all layers at once
            return x @ params["first"] @ layers.T[:, :WIDTH] @ params["last"]

        with pytest.raises(UserError, match="not read row by row, layer after layer"):
            step.beside(norms)(state[0], X)


def test_parts_of_arguments_are_read_and_made() -> None:
    optimizer = MOMENTUM
    state = initial(optimizer)
    with parallel(optimizer, stages=3) as step:
        step(*state, X, Y)
        [session] = step.sessions
        run = session.run
        names = [each.name for each in run.program.signature.arguments]
        number = names.index("params['blocks']['out']")
        whole = run.argument(number)
        assert whole.shape == (LAYERS, WIDE, WIDTH)
        np.testing.assert_array_equal(
            run.argument(number, ((1, 3), (3, 9), (0, 2))), whole[1:3, 3:9, 0:2]
        )
        asked: list[tuple[slice, ...]] = []

        def rows(index: tuple[slice, ...]) -> np.ndarray:
            asked.append(index)
            return np.arange(whole.size, dtype=np.float32).reshape(whole.shape)[index]

        run.create({number: rows})
        assert {(each[0].start, each[0].stop) for each in asked} == {
            (k, k + 1) for k in range(LAYERS)
        }
        expected = np.arange(whole.size, dtype=np.float32).reshape(whole.shape)
        np.testing.assert_array_equal(run.argument(number), expected)
        run.create({number: normal(0, 1, seed=3)})
        made = run.argument(number)
    with parallel(optimizer, stages=1) as step:
        step(*state, X, Y)
        run = step.sessions[0].run
        run.create({number: normal(0, 1, seed=3)})
        np.testing.assert_array_equal(run.argument(number), made)  # whatever the plan

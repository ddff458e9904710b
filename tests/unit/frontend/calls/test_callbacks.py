"""Callbacks of a step, taken out of it and run on what they look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt
from shardopt.frontend.calls.callbacks import recorded

ROW = jnp.arange(3.0)


def seen_by(step: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """What the step without callbacks returns, after these have run."""
    recording = recorded("parallelize", jax.jit(step), args, {})
    assert recording is not None
    results, values = jax.jit(recording.fun)(*args)
    recording.look(values)
    return results, values


def test_each_sees_its_values_in_program_order() -> None:
    """Below a gradient, in a function that is called twice, with numbers of Python."""
    seen: list[Any] = []

    @jax.jit
    def doubled(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda x, word: seen.append((word, x.tolist())), x, 7)
        return 2 * x

    def loss(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda x: seen.append(("loss", x.tolist())), x)
        return jnp.sum(x**2)

    def step(x: jax.Array) -> Any:
        grad = jax.grad(loss)(x)
        jax.experimental.io_callback(lambda x: seen.append(("io", x.tolist())), None, grad)
        return doubled(doubled(x)) + grad

    results, _ = seen_by(step, ROW)
    np.testing.assert_array_equal(results, 4 * ROW + 2 * ROW)
    grad = (2 * ROW).tolist()
    assert [word for word, _ in seen] == ["loss", "io", 7, 7]
    assert [value for _, value in seen] == [ROW.tolist(), grad, ROW.tolist(), grad]


def test_prints_appear_in_this_process(capfd: pytest.CaptureFixture[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {total} of {}", x.shape[0], total=x.sum())
        return x + 1

    planned = shardopt.parallelize(step, cluster="cpu-test:1x1", stages=1, quick_compile=True)
    with planned:
        for k in range(2):
            np.testing.assert_array_equal(planned(ROW + k), ROW + k + 1)
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["sum 3.0 of 3", "sum 6.0 of 3"]


def test_donated_arguments_and_functions_without_callbacks_stay_as_they_are() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        jax.debug.callback(lambda x: None, x)
        return state, x

    jitted = jax.jit(step, donate_argnums=0)
    recording = recorded("parallelize", jitted, ({"a": ROW}, ROW), {})
    assert recording is not None
    assert recording.donate_argnums == (0,)
    assert recorded("parallelize", jax.jit(jnp.tanh), (ROW,), {}) is None


def test_what_has_to_run_inside_is_refused_at_its_line() -> None:
    def pure(x: jax.Array) -> jax.Array:
        return x + jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def looped(x: jax.Array) -> jax.Array:
        def body(_: int, x: jax.Array) -> jax.Array:
            jax.debug.print("{}", x)
            return x + 1

        return jax.lax.fori_loop(0, 3, body, x)

    cases = ((pure, "'pure_callback'", "its results are part"), (looped, "'debug_print'", "a loop"))
    for step, name, why in cases:
        message = rf"^parallelize: {name} at .*test_callbacks.py:\d+.* cannot run .*{why}"
        with pytest.raises(shardopt.UserError, match=message):
            recorded("parallelize", jax.jit(step), (ROW,), {})

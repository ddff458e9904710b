"""State on the workers stands wherever an array does, and is fetched once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardopt.frontend.steps.state_array import StateArray
from shardopt.support.errors import UserError

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


class Counted:
    """What reads a value, and how often it did."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> np.ndarray:
        self.times += 1
        return VALUES


def state(read: Callable[[], np.ndarray] = lambda: VALUES) -> Any:
    return StateArray(read, jax.ShapeDtypeStruct((2, 3), "float32"))


USES: dict[str, Callable[[Any], Any]] = {
    "jnp": lambda x: jnp.sum(x) + jnp.add(x, 1),
    "jit": jax.jit(lambda x: x * 2),
    "lax": lambda x: jax.lax.add(x, x),
    "grad": jax.grad(lambda x: jnp.sum(x**2)),
    "vmap": jax.vmap(lambda x: x + 1),
    "tree": lambda x: jax.tree.map(lambda leaf: leaf * 2, {"x": x})["x"],
    "operators": lambda x: (1 + x) * x - x / 2 + (x @ np.ones((3, 3), "float32")),
    "both sides": lambda x: x + x,
    "numpy": lambda x: np.tanh(x) + np.asarray(x),
    "numpy left": lambda x: np.ones((2, 3), "float32") + x,
    "methods": lambda x: x.T.reshape(-1).sum() + x[0, 1] + x.at[0].set(1.0),
    "comparison": lambda x: jnp.where(x > 2, x, 0),
    "rows": lambda x: sum(x),
    "scan": lambda x: jax.lax.scan(lambda total, row: (total + row, row), jnp.zeros(3), x)[0],
    "put": jax.device_put,
    "get": jax.device_get,
}


@pytest.mark.parametrize("use", USES)
def test_arrays_and_state_give_the_same(use: str) -> None:
    np.testing.assert_array_equal(USES[use](state()), USES[use](jnp.asarray(VALUES)))


def test_shape_and_type_need_no_value() -> None:
    read = Counted()
    array = state(read)
    assert (array.shape, array.dtype, array.ndim, array.size, len(array)) == (
        (2, 3),
        "float32",
        2,
        6,
        2,
    )
    assert jax.typeof(array) == jax.typeof(jnp.asarray(VALUES))
    assert {array: 1}[array] == 1 and not read.times
    assert float(array[0, 1]) == 1.0 and jnp.sum(array) == 15
    assert read.times == 1


def test_state_that_is_gone() -> None:
    def read() -> np.ndarray:
        raise RuntimeError("a step has replaced it")

    with pytest.raises(UserError, match="no longer on the workers"):
        jnp.tanh(state(read))

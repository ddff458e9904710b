"""Integers that are computed from constants alone are what XLA computes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.passes.importing.coordinates import bounds
from shardopt.passes.importing.known_integers import known_integers
from tests.unit.passes.program_evaluation import run_xla

Array = jax.Array
Rule = Callable[[Array, Array, np.random.Generator], Array]

# Each takes two arrays of one type and shape, [n, m].
_RULES: tuple[Rule, ...] = (
    lambda a, b, rng: a + b,
    lambda a, b, rng: a - b,
    lambda a, b, rng: a * b,
    lambda a, b, rng: a & b,
    lambda a, b, rng: a | ~b,
    lambda a, b, rng: lax.max(a, b),
    lambda a, b, rng: lax.min(a, b),
    lambda a, b, rng: lax.clamp(jnp.asarray(0, a.dtype), a, lax.max(b, jnp.zeros_like(b))),
    lambda a, b, rng: lax.div(lax.max(a, jnp.zeros_like(a)), jnp.full_like(a, rng.integers(1, 4))),
    lambda a, b, rng: lax.rem(lax.max(a, jnp.zeros_like(a)), jnp.full_like(a, rng.integers(1, 4))),
    lambda a, b, rng: lax.select(a < b, a, b + 1),
    lambda a, b, rng: lax.select((a == b) | (a >= b), a, b),
    lambda a, b, rng: (a != b).astype(a.dtype) - (a > b).astype(a.dtype),
    lambda a, b, rng: (a <= b).astype(a.dtype) * a,
    lambda a, b, rng: a.reshape(-1)[::-1].reshape(a.shape) + lax.sign(b),
    lambda a, b, rng: lax.broadcast_in_dim(a[0], a.shape, (1,)),
    lambda a, b, rng: lax.broadcast_in_dim(a[:, 1], a.shape, (0,)),
    lambda a, b, rng: jnp.concatenate([a[1:], b[:1]]),
    lambda a, b, rng: a.T.reshape(a.shape),
    lambda a, b, rng: jnp.concatenate([a[:, ::2], b[:, 1::2]], axis=1),
    lambda a, b, rng: a.astype(jnp.int8).astype(a.dtype),
    lambda a, b, rng: a.astype(jnp.uint16).astype(a.dtype),
    lambda a, b, rng: lax.optimization_barrier(a),
)


def _program(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(rng.choice(["int8", "uint8", "int32", "uint32"]))
    shape = (int(rng.integers(2, 5)), int(rng.integers(2, 5)))
    known = [
        lax.broadcasted_iota(dtype, shape, 0),
        lax.broadcasted_iota(dtype, shape, 1),
        jnp.full(shape, 100, dtype),
        jnp.asarray(rng.integers(0, 120, shape), dtype),
    ]
    for _ in range(int(rng.integers(1, 9))):
        a, b = (known[int(rng.integers(len(known)))] for _ in range(2))
        known.append(_RULES[int(rng.integers(len(_RULES)))](a, b, rng))
    return known[-1]


def _lowered(function: Callable[..., Array], *arguments: Array) -> tuple[ir.Module, ir.Value]:
    with make_context():
        module = ir.Module.parse(
            str(jax.jit(function, keep_unused=True).lower(*arguments).as_text())
        )
    block = module.body.operations[0].regions[0].blocks[0]
    return module, block.operations[len(block.operations) - 1].operands[0]


@pytest.mark.parametrize(
    "seed", [*range(40), *(pytest.param(n, marks=pytest.mark.slow) for n in range(40, 300))]
)
def test_as_xla_computes_them(seed: int) -> None:
    module, value = _lowered(lambda: _program(seed))
    with module.context:
        numbers, limits = known_integers(value, 1 << 20), bounds(value)
    [expected] = run_xla(module, [])
    assert numbers is not None and numbers.dtype == expected.dtype
    np.testing.assert_array_equal(numbers, expected)
    assert limits == (expected.min(), expected.max())


def test_nothing_is_known_of_what_depends_on_an_argument() -> None:
    def program(array: Array) -> Array:
        return array + lax.broadcasted_iota(jnp.int32, (4, 4), 0)

    module, value = _lowered(program, jnp.zeros((4, 4), jnp.int32))
    with module.context:
        assert known_integers(value, 1 << 20) is None
        assert bounds(value) is None


@pytest.mark.parametrize("dtype, size", [("int8", 129), ("uint8", 257)])
def test_coordinates_that_do_not_fit_are_not_known(dtype: str, size: int) -> None:
    for rows, is_known in ((size - 1, True), (size, False)):
        module, value = _lowered(lambda rows=rows: lax.iota(jnp.dtype(dtype), rows))
        with module.context:
            assert (known_integers(value, 1 << 20) is not None) == is_known


def test_large_tensors_are_not_evaluated() -> None:
    module, value = _lowered(lambda: lax.iota(jnp.int32, 100) // 3)
    with module.context:
        assert known_integers(value, 99) is None


def test_long_computations_are_not_followed() -> None:
    """As the counter of a loop that was written out."""

    def counted(steps: int) -> Array:
        number = lax.iota(jnp.int32, 4)
        for _ in range(steps):
            number = number + 1
        return number

    for steps, is_known in ((20, True), (2000, False)):
        module, value = _lowered(lambda steps=steps: counted(steps))
        with module.context:
            assert (known_integers(value, 1 << 20) is not None) == is_known


def test_a_divisor_that_may_be_zero_is_not_evaluated() -> None:
    module, value = _lowered(lambda: lax.div(lax.iota(jnp.int32, 4) + 1, lax.iota(jnp.int32, 4)))
    with module.context:
        assert known_integers(value, 1 << 20) is None

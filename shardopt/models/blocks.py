"""The parts of a decoder's block that `Computing` says something of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardopt.models.computing import Computing
from shardopt.models.weights import WideSummed

Multiplied = jax.Array | WideSummed

_ATTENDED, _KEPT = "attended", "kept"
_DROPPED = 0.1
_STEPS = 2.0**20  # of a unit, which change what is dropped
_GOLDEN, _PRIMES = 2654435769, (73856093, 19349663, 83492791, 2147483647)
_FORWARD, _BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


def product(
    how: Computing, formula: str, x: jax.Array, weight: Multiplied, *, again: bool = False
) -> jax.Array:
    """`jnp.einsum` of an activation and a weight whose indices all stand in two of the three
    tensors. `again`: recomputation per operation takes it once more."""
    result = (
        _product_in_8_bits(formula, x, weight) if how.float8 else plain_product(formula, x, weight)
    )
    if again or how.recomputed != "per-operation":
        return result
    return checkpoint_name(result, _KEPT)


def plain_product(formula: str, x: jax.Array, weight: Multiplied) -> jax.Array:
    """The same of any computing, in the type of the model."""
    if isinstance(weight, WideSummed):
        return _taken(formula, False, x, *weight)
    return jnp.einsum(formula, x, weight)


def _product_in_8_bits(formula: str, x: jax.Array, weight: Multiplied) -> jax.Array:
    narrow, sums = weight if isinstance(weight, WideSummed) else (weight, None)
    return _taken(formula, True, x, narrow, sums)


def attended(how: Computing, attend: Callable[..., jax.Array], *projected: jax.Array) -> jax.Array:
    """What `attend` makes of queries, keys and values."""
    if how.recomputed not in ("attention", "per-operation", "all-but-attention"):
        return attend(*projected)
    return checkpoint_name(jax.checkpoint(attend)(*projected), _ATTENDED)


def dropped(how: Computing, x: jax.Array, seed: int) -> jax.Array:
    """`x` without a tenth of its elements, where the model drops any."""
    return _dropped(seed, x) if how.drops else x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dropped(seed: int, x: jax.Array) -> jax.Array:
    """What is dropped is one kernel's, which also writes down in a byte an element what stays: the
    backward pass reads these bytes, and draws nothing again (PyTorch,
    aten/src/ATen/native/cuda/Dropout.cu, `fused_dropout_kernel`)."""
    return _dropped_forward(seed, x)[0]


def _dropped_forward(seed: int, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array]]:
    kept = _kept(seed, x)
    return _only(kept, x), (kept,)


def _dropped_backward(seed: int, saved: tuple[jax.Array], grad: jax.Array) -> tuple[jax.Array]:
    return (_only(jax.lax.optimization_barrier(saved[0]), grad),)


_dropped.defvjp(_dropped_forward, _dropped_backward)


def _only(kept: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(kept, x / (1 - _DROPPED), jnp.zeros((), x.dtype)).astype(x.dtype)


def _kept(seed: int, x: jax.Array) -> jax.Array:
    """A hash of its place and value tells whether an element stays (Knuth, The Art of Computer
    Programming, section 6.4: multiplicative hashing). By its place alone, what one layer drops all
    others would."""
    value = jnp.abs(x.astype(jnp.float32)) * _STEPS
    place = sum(
        jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim) * jnp.uint32(_PRIMES[dim % len(_PRIMES)])
        for dim in range(x.ndim)
    ) + jnp.uint32(seed)
    place += jnp.minimum(value, float(2**31)).astype(jnp.uint32)
    hashed = (place ^ (place >> 15)) * jnp.uint32(_GOLDEN)
    return hashed > jnp.uint32(_DROPPED * 2**32)


def block(how: Computing, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A block as it is called."""
    if how.recomputed == "whole":
        return _run_again(function)
    if how.recomputed == "all-but-products":
        products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(function, policy=products)
    if how.recomputed not in ("per-operation", "all-but-attention"):
        return function
    kept = jax.checkpoint_policies.save_only_these_names(_ATTENDED, _KEPT)
    return jax.checkpoint(function, policy=kept)


def _run_again(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function` with a backward pass that begins by calling it on what it was called with. The
    gradient reads all of the result, so that no compiler leaves a part of it out."""

    def backward(saved: tuple[Any, ...], grad: jax.Array) -> tuple[Any, ...]:
        saved, grad = jax.lax.optimization_barrier((saved, grad))
        result, pull_back = jax.vjp(function, *saved)
        return tuple(pull_back(jnp.where(jnp.isfinite(result), grad, jnp.zeros((), grad.dtype))))

    run = jax.custom_vjp(function)
    run.defvjp(lambda *args: (function(*args), args), backward)
    return run


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _taken(
    formula: str, float8: bool, x: jax.Array, weight: jax.Array, sums: jax.Array | None
) -> jax.Array:
    """A product whose gradients are as wide as `sums`, where there are any."""
    return _einsum(formula, float8, (x, weight), (_FORWARD, _FORWARD), x.dtype)


def _taken_forward(
    formula: str, float8: bool, x: jax.Array, weight: jax.Array, sums: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    has_sums = None if sums is None else ()  # as part of the tree, of which no value is kept
    return _taken(formula, float8, x, weight, sums), (x, weight, has_sums)


def _taken_backward(
    formula: str, float8: bool, saved: tuple[Any, ...], grad: jax.Array
) -> tuple[Any, ...]:
    x, weight, has_sums = saved
    of_x, of_weight, of_result = formula.replace("->", ",").split(",")
    into_x, into_weight = f"{of_result},{of_weight}->{of_x}", f"{of_x},{of_result}->{of_weight}"
    made = _einsum(into_x, float8, (grad, weight), (_BACKWARD, _FORWARD), x.dtype)
    types = (_FORWARD, _BACKWARD)
    if has_sums is None:
        return made, _einsum(into_weight, float8, (x, grad), types, weight.dtype), None
    summed = _einsum(into_weight, float8, (x, grad), types, jnp.float32)
    return made, jnp.zeros_like(weight), summed


_taken.defvjp(_taken_forward, _taken_backward)


def _einsum(
    formula: str, float8: bool, pair: tuple[jax.Array, jax.Array], types: Any, dtype: Any
) -> jax.Array:
    """Of two tensors, in 8 bits of two `types` if asked, with a result in `dtype`."""
    a, b = pair
    if not float8:
        return jnp.einsum(formula, a, b, preferred_element_type=dtype)
    (narrow_a, unit_a), (narrow_b, unit_b) = _scaled(a, types[0]), _scaled(b, types[1])
    result = jnp.einsum(formula, narrow_a, narrow_b, preferred_element_type=dtype)
    return result * (unit_a * unit_b).astype(dtype)


def _scaled(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """`x` in 8 bits, its largest number the largest there is, and what a unit of it stands for."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    unit = jnp.maximum(largest, jnp.finfo(jnp.float32).tiny) / float(jnp.finfo(dtype).max)
    return (x.astype(jnp.float32) / unit).astype(dtype), unit

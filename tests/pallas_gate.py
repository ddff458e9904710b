"""A kernel of Pallas, with a gradient, for tests of functions that have one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _gate(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])


@jax.custom_vjp
def gate(x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    call = pl.pallas_call(
        _gate,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 8,),
        in_specs=[block],
        out_specs=block,
    )
    return jnp.asarray(call(x))


def _gate_backward(x: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    return (grad * jax.grad(lambda y: jnp.sum(jax.nn.silu(y)))(x),)


gate.defvjp(lambda x: (gate(x), x), _gate_backward)

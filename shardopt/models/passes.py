"""Operations as libraries run them that compile nothing: each is a kernel that writes what it
makes, and the backward pass has some for each of them (PyTorch, tools/autograd/derivatives.yaml and
torch/csrc/autograd/FunctionsManual.cpp).

What such a library has a kernel for is in `shardopt.models.kernels`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardopt.models.kernels import EPSILON, Residuals, is_label, log_total


def alone(x: jax.Array) -> jax.Array:
    """Written to memory: no compiler merges what makes it with what reads it."""
    made: jax.Array = jax.lax.optimization_barrier(x)
    return made


@jax.custom_vjp
def rms_norm_in_passes(x: jax.Array, gain: jax.Array) -> jax.Array:
    """`rms_norm`: `x` `[..., hidden]` to float32, squares, times the root of their mean,
    back, times `gain` (aten/src/ATen/native/layer_norm.cpp, before PyTorch 2.8 had a kernel for
    it)."""
    return _rms_norm_forward(x, gain)[0]


def _rms_norm_forward(x: jax.Array, gain: jax.Array) -> tuple[jax.Array, Residuals]:
    wide = alone(x.astype(jnp.float32))
    squares = alone(wide * wide)
    scale = alone(jax.lax.rsqrt(jnp.mean(squares, axis=-1, keepdims=True) + EPSILON))
    unit = alone(alone(wide * scale).astype(x.dtype))
    return alone(unit * gain), (wide, scale, unit, gain)


def _rms_norm_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    wide, scale, unit, gain = saved
    rows, size = tuple(range(wide.ndim - 1)), wide.shape[-1]
    into_gain = jnp.sum(alone(grad * unit), axis=rows)
    into_unit = alone(alone(grad * gain).astype(jnp.float32))
    into_scale = jnp.sum(alone(into_unit * wide), axis=-1, keepdims=True)
    into_mean = alone(-0.5 / size * into_scale * scale**3)
    into_squares = alone(jnp.broadcast_to(into_mean, wide.shape))
    slope = alone(2.0 * alone(wide + 0.0))  # pow_backward: the exponent times a power of one
    into_wide = alone(alone(into_unit * scale) + alone(into_squares * slope))
    return alone(into_wide.astype(unit.dtype)), into_gain


rms_norm_in_passes.defvjp(_rms_norm_forward, _rms_norm_backward)


@jax.custom_vjp
def gated_silu_in_passes(gate: jax.Array, x: jax.Array) -> jax.Array:
    """`gated_silu`: SiLU and the product are a kernel each."""
    return _gated_silu_forward(gate, x)[0]


def _gated_silu_forward(gate: jax.Array, x: jax.Array) -> tuple[jax.Array, Residuals]:
    bent = alone(gate * jax.lax.logistic(gate))
    return alone(bent * x), (gate, bent, x)


def _gated_silu_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    gate, bent, x = saved
    into_bent, bend = alone(grad * x), jax.lax.logistic(gate)
    return alone(into_bent * (bend * (1 + gate * (1 - bend)))), alone(grad * bent)


gated_silu_in_passes.defvjp(_gated_silu_forward, _gated_silu_backward)


@jax.custom_vjp
def cross_entropy_in_passes(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The same, one operation after another on float32 logits, with a softmax that is kept."""
    return _in_passes_forward(logits, labels)[0]


def _in_passes_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Residuals]:
    wide = alone(logits.astype(jnp.float32))
    shifted = alone(wide - jnp.max(wide, axis=-1, keepdims=True))
    label_logits = jnp.sum(jnp.where(is_label(logits, labels), shifted, 0.0), axis=-1)
    powers = alone(jnp.exp(shifted))
    total = jnp.sum(powers, axis=-1, keepdims=True)
    shares = alone(powers / total)
    like_logits = jnp.zeros((), logits.dtype)
    return jnp.log(total)[..., 0] - label_logits, (shares, labels, like_logits)


def _in_passes_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    shares, labels, like_logits = saved
    slope = jnp.where(is_label(shares, labels), shares - 1.0, shares)
    return alone(grad[..., None] * slope).astype(like_logits.dtype), None


cross_entropy_in_passes.defvjp(_in_passes_forward, _in_passes_backward)


@jax.custom_vjp
def wide_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The same by a log-softmax of float32 logits, which is kept, and the choice of one of them."""
    return _wide_forward(logits, labels)[0]


def _wide_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Residuals]:
    wide = alone(logits.astype(jnp.float32))
    logs = _beside(wide - log_total(wide), wide)
    chosen = jnp.sum(jnp.where(is_label(logits, labels), logs, 0.0), axis=-1)
    return -chosen, (logs, labels, jnp.zeros((), logits.dtype))


def _wide_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    logs, labels, like_logits = saved
    nothing = logs - logs  # zeros that lie as these do
    into_logs = alone(jnp.where(is_label(logs, labels), -grad[..., None], nothing))
    total = jnp.sum(into_logs, axis=-1, keepdims=True)
    slope = _beside(into_logs - jnp.exp(logs) * total, into_logs, logs)
    return slope.astype(like_logits.dtype), None


def _beside(x: jax.Array, *operands: jax.Array) -> jax.Array:
    """Written to memory beside its operands, as by libraries that write over nothing they read."""
    made, *held = jax.lax.optimization_barrier((x, *operands))
    for each in held:  # what is not read behind it would be gone
        made = made + alone(0.0 * each[..., :1])
    return made


wide_cross_entropy.defvjp(_wide_forward, _wide_backward)

"""Operations that training systems run as one kernel: the backward pass keeps the input and
computes the rest again.

Sums are taken in float32 whatever the type of the values. Without these, differentiation would hold
several float32 copies of every activation, which neither the paper's system nor Megatron-LM does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

EPSILON = 1e-5
_ROOT = (2 / jnp.pi) ** 0.5
_CUBIC = 0.044715

Residuals = tuple[Any, ...]


def _normalized(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centered * centered, axis=-1, keepdims=True) + EPSILON)
    return centered * scale, scale


@jax.custom_vjp
def layer_norm(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    """`x` `[..., hidden]` with mean 0 and variance 1 along the last dimension, times `gain`, plus
    `bias`."""
    unit, _ = _normalized(x)
    return (unit * gain.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def _layer_norm_forward(
    x: jax.Array, gain: jax.Array, bias: jax.Array
) -> tuple[jax.Array, Residuals]:
    return layer_norm(x, gain, bias), (x, gain)


def _layer_norm_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    x, gain = saved
    unit, scale = _normalized(x)
    wide = grad.astype(jnp.float32)
    rows = tuple(range(x.ndim - 1))
    inner = wide * gain.astype(jnp.float32)
    mean = jnp.mean(inner, axis=-1, keepdims=True)
    along = jnp.mean(inner * unit, axis=-1, keepdims=True)
    into_x = scale * (inner - mean - unit * along)
    into_gain, into_bias = jnp.sum(wide * unit, axis=rows), jnp.sum(wide, axis=rows)
    return into_x.astype(x.dtype), into_gain.astype(gain.dtype), into_bias.astype(gain.dtype)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _root_scale(wide: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)


@jax.custom_vjp
def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """`x` `[..., hidden]` with mean square 1 along the last dimension, times `gain`."""
    wide = x.astype(jnp.float32)
    return (wide * _root_scale(wide) * gain.astype(jnp.float32)).astype(x.dtype)


def _rms_norm_forward(x: jax.Array, gain: jax.Array) -> tuple[jax.Array, Residuals]:
    return rms_norm(x, gain), (x, gain)


def _rms_norm_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    x, gain = saved
    wide, slope = x.astype(jnp.float32), grad.astype(jnp.float32)
    scale = _root_scale(wide)
    unit, inner = wide * scale, slope * gain.astype(jnp.float32)
    into_x = scale * (inner - unit * jnp.mean(inner * unit, axis=-1, keepdims=True))
    into_gain = jnp.sum(slope * unit, axis=tuple(range(x.ndim - 1)))
    return into_x.astype(x.dtype), into_gain.astype(gain.dtype)


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@jax.custom_vjp
def softmax(x: jax.Array) -> jax.Array:
    """Shares `[..., n]` of numbers of the same shape, which sum up to 1 along the last dimension.
    The backward pass reads the shares, where differentiation would keep powers beside them."""
    return jax.nn.softmax(x, axis=-1)


def _softmax_forward(x: jax.Array) -> tuple[jax.Array, Residuals]:
    shares = softmax(x)
    return shares, (shares,)


def _softmax_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    (shares,) = saved
    slope = grad * shares
    along = jnp.sum(slope.astype(jnp.float32), axis=-1, keepdims=True).astype(shares.dtype)
    return (slope - shares * along,)


softmax.defvjp(_softmax_forward, _softmax_backward)


@jax.custom_vjp
def gated_silu(gate: jax.Array, x: jax.Array) -> jax.Array:
    """`x` times SiLU of `gate`, of equal shape."""
    return gate * jax.lax.logistic(gate) * x


def _gated_silu_forward(gate: jax.Array, x: jax.Array) -> tuple[jax.Array, Residuals]:
    return gated_silu(gate, x), (gate, x)


def _gated_silu_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    gate, x = saved
    bend = jax.lax.logistic(gate)
    return grad * x * (bend * (1 + gate * (1 - bend))), grad * gate * bend


gated_silu.defvjp(_gated_silu_forward, _gated_silu_backward)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """GELU by its tanh approximation."""
    return 0.5 * x * (1 + jnp.tanh(_ROOT * (x + _CUBIC * x * x * x)))


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, Residuals]:
    return gelu(x), (x,)


def _gelu_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    (x,) = saved
    square = x * x
    bend = jnp.tanh(_ROOT * (x + _CUBIC * square * x))
    slope = 0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * (_ROOT * (1 + 3 * _CUBIC * square))
    return (grad * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)


def is_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return classes == labels[..., None]


def log_total(wide: jax.Array) -> jax.Array:
    top = jnp.max(wide, axis=-1, keepdims=True)
    return jnp.log(jnp.sum(jnp.exp(wide - top), axis=-1, keepdims=True)) + top


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Of every row of `logits` `[..., classes]` against int32 `labels` `[...]`: float32 `[...]`."""
    return _cross_entropy_forward(logits, labels)[0]


def _cross_entropy_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Residuals]:
    wide = logits.astype(jnp.float32)
    total = log_total(wide)
    label_logits = jnp.sum(jnp.where(is_label(logits, labels), wide, 0.0), axis=-1)
    return total[..., 0] - label_logits, (logits, labels, total)


def _cross_entropy_backward(saved: Residuals, grad: jax.Array) -> Residuals:
    logits, labels, total = saved
    share = jnp.exp(logits.astype(jnp.float32) - total)
    slope = jnp.where(is_label(logits, labels), share - 1.0, share)
    return (grad[..., None] * slope).astype(logits.dtype), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)

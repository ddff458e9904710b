"""Wide-ResNet as in the paper (`alpa/model/wide_resnet.py`): a bottleneck ResNet with wider 3x3
convolutions, float32.

Means and variances of the batch normalisation are those of a microbatch when a step is cut, as in
the artifact. Running averages of them, which only inference reads, are left out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardopt.models.kernels import cross_entropy
from shardopt.models.specs import ResnetSpec
from shardopt.models.transformer import Batch, Tree
from shardopt.models.weights import Weight, matrix

EPSILON = 1e-5
_OUT = 4  # a block's output has four times its filters


def weights(spec: ResnetSpec) -> Tree:
    channels = spec.channels
    blocks, into = [], channels
    for level, count in enumerate(spec.block_counts):
        for number in range(count):
            blocks.append(
                _block_weights(into, channels * 2**level, spec.width, project=number == 0)
            )
            into = _OUT * channels * 2**level
    return {
        "first": _conv_weight(7, 3, channels),
        "first_norm": _norm_weights(channels),
        "blocks": blocks,
        "head": matrix(into, spec.classes, inputs=into),
        "head_bias": Weight((spec.classes,)),
    }


def _block_weights(into: int, filters: int, width: int, project: bool) -> Tree:
    out = _OUT * filters
    weights = {
        "reduce": _conv_weight(1, into, filters),
        "reduce_norm": _norm_weights(filters),
        "middle": _conv_weight(3, filters, filters * width),
        "middle_norm": _norm_weights(filters * width),
        "expand": _conv_weight(1, filters * width, out),
        "expand_norm": _norm_weights(out, gain=0.0),  # a block begins as the identity
    }
    return (
        {**weights, "project": _conv_weight(1, into, out), "project_norm": _norm_weights(out)}
        if project
        else weights
    )


def _conv_weight(size: int, into: int, out: int) -> Weight:
    return matrix(size, size, into, out, inputs=size * size * into)


def _norm_weights(channels: int, gain: float = 1.0) -> Tree:
    return {"gain": Weight((channels,), fill=gain), "bias": Weight((channels,))}


def loss(params: Tree, batch: Batch) -> jax.Array:
    first = params["first"]
    x = _conv(batch["images"].astype(first.dtype), first, 2)
    x = jax.nn.relu(_batch_norm(x, params["first_norm"]))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for block in params["blocks"]:
        # A level begins with more channels than came in, and every level but the first with half
        # the resolution.
        deeper = "project" in block and block["reduce"].shape[2] != block["reduce"].shape[3]
        x = _bottleneck(x, block, 2 if deeper else 1)
    pooled = jnp.mean(x, axis=(1, 2))
    logits = pooled @ params["head"] + params["head_bias"]
    return jnp.mean(cross_entropy(logits, batch["labels"]))


def _bottleneck(x: jax.Array, weights: Tree, stride: int) -> jax.Array:
    y = jax.nn.relu(_batch_norm(_conv(x, weights["reduce"]), weights["reduce_norm"]))
    y = jax.nn.relu(_batch_norm(_conv(y, weights["middle"], stride), weights["middle_norm"]))
    y = _batch_norm(_conv(y, weights["expand"]), weights["expand_norm"])
    if "project" in weights:
        x = _batch_norm(_conv(x, weights["project"], stride), weights["project_norm"])
    return jax.nn.relu(x + y)


def _conv(x: jax.Array, weight: jax.Array, stride: int = 1) -> jax.Array:
    size = weight.shape[0] // 2
    padding = ((size, size), (size, size))
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, weight, (stride, stride), padding, dimension_numbers=layout
    )


def _batch_norm(x: jax.Array, weights: Tree) -> jax.Array:
    mean = jnp.mean(x, axis=(0, 1, 2))
    centered = x - mean
    variance = jnp.mean(centered * centered, axis=(0, 1, 2))
    return centered * (jax.lax.rsqrt(variance + EPSILON) * weights["gain"]) + weights["bias"]


def image_batch(spec: ResnetSpec) -> dict[str, Any]:
    """Shapes of the inputs of a step."""
    images = jax.ShapeDtypeStruct((spec.batch, spec.image, spec.image, 3), jnp.float32)
    return {"images": images, "labels": jax.ShapeDtypeStruct((spec.batch,), jnp.int32)}

"""Training steps in plain JAX at real sizes: what the builder of models does not write.

Decoders in bfloat16 with weights in float32, whose layers stand one after the other, in a loop, or
in a loop that computes them again; the same in float32; a vision transformer; a convolutional
network with depthwise convolutions; an MLP-Mixer. Adam updates all of them. As files:
`benchmarks.one_device.modules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import export

Tree = Any
Loss = Callable[[Tree, Any], jax.Array]


@dataclass(frozen=True)
class Decoder:
    """`layers` are "unrolled", "loop" or "remat"; `ffn` gated by SiLU."""

    hidden: int
    depth: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tokens: int
    batch: int
    dtype: Any = jnp.bfloat16
    layers: str = "unrolled"


def _dense(rows: int, columns: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, columns), jnp.float32)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
    return (y * scale).astype(x.dtype)


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    frequency = 1e4 ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None] * frequency
    cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _decoder_block(model: Decoder, x: jax.Array, weights: Tree) -> jax.Array:
    size = model.hidden // model.heads
    w = {name: value.astype(model.dtype) for name, value in weights.items() if value.ndim == 2}
    y = _norm(x, weights["norm1"])
    q = (y @ w["q"]).reshape(*x.shape[:2], model.heads, size)
    k = (y @ w["k"]).reshape(*x.shape[:2], model.kv_heads, size)
    v = (y @ w["v"]).reshape(*x.shape[:2], model.kv_heads, size)
    y = jax.nn.dot_product_attention(_rotated(q), _rotated(k), v, is_causal=True)
    x = x + y.reshape(x.shape) @ w["out"]
    y = _norm(x, weights["norm2"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def decoder(model: Decoder) -> tuple[Loss, Tree, Any]:
    """Loss, types of its weights, types of its batch."""
    h, kv = model.hidden, model.hidden // model.heads * model.kv_heads
    block = {
        "q": _dense(h, h),
        "k": _dense(h, kv),
        "v": _dense(h, kv),
        "out": _dense(h, h),
        "gate": _dense(h, model.ffn),
        "up": _dense(h, model.ffn),
        "down": _dense(model.ffn, h),
        **{name: jax.ShapeDtypeStruct((h,), jnp.float32) for name in ("norm1", "norm2")},
    }
    looped = model.layers != "unrolled"
    stacked = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct((model.depth, *each.shape), each.dtype), block
    )
    weights = {
        "embed": _dense(model.vocab, h),
        "head": _dense(h, model.vocab),
        "norm": jax.ShapeDtypeStruct((h,), jnp.float32),
        "blocks": stacked if looped else [block] * model.depth,
    }
    apply = partial(_decoder_block, model)
    if model.layers == "remat":
        apply = jax.checkpoint(apply)

    def loss(weights: Tree, tokens: jax.Array) -> jax.Array:
        x = weights["embed"][tokens[:, :-1]].astype(model.dtype)
        if looped:
            x, _ = jax.lax.scan(lambda x, w: (apply(x, w), None), x, weights["blocks"])
        else:
            for block in weights["blocks"]:
                x = apply(x, block)
        logits = _norm(x, weights["norm"]) @ weights["head"].astype(model.dtype)
        logits = logits.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return loss, weights, jax.ShapeDtypeStruct((model.batch, model.tokens + 1), jnp.int32)


def vision_transformer(batch: int, hidden: int, depth: int, heads: int) -> tuple[Loss, Tree, Any]:
    """Patches of 16 x 16 of images of 224 x 224, bidirectional attention with biases and GELU."""
    vector = jax.ShapeDtypeStruct((hidden,), jnp.float32)
    block = {
        "qkv": _dense(hidden, 3 * hidden),
        "out": _dense(hidden, hidden),
        "up": _dense(hidden, 4 * hidden),
        "down": _dense(4 * hidden, hidden),
        "up_bias": jax.ShapeDtypeStruct((4 * hidden,), jnp.float32),
        "down_bias": vector,
        "norm1": vector,
        "norm2": vector,
    }
    weights = {
        "patch": jax.ShapeDtypeStruct((16, 16, 3, hidden), jnp.float32),
        "position": _dense(196, hidden),
        "head": _dense(hidden, 1000),
        "blocks": [block] * depth,
    }

    def apply(x: jax.Array, w: Tree) -> jax.Array:
        def cast(name: str) -> jax.Array:
            return w[name].astype(x.dtype)

        q, k, v = jnp.split(_norm(x, w["norm1"]) @ cast("qkv"), 3, axis=-1)
        q, k, v = (each.reshape(*x.shape[:2], heads, -1) for each in (q, k, v))
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ cast("out")
        y = jax.nn.gelu(_norm(x, w["norm2"]) @ cast("up") + cast("up_bias"))
        return x + y @ cast("down") + cast("down_bias")

    def loss(weights: Tree, data: Any) -> jax.Array:
        images, labels = data
        images, patch = images.astype(jnp.bfloat16), weights["patch"].astype(jnp.bfloat16)
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            images, patch, (16, 16), "VALID", dimension_numbers=dimensions
        )
        x = x.reshape(batch, 196, hidden) + weights["position"].astype(jnp.bfloat16)
        for w in weights["blocks"]:
            x = apply(x, w)
        logits = x.mean(axis=1).astype(jnp.float32) @ weights["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss, weights, _images(batch)


def depthwise_network(batch: int, sizes: Sequence[tuple[int, int]]) -> tuple[Loss, Tree, Any]:
    """As ConvNeXt (arXiv 2201.03545): `sizes` are the channels and blocks of each scale."""
    weights: dict[str, Any] = {"stem": jax.ShapeDtypeStruct((4, 4, 3, sizes[0][0]), jnp.float32)}
    for scale, (width, blocks) in enumerate(sizes):
        weights[f"down{scale}"] = jax.ShapeDtypeStruct(
            (2, 2, sizes[max(scale - 1, 0)][0], width), jnp.float32
        )
        for number in range(blocks):
            weights[f"block{scale}_{number}"] = {
                "depth": jax.ShapeDtypeStruct((7, 7, 1, width), jnp.float32),
                "norm": jax.ShapeDtypeStruct((width,), jnp.float32),
                "up": _dense(width, 4 * width),
                "down": _dense(4 * width, width),
            }
    del weights["down0"]
    weights["head"] = _dense(sizes[-1][0], 1000)

    def convolved(x: jax.Array, kernel: jax.Array, stride: int, groups: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            kernel.astype(x.dtype),
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    def loss(weights: Tree, data: Any) -> jax.Array:
        images, labels = data
        x = convolved(images.astype(jnp.bfloat16), weights["stem"], 4)
        for scale, (width, blocks) in enumerate(sizes):
            if scale:
                x = convolved(x, weights[f"down{scale}"], 2)
            for number in range(blocks):
                w = weights[f"block{scale}_{number}"]
                y = _norm(convolved(x, w["depth"], 1, groups=width), w["norm"])
                y = jax.nn.gelu(y @ w["up"].astype(x.dtype)) @ w["down"].astype(x.dtype)
                x = x + y
        logits = x.mean(axis=(1, 2)).astype(jnp.float32) @ weights["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss, weights, _images(batch)


def mixer(batch: int, hidden: int, depth: int, token_mlp: int) -> tuple[Loss, Tree, Any]:
    """As MLP-Mixer (arXiv 2105.01601), on vectors of 196 patches, in float32."""
    block = {
        "token_up": _dense(196, token_mlp),
        "token_down": _dense(token_mlp, 196),
        "up": _dense(hidden, 4 * hidden),
        "down": _dense(4 * hidden, hidden),
        **{name: jax.ShapeDtypeStruct((hidden,), jnp.float32) for name in ("norm1", "norm2")},
    }
    weights = {
        "patch": _dense(768, hidden),
        "head": _dense(hidden, 1000),
        "blocks": [block] * depth,
    }

    def loss(weights: Tree, data: Any) -> jax.Array:
        images, labels = data
        x = images.reshape(batch, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, 196, 768) @ weights["patch"]
        for w in weights["blocks"]:
            y = _norm(x, w["norm1"]).swapaxes(1, 2)
            x = x + (jax.nn.gelu(y @ w["token_up"]) @ w["token_down"]).swapaxes(1, 2)
            x = x + jax.nn.gelu(_norm(x, w["norm2"]) @ w["up"]) @ w["down"]
        logits = x.mean(axis=1) @ weights["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss, weights, _images(batch)


def _images(batch: int) -> Any:
    return (
        jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    )


def train_step(loss: Loss) -> tuple[Any, Callable[..., Any]]:
    """Adam, and `step(weights, state, data) -> (weights, state, loss)`."""
    optimizer = optax.adam(1e-4)

    def step(weights: Tree, state: Tree, data: Any) -> tuple[Tree, Tree, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, data)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    return optimizer, step


_SMALL = partial(Decoder, 1024, 16, 16, 16, 2816, 32000, 2048)
FUNCTIONS: dict[str, Callable[[], tuple[Loss, Tree, Any]]] = {
    "decoder-300m-b8": partial(decoder, _SMALL(8)),
    "decoder-300m-b8-loop": partial(decoder, _SMALL(8, layers="loop")),
    "decoder-300m-b8-remat": partial(decoder, _SMALL(8, layers="remat")),
    "decoder-300m-b4-f32": partial(decoder, _SMALL(4, dtype=jnp.float32)),
    "decoder-700m-gqa-b4": partial(decoder, Decoder(1536, 20, 16, 4, 4096, 50304, 2048, 4)),
    "vit-b16-b128": partial(vision_transformer, 128, 768, 12, 12),
    "vit-l16-b64": partial(vision_transformer, 64, 1024, 24, 16),
    "convnext-t-b128": partial(depthwise_network, 128, ((96, 3), (192, 3), (384, 9), (768, 3))),
    "mixer-b16-b64-f32": partial(mixer, 64, 768, 12, 384),
}


def bytecode_of(name: str) -> bytes:
    """The step of one of `FUNCTIONS`, for a GPU."""
    loss, weights, data = FUNCTIONS[name]()
    optimizer, step = train_step(loss)
    state = jax.eval_shape(optimizer.init, weights)
    exported = export.export(jax.jit(step, donate_argnums=(0, 1)), platforms=["cuda"])
    return bytes(exported(weights, state, data).mlir_module_serialized)

"""A model of any family as a StableHLO module: one whole training step, without any weight in
memory. The state comes first and is donated; the batch comes last."""

from __future__ import annotations

import io
from functools import partial

import jax

from shardopt.models import deepseek, gpt, llama, moe, wresnet
from shardopt.models.computing import PLAIN, Computing
from shardopt.models.optimizers import adafactor, adamw, momentum
from shardopt.models.specs import DeepseekSpec, GptSpec, LlamaSpec, MoeSpec, Spec
from shardopt.models.train_step import Model, abstract_state, make_step
from shardopt.models.transformer import token_batch


def build(spec: Spec, dtype: str | None = None, how: Computing = PLAIN) -> Model:
    """The model, computing in `dtype` (`f32`, `f16`, `bf16`; by default float16, and float32 for
    Wide-ResNet), with AdamW, Adafactor for mixtures of experts, or momentum for Wide-ResNet. `how`
    is for decoders: a Wide-ResNet has nothing of what it says."""
    dtype16 = dtype or "f16"
    ways = (how.carries_copies, how.clips, how.sums_wide, how.sums_narrow)
    if isinstance(spec, GptSpec | LlamaSpec):
        family = gpt if isinstance(spec, GptSpec) else llama
        inputs, loss = token_batch(spec.batch, spec.sequence), partial(family.loss, how=how)
        weights = family.weights(spec)
        return Model(weights, inputs, loss, adamw(), dtype16, *ways)
    if isinstance(spec, DeepseekSpec):
        inputs = token_batch(spec.batch, spec.sequence)
        loss = partial(deepseek.loss, spec=spec, how=how)
        return Model(deepseek.weights(spec), inputs, loss, adamw(), dtype16, *ways)
    if isinstance(spec, MoeSpec):
        inputs, loss = token_batch(spec.batch, spec.sequence), partial(moe.loss, spec=spec, how=how)
        weights = moe.weights(spec)
        return Model(weights, inputs, loss, adafactor(), dtype16, *ways)
    images = wresnet.image_batch(spec)
    return Model(wresnet.weights(spec), images, wresnet.loss, momentum(), dtype or "f32")


def bytecode(
    spec: Spec, dtype: str | None = None, text: bool = False, how: Computing = PLAIN
) -> bytes:
    """The step as MLIR bytecode, or as text; `dtype` and `how` as for `build`."""
    model = build(spec, dtype, how)
    traced = jax.jit(make_step(model), donate_argnums=0).trace(abstract_state(model), model.batch)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    if text:
        return str(module).encode()
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()

"""A training step of a model: loss, gradients and update, as one function of state and batch.

Mixed precision: weights and optimizer state are float32, a step computes with copies of the weights
in float16 or bfloat16. Alpa's artifact (`alpa/model/model_util.py`) carries the copies from step to
step, and so does a step here if the model says so; else it begins by making them. Either way they
live as long as microbatches run. In float16 the loss is scaled, so that gradients of a large batch
do not vanish; the artifact leaves that out, which changes neither time nor memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardopt.models.optimizers import Optimizer
from shardopt.models.weights import WideSummed, abstract, draw, is_weight

# a power of two changes no digit; much more overflows float16 where few tokens make a batch
LOSS_SCALE = 1024.0
_LARGEST_NORM = 1.0
_HALF = {"f16": jnp.float16, "bf16": jnp.bfloat16}

Tree = Any
Loss = Callable[[Tree, Tree], jax.Array]


@dataclass(frozen=True)
class Model:
    """`weights` and `batch` describe the arguments of `loss(params, batch)`; `dtype` is what a step
    computes in: `f32`, `f16` or `bf16`; `carries_copies` makes copies of the weights in that type
    part of the state, `clips` bounds the norm of gradients, and `sums_wide` takes those that are
    results of products in float32. `sums_narrow` adds gradients up as they are made."""

    weights: Tree
    batch: Tree
    loss: Loss
    optimizer: Optimizer
    dtype: str
    carries_copies: bool = False
    clips: bool = False
    sums_wide: bool = False
    sums_narrow: bool = False


def state_weights(model: Model) -> Tree:
    """What a step carries to the next, as descriptions: optimizer state beside each weight."""
    return jax.tree.map(model.optimizer.keep, model.weights, is_leaf=is_weight)


def abstract_state(model: Model) -> Tree:
    """Shapes and types of the state: no memory is touched."""
    state = {
        "weights": abstract(model.weights, jnp.float32),
        "kept": abstract(state_weights(model), jnp.float32),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    return state | ({"copies": abstract(model.weights, _dtype(model))} if _copies(model) else {})


def first_state(model: Model, seed: int = 0) -> Tree:
    """Arrays to begin with, for models small enough to run."""
    weights = draw(model.weights, seed)
    state = {
        "weights": weights,
        "kept": draw(state_weights(model)),
        "step": jnp.zeros((), jnp.int32),
    }
    return state | ({"copies": _cast(weights, model)} if _copies(model) else {})


def _copies(model: Model) -> bool:
    return model.carries_copies and model.dtype != "f32"


def _dtype(model: Model) -> Any:
    return _HALF.get(model.dtype, jnp.float32)


def _cast(weights: Tree, model: Model) -> Tree:
    return jax.tree.map(lambda weight: weight.astype(_dtype(model)), weights)


def make_step(model: Model) -> Callable[[Tree, Tree], tuple[Tree, jax.Array]]:
    """`step(state, batch) -> (state, loss)`."""
    scale = LOSS_SCALE if model.dtype == "f16" else 1.0

    def scaled_loss(varied: Tree, params: Tree, batch: Tree) -> jax.Array:
        return model.loss(_with_sums(model, varied, params), batch) * scale

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        params = state["copies"] if _copies(model) else _cast(state["weights"], model)
        loss, grads = jax.value_and_grad(scaled_loss)(_varied(model, params), params, batch)
        count = state["step"] + 1
        pace = model.optimizer.pace(count)
        leaves = jax.tree.leaves(state["weights"])
        shape: Any = jax.tree.structure(state["weights"])
        kept = shape.flatten_up_to(state["kept"])
        leaves_of_grads = [_summed(grad, model) for grad in shape.flatten_up_to(grads)]
        factor = _clipping(leaves_of_grads, scale) if model.clips else None
        pairs = [
            model.optimizer.update(_unscaled(grad, scale, factor), old, weight, pace)
            for grad, old, weight in zip(leaves_of_grads, kept, leaves, strict=True)
        ]
        full = shape.unflatten([weight for weight, _ in pairs])
        kept = shape.unflatten([new for _, new in pairs])
        state = {"weights": full, "kept": kept, "step": count}
        return state | ({"copies": _handed_on(full, model)} if _copies(model) else {}), loss / scale

    return step


def _handed_on(weights: Tree, model: Model) -> Tree:
    """Copies for the next step, cast where the weights are and gathered as copies: a result that
    replaces an argument is made as it lies, here by a rounding that changes no number."""
    return jax.tree.map(_rounded, _cast(weights, model))


def _summed(grad: jax.Array, model: Model) -> jax.Array:
    """A gradient that is whole before it is cast: terms of microbatches and devices are added up
    behind a cast to a wider type else, which no rounding commutes with."""
    return _rounded(grad) if model.sums_narrow and grad.dtype != jnp.float32 else grad


def _rounded(value: jax.Array) -> jax.Array:
    """To the type that it has."""
    kind = jnp.finfo(value.dtype)
    return jax.lax.reduce_precision(value, kind.nexp, kind.nmant)


def _varied(model: Model, params: Tree) -> Tree:
    """What gradients are taken of: the weights, or float32 zeros for those whose sums are wide."""
    if not _sums_wide(model):
        return params

    def of(weight: Any, param: jax.Array) -> jax.Array:
        return jnp.zeros(weight.shape, jnp.float32) if weight.multiplied else param

    return jax.tree.map(of, model.weights, params, is_leaf=is_weight)


def _with_sums(model: Model, varied: Tree, params: Tree) -> Tree:
    if not _sums_wide(model):
        return varied

    def of(weight: Any, each: jax.Array, param: jax.Array) -> Any:
        return WideSummed(param, each) if weight.multiplied else each

    return jax.tree.map(of, model.weights, varied, params, is_leaf=is_weight)


def _sums_wide(model: Model) -> bool:
    return model.sums_wide and model.dtype != "f32"


def _clipping(grads: list[jax.Array], scale: float) -> jax.Array:
    """By what their norm is too large, as a factor."""
    squares = [jnp.sum(_unscaled(grad, scale) ** 2) for grad in grads]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    return _LARGEST_NORM / jnp.maximum(norm, _LARGEST_NORM)


def _unscaled(grad: jax.Array, scale: float, factor: jax.Array | None = None) -> jax.Array:
    """Of the loss alone, times a factor; behind a barrier then, as a compiler would multiply within
    the update else."""
    grad = grad.astype(jnp.float32) / scale
    return grad if factor is None else jax.lax.optimization_barrier(grad * factor)

"""Steps of Flax NNX, which change the modules that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.programs import models
from benchmarks.programs.models import WIDTH
from benchmarks.programs.program import Trial


def _arrays(state: Any) -> Any:
    return nnx.to_pure_dict(nnx.state(state))


class _Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dropout: float = 0.0, norm: bool = False) -> None:
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(4)])
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x + nnx.tanh(layer(x))
        x = x if self.norm is None else self.norm(x)
        return x if self.dropout is None else self.dropout(x)


def _mse(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


def _train(model: Any, optimizer: Any, *batch: Any, loss: Callable[..., Any] = _mse) -> jax.Array:
    value, grads = nnx.value_and_grad(loss)(model, *batch)
    optimizer.update(model, grads)
    return value


def _mutating(step: Any, state: Any, batches: Any = None) -> Trial:
    rows = models.rows() if batches is None else batches
    return Trial(step, state, rows, after="mutated", jit=nnx.jit, arrays=_arrays)


def _trial(model: Any, step: Any = _train, batches: Any = None) -> Trial:
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    return _mutating(step, (model, optimizer), batches)


def plain() -> Trial:
    return _trial(_Mlp(nnx.Rngs(0)))


def jitted() -> Trial:
    return _trial(_Mlp(nnx.Rngs(0)), nnx.jit(_train))


def dropout() -> Trial:
    return _trial(_Mlp(nnx.Rngs(0), dropout=0.2))


def batch_norm() -> Trial:
    return _trial(_Mlp(nnx.Rngs(0), norm=True))


def metrics() -> Trial:
    """A counter of metrics, which the step updates."""

    def step(model: Any, optimizer: Any, kept: Any, x: jax.Array, y: jax.Array) -> None:
        kept.update(values=_train(model, optimizer, x, y))

    model = _Mlp(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    return _mutating(step, (model, optimizer, nnx.metrics.Average()))


class _Stack(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, remat: bool) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> nnx.Linear:
            return nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        self.layers, self.remat = make(rngs), remat

    def __call__(self, x: jax.Array) -> jax.Array:
        def apply(x: jax.Array, layer: nnx.Linear) -> jax.Array:
            return x + nnx.tanh(layer(x))

        body = nnx.remat(apply) if self.remat else apply
        return nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


def scan() -> Trial:
    return _trial(_Stack(nnx.Rngs(0), remat=False))


def scan_remat() -> Trial:
    return _trial(_Stack(nnx.Rngs(0), remat=True))


class _Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(32, WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.embed.attend(x)


def attention() -> Trial:
    def loss(model: Any, tokens: jax.Array) -> jax.Array:
        return models.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    def step(model: Any, optimizer: Any, tokens: jax.Array) -> jax.Array:
        return _train(model, optimizer, tokens, loss=loss)

    return _trial(_Attention(nnx.Rngs(0)), step, models.tokens(9))


def lora() -> Trial:
    """`LoRALinear`, of which only the adapters are trained."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layers = nnx.List(
                [nnx.LoRALinear(WIDTH, WIDTH, lora_rank=2, rngs=rngs) for _ in range(3)]
            )

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = x + nnx.tanh(layer(x))
            return x

    def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        trained = nnx.DiffState(0, nnx.LoRAParam)
        value, grads = nnx.value_and_grad(_mse, argnums=trained)(model, x, y)
        optimizer.update(model, grads)
        return value

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.LoRAParam)
    return _mutating(step, (model, optimizer))


def evaluation() -> Trial:
    def step(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return _mse(model, x, y)

    return _mutating(step, (_Mlp(nnx.Rngs(0)),))


def functional() -> Trial:
    """`split` and `merge` by hand, under `jax.jit`."""
    graph, state = nnx.split(_Mlp(nnx.Rngs(0)))

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(lambda state: _mse(nnx.merge(graph, state), x, y))(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    return Trial(step, (state,), models.rows())


def ensemble() -> Trial:
    """Three models with one batch, made and trained under `nnx.vmap`."""

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs: nnx.Rngs) -> Any:
        return _Mlp(rngs)

    def step(models: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(models: Any) -> jax.Array:
            return nnx.vmap(_mse, in_axes=(0, None, None))(models, x, y).sum()

        value, grads = nnx.value_and_grad(loss)(models)
        optimizer.update(models, grads)
        return value

    return _trial(make(nnx.Rngs(0)), step)


class _Average(nnx.Variable[Any]):
    """What goes on beside the parameters."""


class _Averaged(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.net = _Mlp(rngs)
        self.mean = _Average(jnp.zeros(WIDTH))
        self.calls = _Average(jnp.int32(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        out = self.net(x - self.mean[...])
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(x.mean(0))
        self.calls[...] += 1
        return out


def own_variables() -> Trial:
    return _trial(_Averaged(nnx.Rngs(0)))


def recurrent() -> Trial:
    model = nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=nnx.Rngs(0)))
    return _trial(model, batches=models.rows(5, WIDTH))


PROGRAMS = {
    "nnx.vmap, an ensemble": ensemble,
    "variables of their own kind": own_variables,
    "nnx.RNN of GRUCell": recurrent,
    "Optimizer": plain,
    "under nnx.jit": jitted,
    "Dropout with rngs": dropout,
    "BatchNorm": batch_norm,
    "metrics": metrics,
    "nnx.scan": scan,
    "nnx.scan of nnx.remat": scan_remat,
    "attention, tied embedding": attention,
    "LoRALinear": lora,
    "evaluation step": evaluation,
    "split and merge by hand": functional,
}

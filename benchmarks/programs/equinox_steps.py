"""Steps of Equinox, whose modules hold arrays and more."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH
from benchmarks.programs.program import Trial

_KEY = jax.random.key(0)


def _arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def _mlp() -> Any:
    return eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 3, activation=jnp.tanh, key=_KEY)


def _mse(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def _trial(model: Any, step: Any, *state: Any, batches: Any = None) -> Trial:
    rows = models.rows() if batches is None else batches
    return Trial(step, (model, *state), rows, jit=eqx.filter_jit, arrays=_arrays)


def _with_adam(model: Any, loss: Any = _mse, batches: Any = None, *, jitted: bool = False) -> Trial:
    optimizer = optax.adam(1e-2)

    def step(model: Any, state: Any, *batch: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, *batch)
        updates, state = optimizer.update(grads, state, _arrays(model))
        return eqx.apply_updates(model, updates), state, value

    function = eqx.filter_jit(step) if jitted else step
    return _trial(model, function, optimizer.init(_arrays(model)), batches=batches)


def plain() -> Trial:
    return _with_adam(_mlp())


def filter_jit() -> Trial:
    return _with_adam(_mlp(), jitted=True)


def convolutions() -> Trial:
    """Images NCHW under vmap."""
    first, second = jax.random.split(_KEY)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 8, 3, stride=2, padding=1, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(128, 4, key=second),
        ]
    )

    def loss(model: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return models.cross_entropy(jax.vmap(model)(x), labels)

    return _with_adam(model, loss, tuple((x.transpose(0, 3, 1, 2), y) for x, y in models.images()))


def dropout() -> Trial:
    """A key for every example."""
    mlp, drop = _mlp(), eqx.nn.Dropout(0.2)

    def loss(model: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        def each(x: jax.Array, key: jax.Array) -> jax.Array:
            return drop(model(x), key=key)

        return jnp.mean((jax.vmap(each)(x, jax.random.split(key, BATCH)) - y) ** 2)

    batches = tuple((*batch, jax.random.key(k)) for k, batch in enumerate(models.rows()))
    return _with_adam(mlp, loss, batches)


class _Normed(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self) -> None:
        first, last = jax.random.split(_KEY)
        self.first = eqx.nn.Linear(WIDTH, WIDTH, key=first)
        self.norm = eqx.nn.BatchNorm(WIDTH, axis_name="batch", mode="batch")
        self.last = eqx.nn.Linear(WIDTH, WIDTH, key=last)

    def __call__(self, x: jax.Array, state: Any) -> Any:
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


def batch_norm() -> Trial:
    """`make_with_state`: statistics of a batch beside the model."""
    model, state = eqx.nn.make_with_state(_Normed)()

    def step(model: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(model: Any) -> Any:
            apply = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            out, new = apply(x, state)
            return jnp.mean((out - y) ** 2), new

        (value, new), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model)
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        return eqx.apply_updates(model, updates), new, value

    return _trial(model, step, state)


def frozen() -> Trial:
    """Only the last layer is trained, by `partition`."""
    model = _mlp()
    trained = eqx.tree_at(
        lambda tree: (tree.layers[-1].weight, tree.layers[-1].bias),
        jax.tree.map(lambda _: False, model),
        (True, True),
    )

    def step(model: Any, x: jax.Array, y: jax.Array) -> Any:
        moving, fixed = eqx.partition(model, trained)

        def loss(moving: Any) -> jax.Array:
            return _mse(eqx.combine(moving, fixed), x, y)

        value, grads = eqx.filter_value_and_grad(loss)(moving)
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        return eqx.apply_updates(model, updates), value

    return _trial(model, step)


def scan_over_layers() -> Trial:
    """Layers made under `filter_vmap`, applied by scan."""
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(WIDTH, WIDTH, key=key))(
        jax.random.split(_KEY, 3)
    )

    def loss(layers: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        arrays, rest = eqx.partition(layers, eqx.is_array)

        def apply(x: jax.Array, arrays: Any) -> Any:
            return x + jnp.tanh(jax.vmap(eqx.combine(arrays, rest))(x)), None

        return jnp.mean((jax.lax.scan(apply, x, arrays)[0] - y) ** 2)

    return _with_adam(layers, loss)


def recurrent() -> Trial:
    cell = eqx.nn.GRUCell(WIDTH, WIDTH, key=_KEY)

    def loss(cell: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def each(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(WIDTH), x)[0]

        return jnp.mean((jax.vmap(each)(x) - y[:, 0]) ** 2)

    return _with_adam(cell, loss, models.rows(6, WIDTH))


def evaluation() -> Trial:
    model = eqx.nn.inference_mode(_mlp())
    return Trial(_mse, (model,), models.rows(), after="kept", jit=eqx.filter_jit, arrays=_arrays)


def error_if() -> Trial:
    """`eqx.error_if`, which is a callback."""

    def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = eqx.error_if(x, jnp.any(jnp.isnan(x)), "not a number")
        return _mse(model, x, y)

    return _with_adam(_mlp(), loss)


def ensemble() -> Trial:
    """Three models made by filter_vmap, each with the whole batch."""
    models_ = eqx.filter_vmap(lambda key: eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 2, key=key))(
        jax.random.split(_KEY, 3)
    )

    def loss(models_: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return eqx.filter_vmap(_mse, in_axes=(eqx.if_array(0), None, None))(models_, x, y).sum()

    return _with_adam(models_, loss)


class _Checkpointed(eqx.Module):
    layers: list[Any]
    attention: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(x, x, x)
        for layer in self.layers:
            x = eqx.filter_checkpoint(lambda layer, x: x + jnp.tanh(jax.vmap(layer)(x)))(layer, x)
        return x


def checkpointed() -> Trial:
    """Attention, and layers under filter_checkpoint."""
    keys = jax.random.split(_KEY, 4)
    attention = eqx.nn.MultiheadAttention(4, WIDTH, key=keys[0])
    model = _Checkpointed([eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys[1:]], attention)
    return _with_adam(model, batches=models.rows(5, WIDTH))


PROGRAMS = {
    "filter_vmap, an ensemble": ensemble,
    "attention, filter_checkpoint": checkpointed,
    "filter_value_and_grad": plain,
    "under filter_jit": filter_jit,
    "convolutions NCHW": convolutions,
    "Dropout, a key for each example": dropout,
    "BatchNorm with state": batch_norm,
    "partition, most is frozen": frozen,
    "scan over layers": scan_over_layers,
    "GRU": recurrent,
    "inference_mode": evaluation,
    "error_if": error_if,
}

"""Steps of plain JAX: how they are called, and how they say what is computed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs import models
from benchmarks.programs.program import STEPS, Trial

_sgd = models.sgd_step(models.squared_error)


def plain() -> Trial:
    return Trial(_sgd, (models.mlp(),), models.rows())


def static_argument() -> Trial:
    def step(params: Any, x: jax.Array, y: jax.Array, activation: str, power: int) -> Any:
        function = getattr(jnp, activation)

        def loss(params: Any) -> jax.Array:
            h = x
            for layer in params:
                h = h + function(h @ layer["w"])
            return jnp.mean(jnp.abs(h - y) ** power)

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), value

    batches = tuple((*batch, "tanh", 2) for batch in models.rows())
    return Trial(step, (models.mlp(),), batches, options={"static_argnums": (3, 4)})


def keyword_arguments() -> Trial:
    def step(params: Any, *, x: jax.Array, y: jax.Array) -> Any:
        return _sgd(params, x, y)

    x, y = models.rows()[0]
    return Trial(step, (models.mlp(),), ((),) * STEPS, keywords={"x": x, "y": y})


class _Trainer:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def step(self, params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        return models.descend(params, grads, self.rate), value


def method() -> Trial:
    return Trial(_Trainer(0.05).step, (models.mlp(),), models.rows())


def partial() -> Trial:
    def step(rate: float, params: Any, x: jax.Array, y: jax.Array) -> Any:
        return _Trainer(rate).step(params, x, y)

    return Trial(functools.partial(step, 0.05), (models.mlp(),), models.rows())


class _State(NamedTuple):
    params: Any
    calls: jax.Array
    frozen: jax.Array
    momentum: Any


def state_of_many_types() -> Trial:
    """A tuple with None, a counter and a flag."""

    def step(state: _State, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(state.params, x, y)
        rate = jnp.where(state.frozen, 0.0, 0.1)
        params = jax.tree.map(lambda p, g: p - rate * g, state.params, grads)
        calls = state.calls + 1
        return _State(params, calls, calls >= 2, None), value

    state = _State(models.mlp(), jnp.int32(0), jnp.bool_(False), None)
    return Trial(step, (state,), models.rows())


def typed_keys() -> Trial:
    """Dropout with a key that is part of the state."""

    def step(params: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        key, mine = jax.random.split(key)

        def loss(params: Any) -> jax.Array:
            kept = jax.random.bernoulli(mine, 0.9, x.shape)
            return models.squared_error(params, jnp.where(kept, x / 0.9, 0.0), y)

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), key, value

    return Trial(step, (models.mlp(), jax.random.key(3)), models.rows())


def raw_keys() -> Trial:
    """A key of each step, made by the caller, and noise on what is read."""

    def step(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
        return _sgd(params, x + 0.1 * jax.random.normal(key, x.shape), y)

    batches = tuple((*batch, jax.random.PRNGKey(k)) for k, batch in enumerate(models.rows()))
    return Trial(step, (models.mlp(),), batches)


def _loss_with(policy: Any) -> Any:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(x: jax.Array, layer: Any) -> jax.Array:
            return x + jnp.tanh(x @ layer["w"] + layer["b"])

        for each in params:
            x = jax.checkpoint(layer, policy=policy)(x, each)
        return jnp.mean((x - y) ** 2)

    return loss


def checkpoint_dots() -> Trial:
    step = models.sgd_step(_loss_with(jax.checkpoint_policies.checkpoint_dots))
    return Trial(step, (models.mlp(),), models.rows())


def checkpoint_nothing() -> Trial:
    step = models.sgd_step(_loss_with(jax.checkpoint_policies.nothing_saveable))
    return Trial(step, (models.mlp(),), models.rows())


def custom_vjp() -> Trial:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-2, 1e-2),))

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            x = clipped(x + jnp.tanh(x @ layer["w"] + layer["b"]))
        return jnp.mean((x - y) ** 2)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def vmap_over_examples() -> Trial:
    """A loss of one example, mapped; gradients of each are clipped before the mean."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def each(x: jax.Array, y: jax.Array) -> Any:
            value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return value, jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), grads)

        values, grads = jax.vmap(each)(x, y)
        return models.descend(params, jax.tree.map(lambda g: g.mean(0), grads)), values.mean()

    return Trial(step, (models.mlp(),), models.rows())


def many_outputs() -> Trial:
    """Means, a sum, a maximum, predictions of every row, and norms of gradients."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            out = models.apply_mlp(params, x)
            return jnp.mean((out - y) ** 2), out

        (value, out), grads = jax.value_and_grad(loss, has_aux=True)(params)
        norms = jax.tree.map(jnp.linalg.norm, grads)
        metrics = {"loss": value, "largest": out.max(), "hits": jnp.sum(out > y), "norms": norms}
        return models.descend(params, grads), metrics, out.argmax(-1), None

    return Trial(step, (models.mlp(),), models.rows())


def numpy_arguments() -> Trial:
    """A batch of NumPy arrays, and a learning rate that is a number of Python."""

    def step(params: Any, x: Any, y: Any, rate: Any) -> Any:
        value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
        return models.descend(params, grads, rate), value

    batches = tuple(
        (np.asarray(x), np.asarray(y), 0.1 / (k + 1)) for k, (x, y) in enumerate(models.rows())
    )
    return Trial(step, (models.mlp(),), batches)


def dictionary_batch() -> Trial:
    def step(params: Any, batch: Any) -> Any:
        loss = models.squared_error(params, batch["x"], batch["y"])
        assert batch["mask"] is None
        grads = jax.grad(models.squared_error)(params, batch["x"], batch["y"])
        return models.descend(params, grads), loss

    batches = tuple(({"x": x, "y": y, "mask": None},) for x, y in models.rows())
    return Trial(step, (models.mlp(),), batches)


def last_batch_is_smaller() -> Trial:
    *full, (x, y) = models.rows()
    return Trial(_sgd, (models.mlp(),), (*full, (x[:6], y[:6])))


def last_batch_is_odd() -> Trial:
    *full, (x, y) = models.rows()
    return Trial(_sgd, (models.mlp(),), (*full, (x[:5], y[:5])))


def evaluation() -> Trial:
    """A step that trains nothing: loss and hits of a batch."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        out = models.apply_mlp(params, x)
        return jnp.mean((out - y) ** 2), jnp.sum(out.argmax(-1) == y.argmax(-1))

    return Trial(step, (models.mlp(),), models.rows(), after="kept")


def debug_print() -> Trial:
    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        params, loss = _sgd(params, x, y)
        jax.debug.print("loss {}", loss)
        return params, loss

    return Trial(step, (models.mlp(),), models.rows())


def pure_callback() -> Trial:
    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return _sgd(params, jax.pure_callback(np.sin, kind, x), y)

    return Trial(step, (models.mlp(),), models.rows())


def io_callback() -> Trial:
    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        params, loss = _sgd(params, x, y)
        jax.experimental.io_callback(lambda value: None, None, loss)
        return params, loss

    return Trial(step, (models.mlp(),), models.rows())


def shard_map_inside() -> Trial:
    """A mesh of the user's in the middle of the step."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = jax.sharding.PartitionSpec("data")

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        doubled = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=spec, out_specs=spec)(x)
        return _sgd(params, doubled, y)

    return Trial(step, (models.mlp(),), models.rows())


PROGRAMS = {
    "plain step": plain,
    "static arguments": static_argument,
    "keyword arguments": keyword_arguments,
    "method": method,
    "functools.partial": partial,
    "state with None, int and bool": state_of_many_types,
    "typed keys in the state, dropout": typed_keys,
    "raw keys as arguments, noise": raw_keys,
    "checkpoint, checkpoint_dots": checkpoint_dots,
    "checkpoint, nothing_saveable": checkpoint_nothing,
    "custom_vjp": custom_vjp,
    "vmap, clipped gradients of examples": vmap_over_examples,
    "many outputs": many_outputs,
    "NumPy batch, rate as a number": numpy_arguments,
    "batch as a dictionary with None": dictionary_batch,
    "last batch smaller": last_batch_is_smaller,
    "last batch odd": last_batch_is_odd,
    "evaluation step": evaluation,
    "jax.debug.print": debug_print,
    "pure_callback": pure_callback,
    "io_callback": io_callback,
    "shard_map inside": shard_map_inside,
}

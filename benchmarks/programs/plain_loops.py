"""Steps of plain JAX with loops and branches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs import models
from benchmarks.programs.models import WIDTH, weights
from benchmarks.programs.program import Trial


def _stacked() -> dict[str, jax.Array]:
    return {"w": jnp.stack([weights(k, WIDTH, WIDTH) for k in range(4)])}


def _scanned(params: Any, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, params["w"])[0]


def _scan_loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((_scanned(params, x) - y) ** 2)


def scan_over_layers() -> Trial:
    return Trial(models.sgd_step(_scan_loss), (_stacked(),), models.rows())


def scan_over_layers_rolled() -> Trial:
    step = models.sgd_step(_scan_loss)
    return Trial(step, (_stacked(),), models.rows(), planning={"unroll": False})


def scan_with_checkpoint() -> Trial:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w), None))
        return jnp.mean((lax.scan(layer, x, params["w"])[0] - y) ** 2)

    return Trial(models.sgd_step(loss), (_stacked(),), models.rows())


def scan_over_time() -> Trial:
    """A recurrent cell over 160 positions: too many to write out."""
    params = {
        "w": 0.3 * weights(0, WIDTH, WIDTH),
        "v": weights(1, WIDTH, WIDTH),
        "u": weights(2, WIDTH, WIDTH),
    }

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(h @ params["w"] + x @ params["v"])
            return h, None

        h = lax.scan(cell, jnp.zeros((x.shape[0], WIDTH)), jnp.swapaxes(x, 0, 1))[0]
        return jnp.mean((h @ params["u"] - y[:, 0]) ** 2)

    return Trial(models.sgd_step(loss), (params,), models.rows(160, WIDTH))


def while_loop() -> Trial:
    """How often the loop runs depends on weights."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        scale = lax.while_loop(
            lambda s: s * jnp.sum(params[0]["w"] ** 2) > 1.0,
            lambda s: s * 0.7,
            jnp.float32(1.0),
        )
        return models.squared_error(params, x * lax.stop_gradient(scale), y)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def while_loop_on_rows() -> Trial:
    """Each row goes on until it is small; the loop ends with the last of them."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        x = lax.while_loop(
            lambda x: jnp.any(jnp.abs(x) > 1.0), lambda x: jnp.where(jnp.abs(x) > 1.0, x / 2, x), x
        )
        return models.sgd_step(models.squared_error)(params, x, y)

    return Trial(step, (models.mlp(),), models.rows())


def fori_loop() -> Trial:
    """Newton steps with a product of matrices in each, on every row."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        x = lax.fori_loop(0, 200, lambda k, x: 0.9 * x + 0.1 * jnp.tanh(x @ params[0]["w"]), x)
        return models.sgd_step(models.squared_error)(params, lax.stop_gradient(x), y)

    return Trial(step, (models.mlp(),), models.rows())


def cond_on_state() -> Trial:
    """Another loss every second step."""

    def step(params: Any, count: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            out = models.apply_mlp(params, x)
            return jnp.mean(lax.cond(count % 2 == 0, lambda d: d**2, lambda d: jnp.abs(d), out - y))

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), count + 1, value

    return Trial(step, (models.mlp(), jnp.int32(0)), models.rows())


def cond_on_batch() -> Trial:
    """Which branch is taken depends on the whole batch."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = lax.cond(jnp.mean(x) > 0, lambda x: jnp.sin(x), lambda x: 2 * x, x)
        return models.squared_error(params, x, y)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def cond_in_the_middle() -> Trial:
    """The branch is chosen by activations of the whole batch."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = models.apply_mlp(params[:2], x)
        h = lax.cond(jnp.mean(h) > 0, lambda h: jnp.sin(h), lambda h: 2 * h, h)
        return models.squared_error(params[2:], h, y)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def switch_of_rows() -> Trial:
    """An expert for every row, under vmap."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        branches = [lambda r, w=layer["w"]: jnp.tanh(r @ w) for layer in params]
        kind = jnp.argmax(x[:, :4], axis=1)
        out = jax.vmap(lambda k, row: lax.switch(k, branches, row))(kind, x)
        return jnp.mean((out - y) ** 2)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def accumulation() -> Trial:
    """Gradients of four parts, summed by a scan that the user wrote."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        parts = tuple(each.reshape(4, -1, WIDTH) for each in (x, y))

        def body(sums: Any, part: Any) -> Any:
            found = jax.value_and_grad(models.squared_error)(params, *part)
            return jax.tree.map(jnp.add, sums, found), None

        zeros = (0.0, jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = lax.scan(body, zeros, parts)
        return models.descend(params, jax.tree.map(lambda g: g / 4, grads)), loss / 4

    return Trial(step, (models.mlp(),), models.rows(), microbatches=4)


def accumulation_in_python() -> Trial:
    """Gradients of two halves, summed by a loop of Python."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        first = jax.value_and_grad(models.squared_error)(params, x[:4], y[:4])
        second = jax.value_and_grad(models.squared_error)(params, x[4:], y[4:])
        loss, grads = jax.tree.map(lambda a, b: (a + b) / 2, first, second)
        return models.descend(params, grads), loss

    return Trial(step, (models.mlp(),), models.rows())


def accumulation_by_map() -> Trial:
    """The mean over a stack of gradients of four parts."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        parts = tuple(each.reshape(4, -1, WIDTH) for each in (x, y))
        of_part = jax.value_and_grad(models.squared_error)
        found = lax.map(lambda part: of_part(params, *part), parts)
        loss, grads = jax.tree.map(lambda each: each.mean(0), found)
        return models.descend(params, grads), loss

    return Trial(step, (models.mlp(),), models.rows(), microbatches=4)


def gradient_of_a_scan() -> Trial:
    """The loss is summed over four parts, each of which is computed again for its gradient."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        parts = tuple(each.reshape(4, -1, WIDTH) for each in (x, y))
        of_part = jax.checkpoint(models.squared_error)
        return lax.scan(lambda sum, part: (sum + of_part(params, *part), None), 0.0, parts)[0] / 4

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows(), microbatches=4)


def first_part_apart() -> Trial:
    """Three parts are added to the gradients of the first."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        of_part = jax.value_and_grad(models.squared_error)

        def add(part: jax.Array, sums: Any) -> Any:
            rows = (lax.dynamic_slice_in_dim(each, part * 2, 2) for each in (x, y))
            return jax.tree.map(jnp.add, sums, of_part(params, *rows))

        sums = lax.fori_loop(1, 4, add, of_part(params, x[:2], y[:2]))
        loss, grads = jax.tree.map(lambda each: each / 4, sums)
        return models.descend(params, grads), loss

    return Trial(step, (models.mlp(),), models.rows(), microbatches=4)


def epoch() -> Trial:
    """Four steps of descent in a scan."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def descend(params: Any, part: Any) -> Any:
            loss, grads = jax.value_and_grad(models.squared_error)(params, *part)
            return models.descend(params, grads), loss

        parts = tuple(each.reshape(4, -1, WIDTH) for each in (x, y))
        return lax.scan(descend, params, parts)

    return Trial(step, (models.mlp(),), models.rows())


def map_over_rows() -> Trial:
    """`lax.map` in parts of the batch."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        out = lax.map(lambda row: models.apply_mlp(params, row), x, batch_size=4)
        return jnp.mean((out - y) ** 2)

    return Trial(models.sgd_step(loss), (models.mlp(),), models.rows())


def associative_scan() -> Trial:
    """A linear recurrence over positions, in parallel."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        gate = jax.nn.sigmoid(x @ params["g"])
        h = lax.associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (gate, x @ params["w"]), axis=1
        )[1]
        return jnp.mean((h @ params["o"] - y) ** 2)

    params = {name: weights(k, WIDTH, WIDTH) for k, name in enumerate("gwo")}
    return Trial(models.sgd_step(loss), (params,), models.rows(8, WIDTH))


def implicit_layer() -> Trial:
    """A fixed point of 20 iterations, differentiated by custom_vjp."""

    @jax.custom_vjp
    def solve(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 20, lambda _, z: jnp.tanh(z @ w * 0.2 + x), jnp.zeros_like(x))

    def forward(w: jax.Array, x: jax.Array) -> Any:
        z = solve(w, x)
        return z, (w, x, z)

    def backward(kept: Any, g: jax.Array) -> Any:
        w, x, z = kept
        _, pull = jax.vjp(lambda w, x, z: jnp.tanh(z @ w * 0.2 + x), w, x, z)
        u = lax.fori_loop(0, 20, lambda _, u: g + pull(u)[2], g)
        return pull(u)[:2]

    solve.defvjp(forward, backward)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((solve(params["w"], x @ params["v"]) @ params["v"] - y) ** 2)

    params = {"w": weights(0, WIDTH, WIDTH), "v": weights(1, WIDTH, WIDTH)}
    return Trial(models.sgd_step(loss), (params,), models.rows())


def sampled_rollout() -> Trial:
    """REINFORCE: actions are sampled along a rollout, then the policy is improved."""

    def rollout(params: Any, start: jax.Array, key: jax.Array) -> Any:
        def move(state: jax.Array, key: jax.Array) -> Any:
            logits = models.apply_mlp(params, state)[:, :4]
            action = jax.random.categorical(key, logits)
            after = 0.9 * state + 0.1 * jax.nn.one_hot(action, WIDTH)
            return after, (state, action, after[:, 0])

        return lax.scan(move, start, jax.random.split(key, 8))[1]

    def step(params: Any, key: jax.Array, start: jax.Array) -> Any:
        key, mine = jax.random.split(key)
        states, actions, rewards = rollout(params, start, mine)

        def loss(params: Any) -> jax.Array:
            logits = models.apply_mlp(params, states)[..., :4]
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)
            return -jnp.mean(chosen[..., 0] * rewards)

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), key, value

    starts = tuple((x,) for x, _ in models.rows())
    return Trial(step, (models.mlp(2), jax.random.key(5)), starts)


def q_learning() -> Trial:
    """A target network in the state that follows the weights."""

    def step(params: Any, target: Any, x: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            values = models.apply_mlp(params, x)
            best = reward + 0.9 * models.apply_mlp(target, x).max(-1)
            taken = jnp.take_along_axis(values, action[:, None], -1)[:, 0]
            return jnp.mean((taken - lax.stop_gradient(best)) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        params = models.descend(params, grads)
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, target, params)
        return params, target, value

    batches = tuple((x, jnp.abs(y[:, 0]).astype(jnp.int32), y[:, 1]) for x, y in models.rows())
    return Trial(step, (models.mlp(), models.mlp()), batches)


PROGRAMS = {
    "scan over layers": scan_over_layers,
    "scan over layers, rolled": scan_over_layers_rolled,
    "scan with checkpoint": scan_with_checkpoint,
    "scan over 160 positions": scan_over_time,
    "while_loop on weights": while_loop,
    "while_loop on rows": while_loop_on_rows,
    "fori_loop of 200 products": fori_loop,
    "cond on a counter": cond_on_state,
    "cond on the mean of the batch": cond_on_batch,
    "cond on activations": cond_in_the_middle,
    "vmap of switch": switch_of_rows,
    "accumulation by scan": accumulation,
    "accumulation in Python": accumulation_in_python,
    "accumulation by lax.map": accumulation_by_map,
    "gradient of a scan over parts": gradient_of_a_scan,
    "first part before the loop": first_part_apart,
    "several steps in a scan": epoch,
    "lax.map with batch_size": map_over_rows,
    "associative_scan": associative_scan,
    "implicit layer, custom_vjp of loops": implicit_layer,
    "REINFORCE with a rollout": sampled_rollout,
    "Q-learning with a target network": q_learning,
}

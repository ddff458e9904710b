"""Random steps that reduce, mix, move and pair rows of the batch, in loops and branches too: cut into microbatches they are
exact, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import module_bytecode
from shardopt.runtime.reference import run_reference
from tests.draws import draws
from tests.unit.passes.loop_expansion import expand_loop
from tests.unit.passes.split_checks import lower, normal, split

ROWS, WIDTH = 4, 3

# Of two values (rows x width, width x width or width) and a weight (width x width); what does not
# fit is passed over.
OPS: dict[str, Callable[..., jax.Array]] = {
    "tanh": lambda a, b, w: jnp.tanh(a),
    "add": lambda a, b, w: a + b,
    "multiply": lambda a, b, w: a * b,
    "layer": lambda a, b, w: jnp.tanh(a @ w),
    "transposed layer": lambda a, b, w: a @ w.T,
    "gram": lambda a, b, w: a.T @ b,
    "pairs": lambda a, b, w: (a @ b.T) @ b,
    "sum of rows": lambda a, b, w: a.sum(0),
    "mean of rows": lambda a, b, w: a.mean(0),
    "largest": lambda a, b, w: a.max(0),
    "product": lambda a, b, w: a.prod(0),
    "softmax": lambda a, b, w: jax.nn.softmax(a, axis=-1),
    "softmax of rows": lambda a, b, w: jax.nn.softmax(a, axis=0),
    "reversed": lambda a, b, w: a[::-1],
    "shifted": lambda a, b, w: jnp.concatenate([a[1:], a[:1]]),
    "cumulated": lambda a, b, w: jnp.cumsum(a, axis=0),
    "sorted": lambda a, b, w: jnp.sort(a, axis=0),
    "numbered": lambda a, b, w: a * jnp.arange(a.shape[0], dtype=jnp.float32)[:, None],
    "masked": lambda a, b, w: jnp.where(jnp.arange(a.shape[0])[:, None] % 2 == 0, a, b),
    "padded": lambda a, b, w: jnp.pad(a, ((1, 0), (0, 0)))[:-1],
    "joined": lambda a, b, w: jnp.concatenate([a, b], axis=-1)[:, ::2][:, :WIDTH],
    "halves": lambda a, b, w: a.reshape(2, -1, WIDTH).sum(1).repeat(2, axis=0),
    "pairs of rows": lambda a, b, w: (
        (a.reshape(-1, 2, WIDTH) * 0.5).sum(1, keepdims=True).repeat(2, 1).reshape(a.shape)
    ),
    "flat": lambda a, b, w: jnp.tanh(a.reshape(-1)).reshape(a.shape),
    "chosen": lambda a, b, w: jnp.take_along_axis(a, jnp.argmax(b, axis=-1)[:, None], axis=-1) + a,
    "looked up": lambda a, b, w: w[jnp.argmax(a, axis=-1)],
    "rows looked up": lambda a, b, w: a[jnp.argmax(b, axis=-1)],
    "scaled": lambda a, b, w: a * jnp.sum(b**2),
    "loop": lambda a, b, w: lax.fori_loop(0, 3, lambda k, h: jnp.tanh(h @ w) + k * b, a),
    "loop from zeros": lambda a, b, w: lax.scan(
        lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros_like(a), jnp.stack([a, b])
    )[0],
    "sum in a loop": lambda a, b, w: lax.fori_loop(
        0, 2, lambda k, total: total + (a * 0.1).T @ jnp.tanh(b * k), jnp.zeros_like(w)
    ),
    "loop over rows": lambda a, b, w: lax.scan(
        lambda h, row: (jnp.tanh(h @ w + row), h), jnp.zeros_like(a[0]), a
    )[1],
    "branch": lambda a, b, w: lax.cond(w[0, 0] > w[1, 1], jnp.sin, lambda a: a * b, a),
    "branch by rows": lambda a, b, w: lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, b),
    "one behind the other": lambda a, b, w: jnp.split(
        jnp.tanh(jnp.concatenate([a, b, b]) @ w), [len(a), 2 * len(a)]
    )[1],
    "halves exchanged": lambda a, b, w: jnp.concatenate([a[2:], b[:2]]),
    "half filled": lambda a, b, w: jnp.pad(a[:2], ((2, 0), (0, 0))) + b,
    "normed": lambda a, b, w: a / (1 + jnp.sqrt(jnp.sum(b**2, axis=-1, keepdims=True))),
}

# Of the loss, which sums over the batch.
FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "itself": lambda total: total,
    "root": lambda total: jnp.sqrt(total + 0.1),
    "flooded": lambda total: jnp.abs(total - 0.3),
    "logarithm and itself": lambda total: jnp.log(total + 0.1) + 0.5 * total,
}

Program = list[tuple[str, int, int, int]]
programs = st.lists(
    st.tuples(
        st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 1)
    ),
    min_size=2,
    max_size=8,
)


def run(program: Program, weights: list[jax.Array], x: jax.Array, y: jax.Array) -> list[jax.Array]:
    values = [x, y]
    for name, first, second, weight in program:
        try:
            value = OPS[name](
                values[-1 - first % len(values)], values[-1 - second % len(values)], weights[weight]
            )
        except (TypeError, ValueError, IndexError):
            continue
        if value.shape in ((ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,)):
            values.append(value)
    return values[2:]


@pytest.mark.slow
@given(programs, st.sampled_from([2, 4]), st.booleans(), st.sampled_from(sorted(FUNCTIONS)))
@settings(
    max_examples=draws(25), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
def test_a_random_step_is_exact_or_refused(
    program: Program, count: int, train: bool, function: str
) -> None:
    weights = [normal(0, WIDTH, WIDTH), normal(1, WIDTH, WIDTH)]
    x = normal(2, ROWS, WIDTH)
    y = normal(3, ROWS, WIDTH)

    def step(weights: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(weights: Any) -> Any:
            values = run(program, weights, x, y)
            total = sum((jnp.mean(value**2) for value in values[-1:]), start=jnp.zeros(()))
            return FUNCTIONS[function](total), values[-3:]

        if not train:
            return weights, loss(weights)
        grads, outputs = jax.grad(loss, has_aux=True)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], outputs

    original = lower(step, weights, x, y, unroll=False)
    module = type(original).parse(module_bytecode(original), original.context)
    try:
        split(module, count, batch_args=("x", "y"))
    except DiagnosedError as error:
        text = str(error)
        assert "cannot cut the step" in text or "expected results that depend on the batch" in text
        return
    flat = [np.asarray(leaf) for leaf in (*weights, x, y)]
    with original.context:
        expand_loop(module)
        # by XLA: the reference interpreter scatters into its operand, which others may read
        for left, right in zip(
            run_reference(original, flat), run_reference(module, flat), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)

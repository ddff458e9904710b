"""How far gradients of weights in bfloat16 are from those in float64, by `jax.jit` and by plans.

    python -m benchmarks.programs.narrow

Figures are norms of differences by norms, of the gradients of four layers, least to largest."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardopt
from benchmarks.programs.models import WIDTH, normal, weights
from benchmarks.programs.one import CLUSTER

_ROWS, _LAYERS = 64, 4


def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
    """All in the type of its arguments."""

    def loss(params: Any) -> jax.Array:
        hidden = x
        for weight in params:
            hidden = hidden + jnp.tanh(hidden @ weight)
        return jnp.mean((hidden - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return params, value, grads


def errors(grads: Any, exact: Any) -> str:
    found = [
        float(np.linalg.norm(np.asarray(own).astype(np.float64) - other) / np.linalg.norm(other))
        for own, other in zip(grads, exact, strict=True)
    ]
    return f"{min(found):.1e} to {max(found):.1e}"


def main() -> None:
    warnings.simplefilter("ignore")
    arguments = (
        [weights(k, WIDTH, WIDTH) for k in range(_LAYERS)],
        *(normal(k, _ROWS, WIDTH) for k in (101, 102)),
    )
    narrow = jax.tree.map(lambda each: each.astype(jnp.bfloat16), arguments)
    wide = jax.tree.map(lambda each: np.asarray(each.astype(jnp.float32)), narrow)
    with jax.enable_x64(True):
        exact = step(*jax.tree.map(lambda each: jnp.asarray(each, jnp.float64), wide))[2]
        exact = [np.asarray(grad) for grad in exact]
    print(f"jax.jit: {errors(jax.jit(step)(*narrow)[2], exact)}")
    for sums in ("f32", "own"):
        for count in (1, 8, 32):
            with shardopt.parallelize(
                step, cluster=CLUSTER, stages=2, microbatches=count, microbatch_sums=sums,
                quick_compile=True,
            ) as planned:  # fmt: skip
                found = errors(planned(*narrow)[2], exact)
                print(f"microbatches={count}, microbatch_sums='{sums}': {found}")


if __name__ == "__main__":
    main()

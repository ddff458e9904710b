"""Train steps for benchmarks of the runtime that only need some state."""

from __future__ import annotations

from functools import cache
from typing import Any

from shardopt.frontend.plans.plan import Plan
from shardopt.runtime.program.instructions import Program


@cache
def mlp(width: int, stages: int, devices: int) -> Program:
    """The program of `mlp_plan`."""
    return mlp_plan(width, stages, devices).program()


def mlp_plan(width: int, stages: int, devices: int) -> Plan:
    """Four square layers with momentum on `stages` meshes of `devices` devices, split within the
    layers."""
    import jax
    import jax.numpy as jnp

    from shardopt.frontend.planning.make_plan import make_plan
    from shardopt.frontend.plans.plan import PlanOptions

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    weights = tuple(jax.ShapeDtypeStruct((width, width), jnp.float32) for _ in range(4))
    batch = jax.ShapeDtypeStruct((16, width), jnp.float32)
    exported = jax.export.export(jax.jit(step, donate_argnums=(0, 1)))(
        weights, weights, batch, batch
    )
    options = PlanOptions(
        f"cpu-test:1x{stages * devices}",
        microbatches=4,
        stages=stages,
        submesh=f"1x{devices}",
        logical_shape=f"1x{devices}",
    )
    return make_plan(bytes(exported.mlir_module_serialized), options)

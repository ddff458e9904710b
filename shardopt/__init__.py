"""shardopt: automatic model parallelism for JAX.

# a plan, to look at, save and run
plan = shardopt.optimize(exported, "p3.16xlarge:2x8", microbatches=8)
# for one mesh: a jax.export.Exported
sharded = shardopt.shard(exported, "p3.16xlarge:1x8", mesh="2x4")

@shardopt.parallelize(cluster="p3.16xlarge:2x8", donate_argnums=(0, 1), microbatches=8)
def train_step(params, opt_state, batch): ...  # called like the plain function
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# XLA's clients print a line per device and per process; errors still come through. Read when jaxlib
# is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if TYPE_CHECKING:
    from shardopt.frontend.planning.follow import follow
    from shardopt.frontend.planning.optimize import optimize
    from shardopt.frontend.planning.size import Sizes, size
    from shardopt.frontend.plans.plan import Plan
    from shardopt.frontend.spmd.shard import input_shardings, shard
    from shardopt.frontend.spmd.shardings import Shardings, shardings
    from shardopt.frontend.steps.parallelize import Parallelized, parallelize
    from shardopt.frontend.steps.state_array import StateArray
    from shardopt.options.plan_options import PlanOptions
    from shardopt.runtime.driver import open_run, prepare
    from shardopt.runtime.errors import MeshError
    from shardopt.runtime.options import RunOptions
    from shardopt.runtime.restart import run_steps
    from shardopt.runtime.run import Run
    from shardopt.runtime.state.periodic import CheckpointOptions
    from shardopt.support.errors import UserError

__version__ = "0.1.0"

__all__ = [
    "CheckpointOptions",
    "MeshError",
    "Parallelized",
    "Plan",
    "PlanOptions",
    "Run",
    "RunOptions",
    "Shardings",
    "Sizes",
    "StateArray",
    "UserError",
    "follow",
    "input_shardings",
    "open_run",
    "optimize",
    "parallelize",
    "prepare",
    "run_steps",
    "shard",
    "shardings",
    "size",
]

# Loaded when first used: `import shardopt` itself must stay free of jax and of the solvers.
_HOMES = {
    "CheckpointOptions": "runtime.state.periodic",
    "MeshError": "runtime.errors",
    "Parallelized": "frontend.steps.parallelize",
    "Plan": "frontend.plans.plan",
    "PlanOptions": "options.plan_options",
    "Run": "runtime.run",
    "RunOptions": "runtime.options",
    "Shardings": "frontend.spmd.shardings",
    "Sizes": "frontend.planning.size",
    "StateArray": "frontend.steps.state_array",
    "UserError": "support.errors",
    "follow": "frontend.planning.follow",
    "input_shardings": "frontend.spmd.shard",
    "open_run": "runtime.driver",
    "optimize": "frontend.planning.optimize",
    "parallelize": "frontend.steps.parallelize",
    "prepare": "runtime.driver",
    "run_steps": "runtime.restart",
    "shard": "frontend.spmd.shard",
    "shardings": "frontend.spmd.shardings",
    "size": "frontend.planning.size",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardopt' has no attribute '{name}'")
    value = getattr(import_module(f"shardopt.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

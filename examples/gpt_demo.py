"""The demo: a GPT train step, planned for 4 devices and run as a pipeline, beside plain JAX on one
device.

    python -m examples.gpt_demo [--output out/demo] [--backend local|process|ray|both]

1. Export the train step of `examples/gpt.py` with `jax.export`.
2. Plan it for 2 stages of 2 devices, 4 microbatches, 1F1B; print the plan and its timeline.
3. Run 5 steps on the workers and compare every loss with single-device JAX.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

# XLA's deprecation warnings; before jaxlib is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from examples.gpt import Config, init_params, make_train_step
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare

STEPS = 5
BATCH = 8
TOLERANCE = 1e-4


def _reference(step: Any, state: Any, tokens: Any) -> list[float]:
    """Losses of plain JAX on one device."""
    params, opt_state = state
    losses = []
    for _ in range(STEPS):
        params, opt_state, loss = step(params, opt_state, tokens)
        losses.append(float(loss))
    return losses


def _distributed(plan: Any, inputs: list[np.ndarray], backend: str) -> list[float]:
    """Losses of the plan; parameters and optimizer state stay on the workers between steps."""
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    with open_run(program, backend) as run:
        run.load(inputs)
        return [float(run.step()[-1]) for _ in range(STEPS)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Plan and run a small GPT train step.")
    parser.add_argument(
        "--output", type=Path, default=Path("out/demo"), help="folder of the plan and its IR"
    )
    parser.add_argument("--backend", choices=("local", "process", "ray", "both"), default="both")
    args = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=180)

    config = Config()
    optimizer, train_step = make_train_step(config)
    params = init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (BATCH, config.length + 1), 0, config.vocab)
    state = (params, optimizer.init(params))
    step = jax.jit(train_step, donate_argnums=(0, 1), keep_unused=True)
    exported = jax.export.export(step)(*state, tokens)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves((*state, tokens))]

    options = PlanOptions("cpu-test:1x4", microbatches=4, stages=2, submesh="1x2", schedule="1f1b")
    plan = make_plan(exported, options, on_phase=lambda phase: console.print(f"phase {phase}"))
    folder = plan.save(args.output)
    console.print(plan.table(), plan.timeline(), sep="\n")
    page = folder.with_name(f"{folder.name}.html")
    page.write_text(plan.report(title="demo: a GPT of four layers"))
    console.print(f"plan and the IR after every phase: {folder}/ir; to look at: {page}")

    losses = {"one device": _reference(jax.jit(train_step), state, tokens)}
    for backend in ("local", "ray") if args.backend == "both" else (args.backend,):
        losses[backend] = _distributed(plan, inputs, backend)
    table = Table("step", *losses, title="loss")
    for k in range(STEPS):
        table.add_row(str(k), *(f"{values[k]:.6f}" for values in losses.values()))
    console.print(table)
    worst = max(
        abs(a - b) / abs(b)
        for values in losses.values()
        for a, b in zip(values, losses["one device"], strict=True)
    )
    console.print(f"largest relative difference: {worst:.2e} (allowed {TOLERANCE:g})")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())

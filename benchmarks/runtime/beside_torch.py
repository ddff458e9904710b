"""An MLP on two meshes beside the same in torch.distributed.pipelining on gloo.

    python -m benchmarks.runtime.beside_torch --torch-python PYTHON [--widths 64,256,512]
        [--rows 512] [--microbatches 8] [--steps 20] [--rounds 3]

PYTHON is that of an environment with torch. Four layers without bias, tanh, mean square, SGD, 1F1B
on two stages of one device each; every process of torch has one thread. What counts is the step by
one process of the same library through the step of the pipeline, each the least median of the
rounds, which the programs run in turns."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from shardopt.runtime.driver import open_run
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Program

_TORCH = Path(__file__).with_name("torch_pipeline.py")
_WARM = 3


def program(width: int, rows: int, microbatches: int, stages: int) -> Program:
    import jax
    import jax.numpy as jnp

    from shardopt.frontend.planning.make_plan import make_plan
    from shardopt.frontend.plans.plan import PlanOptions

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    weights = tuple(jax.ShapeDtypeStruct((width, width), jnp.float32) for _ in range(4))
    batch = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    exported = jax.export.export(jax.jit(step, donate_argnums=0))(weights, batch, batch)
    options = PlanOptions(
        f"cpu-test:1x{stages}",
        microbatches=microbatches,
        stages=stages,
        submesh="1x1",
        recompute="none",
        schedule="1f1b",
    )
    return make_plan(bytes(exported.mlir_module_serialized), options).program()


def seconds(program: Program, backend: str, steps: int) -> float:
    with open_run(program, backend) as run:
        run.load(random_inputs(program, 0))
        samples = []
        for _ in range(_WARM + steps):
            begin = perf_counter()
            run.step()
            samples.append(perf_counter() - begin)
    return median(samples[_WARM:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--widths", default="64,256,512")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    table = Table(
        "width", *("ms", "alone, ms", "gain") * 3, box=None, title="local, process, torch"
    )
    for width in map(int, args.widths.split(",")):
        one, two = (program(width, args.rows, args.microbatches, count) for count in (1, 2))
        rounds = [_round(args, width, one, two) for _ in range(args.rounds)]
        alone, local, process, torch, torch_alone = (
            min(each) for each in zip(*rounds, strict=True)
        )
        cells = ((local, alone), (process, alone), (torch, torch_alone))
        row = [f"{part:.2f}" for a, b in cells for part in (a * 1e3, b * 1e3, b / a)]
        print(width, *row, sep="\t", flush=True)
        table.add_row(str(width), *row)
    Console(width=120).print(table)
    return 0


def _round(args: argparse.Namespace, width: int, one: Program, two: Program) -> tuple[float, ...]:
    command = [args.torch_python, str(_TORCH)]
    command += map(str, (width, args.rows, args.microbatches, args.steps))
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return (
        seconds(one, "local", args.steps),
        seconds(two, "local", args.steps),
        seconds(two, "process", args.steps),
        *map(float, said.split()),
    )


if __name__ == "__main__":
    sys.exit(main())

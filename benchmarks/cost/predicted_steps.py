"""Predicted against measured seconds of a step, for many plans of one model on host devices.

    shardopt profile -o profile.json
    python -m benchmarks.cost.predicted_steps profile.json --output steps.jsonl

Plans the train step of `examples/gpt.py` in the ways of `CASES`, manual and searched, with the
measured profile, runs every plan on the local backend, and prints both figures, their ratio and
Spearman's rank correlation. Steps of all plans are taken in turns, so that what else the machine
does strikes all of them; the smallest sample of each counts. The CPU time of a step (of all
threads) is printed, too: where other programs run, it is the steadier of the two."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

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
from shardopt.runtime.run import Run

# What a plan is told beside cluster and profile. Four devices; `stages` of "auto" is the planner's
# choice.
CASES: dict[str, dict[str, Any]] = {
    "data": {"stages": 1, "logical_shape": "1x4", "intra_op": "data"},
    "data, 4 microbatches": {
        "stages": 1,
        "logical_shape": "1x4",
        "intra_op": "data",
        "microbatches": 4,
    },
    "zero2, 2 microbatches": {
        "stages": 1,
        "logical_shape": "1x4",
        "intra_op": "zero2",
        "microbatches": 2,
    },
    "megatron": {"stages": 1, "logical_shape": "1x4", "intra_op": "megatron"},
    "megatron, 4 microbatches": {
        "stages": 1,
        "logical_shape": "1x4",
        "intra_op": "megatron",
        "microbatches": 4,
    },
    "ilp": {"stages": 1, "logical_shape": "1x4"},
    "ilp 2x2, 8 microbatches": {"stages": 1, "logical_shape": "2x2", "microbatches": 8},
    "replicate": {"stages": 1, "logical_shape": "1x4", "intra_op": "replicate"},
    "2 stages, data, gpipe": {
        "stages": 2,
        "submesh": "1x2",
        "intra_op": "data",
        "microbatches": 2,
        "schedule": "gpipe",
    },
    "2 stages, replicate": {
        "stages": 2,
        "submesh": "1x2",
        "intra_op": "replicate",
        "microbatches": 2,
    },
    "2 stages, megatron": {
        "stages": 2,
        "submesh": "1x2",
        "intra_op": "megatron",
        "microbatches": 4,
    },
    "2 stages, ilp": {"stages": 2, "submesh": "1x2", "microbatches": 8},
    "4 stages, 1 microbatch": {"stages": 4, "submesh": "1x1"},
    "4 stages, gpipe": {"stages": 4, "submesh": "1x1", "microbatches": 4, "schedule": "gpipe"},
    "4 stages, 1f1b": {"stages": 4, "submesh": "1x1", "microbatches": 8},
    "searched, 4 microbatches": {"microbatches": 4},
}


@dataclass
class Row:
    """One plan. Seconds of a step: predicted, and each that was measured; `cpu` are the seconds of
    all cores."""

    name: str
    predicted: float
    stages: int
    measured: list[float]
    cpu: list[float]

    @property
    def best(self) -> float:
        return min(self.measured)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", help="file of `shardopt profile` for four devices")
    parser.add_argument(
        "--cluster", default="cpu-test:1x4", help="cluster file or preset with four devices"
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of every plan")
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often to take these steps, with a table each"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="plans whose name contains this"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the rows as lines of JSON"
    )
    args = parser.parse_args(argv)
    model, inputs = gpt_step(Config(args.layers, args.hidden, 4, 512, args.length), args.batch)
    rows = []
    with ExitStack() as runs:
        opened = []
        for name, options in CASES.items():
            if args.only and not any(text in name for text in args.only):
                continue
            row, run = _open(
                name, model, PlanOptions(args.cluster, profile=args.profile, **options)
            )
            run.load(inputs)
            run.step()  # compiles what is left, and is checked
            rows.append(row)
            opened.append(runs.enter_context(run))
            print(f"{name}: predicted {row.predicted:.4f} s", file=sys.stderr, flush=True)
        for _ in range(args.rounds):
            _measure(rows, opened, args.steps)
            if args.output is not None:
                args.output.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows))
            Console(width=130).print(table(rows))
    return 0


def _measure(rows: Sequence[Row], runs: Sequence[Run], steps: int) -> None:
    """Add samples to those of earlier rounds."""
    for _ in range(steps):
        for row, run in zip(rows, runs, strict=True):
            _measure_step(row, run)


def gpt_step(config: Config, batch: int) -> tuple[Any, list[np.ndarray]]:
    """The train step as a `jax.export.Exported`, and its inputs."""
    optimizer, train_step = make_train_step(config)
    params = init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (batch, config.length + 1), 0, config.vocab)
    state = (params, optimizer.init(params))
    step = jax.jit(train_step, donate_argnums=(0, 1), keep_unused=True)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves((*state, tokens))]
    return jax.export.export(step)(*state, tokens), inputs


def _open(name: str, model: Any, options: PlanOptions) -> tuple[Row, Run]:
    plan = make_plan(model, options)
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    return Row(name, plan.summary.step_seconds, len(plan.summary.stages), [], []), open_run(program)


def _measure_step(row: Row, run: Run) -> None:
    begin, busy = perf_counter(), process_time()
    run.step()
    row.measured.append(perf_counter() - begin)
    row.cpu.append(process_time() - busy)


def table(rows: Sequence[Row]) -> Table:
    predicted, measured = [row.predicted for row in rows], [row.best for row in rows]
    work = [min(row.cpu) for row in rows]
    with_step, with_work = rank_correlation(predicted, measured), rank_correlation(predicted, work)
    drawn = Table(
        title="seconds of a step",
        caption=f"Spearman's rank correlation of the prediction over {len(rows)} plans: "
        f"{with_step:.3f} with the step, {with_work:.3f} with its CPU time",
    )
    drawn.add_column("plan")
    for name in (
        "stages",
        "predicted",
        "measured",
        "ratio",
        "median",
        "CPU time",
        "rank predicted",
        "rank measured",
    ):
        drawn.add_column(name, justify="right")
    for row, first, second in zip(rows, ranks(predicted), ranks(measured), strict=True):
        drawn.add_row(
            row.name,
            str(row.stages),
            f"{row.predicted:.4f}",
            f"{row.best:.4f}",
            f"{row.predicted / row.best:.2f}",
            f"{np.median(row.measured):.4f}",
            f"{min(row.cpu):.4f}",
            f"{first:g}",
            f"{second:g}",
        )
    return drawn


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2
        for value in values
    ]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks."""
    if len(first) < 2:
        return float("nan")
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


if __name__ == "__main__":
    sys.exit(main())

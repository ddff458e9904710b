"""Plan and run every model of a folder, and compare its outputs with one device: what works, what is refused, and why.

    python -m benchmarks.check_models FOLDER [--match '*_tiny.train'] [--microbatches 2] [--stages 2] [--submesh 1x2]

A model is `NAME.mlirbc`; `index.json` beside it may list `{"name": …, "batch_args": [numbers]}`, otherwise the batch is
found by the planner. `--batch-args NAME=I:D,J:D` overrides one model. Inputs are random. Exit code 1 if an output
differs or anything but a diagnostic stops a model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jaxlib is imported

from rich.console import Console
from rich.table import Table

from shardopt.cost.errors import UserError
from shardopt.frontend.plan import PlanOptions
from shardopt.frontend.planning import make_plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.reference import compare, run_reference


@dataclass(frozen=True)
class Outcome:
    """One model: "ok", "refused" (a diagnostic) or "WRONG"; `worst` is the largest relative difference."""

    name: str
    verdict: str
    worst: float = float("nan")
    detail: str = ""
    plan_seconds: float = 0.0
    compile_seconds: float = 0.0
    step_seconds: float = 0.0


def listed_models(folder: Path, pattern: str) -> Iterator[tuple[str, str]]:
    """(name, batch arguments) of the models whose name matches."""
    index = folder / "index.json"
    listed = {entry["name"]: entry for entry in json.loads(index.read_text())} if index.is_file() else {}
    for path in sorted(folder.glob("*.mlirbc")):
        if fnmatch(path.stem, pattern):
            numbers = listed.get(path.stem, {}).get("batch_args")
            yield path.stem, "auto" if numbers is None else ",".join(map(str, numbers)) or "none"


def _check(path: Path, options: PlanOptions, args: argparse.Namespace) -> Outcome:
    """Plan, run one step, compare; raises what goes wrong."""
    begin = perf_counter()
    plan = make_plan(path, options)
    planned = perf_counter()
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
        inputs = random_inputs(program, args.seed)
        reference = run_reference(load_module(plan.original, context), inputs)
    opening = perf_counter()
    with open_run(program, args.backend, quick_compile=True) as run:
        run.load(inputs)
        opened = perf_counter()
        outputs = list(run.step())
        done = perf_counter()
    rows = compare(outputs, reference)
    failed = [row.name for row in rows if not row.within(args.tolerance)]
    return Outcome(
        path.stem,
        "WRONG" if failed else "ok",
        max((row.max_rel for row in rows), default=0.0),
        f"{len(failed)} of {len(rows)} outputs: {', '.join(failed[:4])}" if failed else "",
        planned - begin,
        opened - opening,
        done - opened,
    )


def _outcome(path: Path, options: PlanOptions, args: argparse.Namespace) -> Outcome:
    try:
        return _check(path, options, args)
    except UserError as error:
        return Outcome(path.stem, "refused", detail=str(error).replace(str(path), path.name))
    except Exception as error:  # the table must go on: an internal error of one model is one row
        return Outcome(path.stem, "WRONG", detail=f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Plan, run and check every model of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="*_tiny.train")
    parser.add_argument("--cluster", default="cpu-test:1x4")
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--submesh", default="1x2")
    parser.add_argument("--intra-op", default="ilp")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--batch-args", action="append", default=[], metavar="NAME=I,J:D")
    parser.add_argument("--backend", choices=("local", "ray"), default="local")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    given = dict(item.split("=", 1) for item in args.batch_args)
    console = Console(width=None if sys.stdout.isatty() else 180)
    outcomes = []
    for name, found in listed_models(args.folder, args.match):
        options = PlanOptions(
            args.cluster,
            batch_args=given.get(name, found),
            microbatches=args.microbatches,
            stages=args.stages,
            submesh=args.submesh,
            intra_op=args.intra_op,
            schedule=args.schedule,
        )
        outcomes.append(_outcome(args.folder / f"{name}.mlirbc", options, args))
        console.print(f"{name}: {outcomes[-1].verdict}", highlight=False)
    table = Table(
        "model", "", "max rel", "plan s", "compile s", "step s", "why", title=f"{args.microbatches} microbatches"
    )
    for row in outcomes:
        seconds = [f"{value:.2f}" for value in (row.plan_seconds, row.compile_seconds, row.step_seconds)]
        table.add_row(
            row.name, row.verdict, f"{row.worst:.1e}", *seconds, row.detail.splitlines()[0] if row.detail else ""
        )
    console.print(table)
    return int(any(row.verdict == "WRONG" for row in outcomes))


if __name__ == "__main__":
    sys.exit(main())

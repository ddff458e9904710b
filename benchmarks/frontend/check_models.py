"""Plan and run every model of a folder, and compare its outputs with one device: what works, what
is refused, and why.

    python -m benchmarks.frontend.check_models FOLDER [--match '*_tiny.train'] [--microbatches
    1,2,4] [--stages 2]

A model is `NAME.mlirbc`; `index.json` beside it may list `{"name": …, "batch_args": [numbers]}`,
otherwise the batch is found by the planner. `--batch-args NAME=I:D,J:D` overrides one model. Inputs
are `in0`, `in1`, … of `NAME.npz` as far as there are such, else random.

A model that mixes rows of the batch and is refused for it is run a second time, with
batch-coupling=per-microbatch and the rows of the first microbatch repeated in all others:
statistics of a microbatch are then those of the batch, and so must be the outputs. (Not so where
the model draws random numbers for each row.)

Exit code 1 if an output differs or anything but a diagnostic stops a model. Outputs that the last
bit of the inputs changes by more than the tolerance, and that differ by no more than ten times
that, are counted as noise."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jaxlib is imported

import numpy as np
from rich.console import Console
from rich.table import Table

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.passes.microbatches.find_batch import choose_batch
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.reference import OutputDifference, Reference, compare, conditioning, is_noise
from shardopt.support.errors import UserError

_COUPLED = "batch-coupling=per-microbatch"


@dataclass(frozen=True)
class Outcome:
    """A model and a number of microbatches: "ok", "coupled" (exact for equal microbatches),
    "refused" (a diagnostic) or "WRONG"; `worst` is the largest relative difference of an output
    that is no noise."""

    name: str
    count: int
    verdict: str
    worst: float = float("nan")
    noise: int = 0
    detail: str = ""
    plan_seconds: float = 0.0
    compile_seconds: float = 0.0
    step_seconds: float = 0.0


class Model:
    """One file, and what it computes on one device: compiled once for all numbers of
    microbatches."""

    def __init__(self, path: Path, batch_args: str) -> None:
        self.path, self.batch_args = path, batch_args

    @cached_property
    def reference(self) -> Reference:
        with make_context() as context:
            return Reference(load_module(self.path, context))

    def inputs(self, program: Program, seed: int) -> list[np.ndarray]:
        """Those of the file of arrays, random ones where it has none."""
        drawn = random_inputs(program, seed)
        file = self.path.with_suffix(".npz")
        if file.is_file():
            with np.load(file) as arrays:
                stored = (arrays.get(f"in{k}", value) for k, value in enumerate(drawn))
                return [
                    array.astype(value.dtype) for array, value in zip(stored, drawn, strict=True)
                ]
        return drawn

    def repeat_rows(self, inputs: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
        """The inputs with the first of `count` microbatches in the place of all."""
        with make_context() as context:
            module = load_module(self.path, context)
            batch = choose_batch(module, self.batch_args.split(","), count)
        repeated = list(inputs)
        for each in batch.all:
            first = np.split(repeated[each.index], count, axis=each.dim)[0]
            repeated[each.index] = np.concatenate([first] * count, axis=each.dim)
        return repeated


def listed_models(folder: Path, pattern: str) -> Iterator[tuple[str, str]]:
    """(name, batch arguments) of the models whose name matches."""
    index = folder / "index.json"
    listed = (
        {entry["name"]: entry for entry in json.loads(index.read_text())} if index.is_file() else {}
    )
    for path in sorted(folder.glob("*.mlirbc")):
        if fnmatch(path.stem, pattern):
            numbers = listed.get(path.stem, {}).get("batch_args")
            yield path.stem, "auto" if numbers is None else ",".join(map(str, numbers)) or "none"


def _check(model: Model, options: PlanOptions, args: argparse.Namespace) -> Outcome:
    """Plan, run one step, compare; raises what goes wrong."""
    count = options.microbatches or 1
    begin = perf_counter()
    plan = make_plan(model.path, options)
    planned = perf_counter()
    inputs, outputs, compiled, ran = _run(
        model, plan, count, args, coupled=options.batch_coupling != "error"
    )
    reference = model.reference(inputs)
    rows = compare(outputs, reference)
    beyond = [row for row in rows if not row.within(args.tolerance)]
    wrong = _no_noise(model.reference, inputs, reference, rows, args.tolerance) if beyond else []
    counted = [row for row in rows if row not in beyond or row in wrong]
    verdict = "ok" if options.batch_coupling == "error" else "coupled"
    return Outcome(
        model.path.stem,
        count,
        "WRONG" if wrong else verdict,
        max((row.max_rel for row in counted), default=0.0),
        len(beyond) - len(wrong),
        f"{len(wrong)} of {len(rows)} outputs: {', '.join(row.name for row in wrong[:4])}"
        if wrong
        else "",
        planned - begin,
        compiled,
        ran,
    )


def _run(
    model: Model, plan: Plan, count: int, args: argparse.Namespace, *, coupled: bool
) -> tuple[list[np.ndarray], list[np.ndarray], float, float]:
    """Inputs, outputs, and the seconds for compiling and for the step."""
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    inputs = model.inputs(program, args.seed)
    if coupled:
        inputs = model.repeat_rows(inputs, count)
    opening = perf_counter()
    with open_run(program, args.backend, quick_compile=True) as run:
        run.load(inputs)
        opened = perf_counter()
        outputs = list(run.step())
        return inputs, outputs, opened - opening, perf_counter() - opened


def _no_noise(
    function: Reference,
    inputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    rows: Sequence[OutputDifference],
    tolerance: float,
) -> list[OutputDifference]:
    floors = conditioning(function, inputs, reference)
    return [
        row
        for row, floor in zip(rows, floors, strict=True)
        if not row.within(tolerance) and not is_noise(row, floor, tolerance)
    ]


def _outcome(model: Model, options: PlanOptions, args: argparse.Namespace) -> Outcome:
    name, count = model.path.stem, options.microbatches or 1
    try:
        try:
            return _check(model, options, args)
        except UserError as error:
            if _COUPLED not in str(error):
                raise
            reason = _text(error, model.path)
            outcome = _check(model, replace(options, batch_coupling="per-microbatch"), args)
            return replace(outcome, detail=outcome.detail or reason)
    except UserError as error:
        return Outcome(name, count, "refused", detail=_text(error, model.path))
    except Exception as error:  # the table must go on: an internal error of one model is one row
        return Outcome(name, count, "WRONG", detail=f"{type(error).__name__}: {error}")


def _text(error: UserError, path: Path) -> str:
    line = str(error).splitlines()[0].replace(str(path), path.name)
    return line.removeprefix(f"{path.name}: error: ")


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("model", "B", "", "max rel", "noise", "plan s", "compile s", "step s", "why")
    for row in outcomes:
        seconds = [
            f"{value:.2f}" for value in (row.plan_seconds, row.compile_seconds, row.step_seconds)
        ]
        ran = (
            (f"{row.worst:.1e}", str(row.noise), *seconds) if row.worst == row.worst else ("",) * 5
        )
        table.add_row(
            row.name,
            str(row.count),
            row.verdict,
            *ran,
            row.detail.splitlines()[0] if row.detail else "",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Plan, run and check every model of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="*_tiny.train")
    parser.add_argument("--cluster", default="cpu-test:1x4")
    parser.add_argument("--microbatches", default="1,2,4", metavar="B,B,…")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--submesh", default="1x2")
    parser.add_argument("--intra-op", default="ilp")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--batch-args", action="append", default=[], metavar="NAME=I,J:D")
    parser.add_argument("--backend", choices=("local", "process", "ray"), default="local")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    batch_args = dict(item.split("=", 1) for item in args.batch_args)
    console = Console(width=None if sys.stdout.isatty() else 180)
    outcomes = []
    for name, listed in listed_models(args.folder, args.match):
        model = Model(args.folder / f"{name}.mlirbc", batch_args.get(name, listed))
        for count in map(int, args.microbatches.split(",")):
            options = PlanOptions(
                args.cluster,
                batch_args=model.batch_args,
                microbatches=count,
                stages=args.stages,
                submesh=args.submesh,
                intra_op=args.intra_op,
                schedule=args.schedule,
            )
            outcomes.append(_outcome(model, options, args))
            outcome = outcomes[-1]
            worst = f" {outcome.worst:.1e}" if outcome.worst == outcome.worst else ""
            console.print(f"{name} {count}: {outcome.verdict}{worst}", highlight=False)
    console.print(_table(outcomes))
    return int(any(row.verdict == "WRONG" for row in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""Feed the phases mutated dumps of the phase before, and hold what is accepted against one device.

    python -m benchmarks.tools.fuzz_phases [--inputs 500] [--seed 0] [--jobs 1] [--keep DIR]
        [--only MUTATION] …

A dump of every phase of the tutorial's model, planned for two stages and for one on four devices,
and with gradients that stay unreduced on a mesh of two axes, changes in one to three places
(`benchmarks.tools.dump_mutations`; `--only` leaves just these mutations of modules). What comes out
goes through the remaining phases; it has to be refused with a message, or to run on four devices
and give what the mutated dump says: its operations in program order on one device, without meshes,
shardings, stages and schedules (`benchmarks.tools.whole_program`)."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tools.dump_mutations import OF_MODULES, mutated_module, mutated_text
from benchmarks.tools.fuzz_opt import run_in_child, tool, verdict_of
from benchmarks.tools.whole_program import NoMeaningError, whole_program
from shardopt.runtime.program.instructions import Program

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_MODEL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "mlp.mlir"
_PLANS = (
    "num-microbatches=4 layers=2 cluster=cpu-test:1x4 num-stages=2",
    "num-microbatches=2 layers=2 cluster=cpu-test:1x4 num-stages=1",
    "num-microbatches=4 layers=2 cluster=cpu-test:1x4 num-stages=1 intra-op=zero2",
)
# The share of inputs that are mutated as modules; of texts most are refused by parsers.
_OF_MODULES = 0.7
_TOLERANCE = 1e-4
_SECONDS = 120
# Inputs between two words about how far a run is.
_EACH = 100


@dataclass(frozen=True)
class Input:
    """A mutated dump behind `phase`."""

    number: int
    phase: str
    options: str
    mutations: tuple[str, ...]
    text: str


# ---- inputs ----


def make_inputs(count: int, seed: int, only: Sequence[str] = ()) -> Iterator[Input]:
    """The same inputs for the same seed and the same compiler; with `only` these mutations of
    modules."""
    from shardopt.ir.context import make_context

    dumps = [(*dump, options) for options in _PLANS for dump in _dumps(options)]
    generator = random.Random(seed)
    context = make_context()
    number = 0
    while number < count:
        phase, text, options = generator.choice(dumps)
        if only or generator.random() < _OF_MODULES:
            mutated, names = mutated_module(
                text, generator.choice((1, 2, 3)), generator, context, only or tuple(OF_MODULES)
            )
        else:
            mutated, names = mutated_text(text, generator.choice((1, 1, 2)), generator)
        if names:
            yield Input(number, phase, options, names, mutated)
            number += 1


def _dumps(options: str) -> list[tuple[str, str]]:
    """(phase, module behind it)."""
    from shardopt.tools.opt import main

    with tempfile.TemporaryDirectory() as folder:
        code = main(
            [
                str(_MODEL),
                "--to=export",
                f"--phase-options={options}",
                "-o",
                os.devnull,
                f"--dump-compilation-phases-to={folder}",
                "--print-width=0",
            ]
        )
        assert code == 0
        paths = sorted(Path(folder).glob("*.mlir"))
        return [(path.stem.partition("-")[2], path.read_text()) for path in paths[1:]]


# ---- one run ----


def run(item: Input) -> tuple[Input, str, str]:
    """(input, verdict, message)."""
    from shardopt.pipeline.phases import PHASE_NAMES

    with tempfile.TemporaryDirectory() as folder:
        path, out, errors = (Path(folder) / name for name in ("input.mlir", "out.mlir", "stderr"))
        path.write_text(item.text, encoding="utf-8")
        following = PHASE_NAMES[PHASE_NAMES.index(item.phase) + 1 :]
        if following:
            arguments = [
                str(path),
                f"--from={following[0]}",
                "-o",
                str(out),
                f"--phase-options={_for(following, item.options)}",
            ]
        else:
            arguments = [str(path), "--shardopt-verify-exported", "-o", str(out)]
        status = run_in_child(tool(arguments), errors, _SECONDS)
        text = errors.read_text(errors="replace")
        verdict = verdict_of(status, text)
        if verdict != "ran":
            return item, verdict, text
        return item, *_executed(path, out, errors)


def _for(phases: Sequence[str], options: str) -> str:
    """The options of `options` that these phases take."""
    takers = {
        "num-microbatches": "microbatch",
        "layers": "cluster",
        "cluster": None,
        "num-stages": "stage",
        "intra-op": None,
    }
    kept = []
    for option in options.split():
        taker = takers[option.partition("=")[0]]
        if taker in phases or (taker is None and {"stage", "shard"} & set(phases)):
            kept.append(option)
    return " ".join(kept)


def _executed(path: Path, out: Path, errors: Path) -> tuple[str, str]:
    """Run the exported module in a child; whether its results are those that the dump says."""
    status = run_in_child(partial(_run_and_compare, path, out), errors, _SECONDS)
    text = errors.read_text(errors="replace")
    verdict = verdict_of(status, text)
    if verdict == "ran":
        return ("not compared" if "NOT COMPARED" in text else "equal"), text
    return ("different" if "DIFFERS" in text else f"accepted, then {verdict}"), text


def _run_and_compare(path: Path, out: Path) -> int:
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.driver import open_run, prepare
    from shardopt.runtime.errors import MeshError
    from shardopt.runtime.reference import Reference
    from shardopt.support.errors import UserError

    with make_context() as context:
        try:
            program = prepare(load_module(out.read_bytes(), context, name="input.mlir"))
        except UserError as error:
            print(f"input.mlir: error: {error}", file=sys.stderr)
            return 1
        inputs = _inputs(program)
        try:
            with open_run(program, "local", quick_compile=True) as opened:
                opened.load(inputs)
                outputs = [np.asarray(each) for each in opened.step()]
        except MeshError as error:
            if "No registered implementation for" not in str(error):
                raise
            print(f"input.mlir: error: {error}", file=sys.stderr)  # of a custom call
            return 1
        try:
            whole = whole_program(load_module(path.read_bytes(), context))
            expected = Reference(whole, quick=True)
        except NoMeaningError as error:
            print(f"NOT COMPARED: {error}", file=sys.stderr)
            return 0
    return _compare(expected, inputs, outputs)


def _inputs(program: Program) -> list[np.ndarray]:
    """Of both signs, unlike those of a run without data: signs tell operations apart."""
    generator = np.random.default_rng(0)
    arrays = []
    for argument in program.signature.arguments:
        arrays.append(generator.normal(0, 0.1, argument.shape).astype(argument.numpy_dtype))
    return arrays


def _compare(
    expected: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> int:
    from shardopt.runtime.reference import compare, conditioning, is_noise

    reference = expected(inputs)
    if not all(np.isfinite(each).all() for each in reference):
        # Where an infinity begins is a matter of rounding.
        print("NOT COMPARED: not finite", file=sys.stderr)
        return 0
    rows = compare(outputs, reference)
    if all(row.within(_TOLERANCE) for row in rows):
        return 0
    floors = conditioning(expected, inputs, reference)
    wrong = [
        row
        for row, floor in zip(rows, floors, strict=True)
        if not row.within(_TOLERANCE) and not is_noise(row, floor, _TOLERANCE)
    ]
    for row in wrong:
        print(f"{row.name} DIFFERS by {row.max_rel:g}", file=sys.stderr)
    return 3 if wrong else 0


# ---- all runs ----


def _preload() -> None:
    import shardopt.passes.registry as registry
    import shardopt.runtime.backends.local
    import shardopt.runtime.driver
    import shardopt.runtime.reference
    import shardopt.tools.opt.driver  # noqa: F401

    for name in registry.PASSES:
        registry.pass_class(name)
    _dumps(_PLANS[0])  # loads solvers, and the code that numba has compiled
    gc.freeze()  # nothing of this is garbage in the children, which would look through it


# What is refused only when it runs is refused late, but says so.
_GOOD = ("equal", "not compared", "refused", "accepted, then refused")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Feed the phases mutated dumps.")
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs with a wrong outcome")
    parser.add_argument("--only", action="append", default=[], choices=OF_MODULES)
    args = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    context = get_context("forkserver")
    inputs = list(make_inputs(args.inputs, args.seed, args.only))
    with ProcessPoolExecutor(args.jobs, mp_context=context, initializer=_preload) as pool:
        for item, verdict, text in pool.map(run, inputs, chunksize=4):
            counts[item.phase, verdict] += 1
            if (done := counts.total()) % _EACH == 0:
                print(f"{done} of {len(inputs)} inputs", file=sys.stderr)
            if verdict in _GOOD or args.keep is None:
                continue
            args.keep.mkdir(parents=True, exist_ok=True)
            stem = args.keep / f"{item.number}-{item.phase}"
            stem.with_suffix(".mlir").write_text(item.text, encoding="utf-8")
            stem.with_suffix(".txt").write_text(f"{verdict}\n{item.mutations}\n{text}")
    phases = list(dict.fromkeys(phase for phase, _ in sorted(counts)))
    table = Table("outcome", *phases, "all", title="mutated dumps by phase")
    for verdict in sorted({verdict for _, verdict in counts}):
        row = [counts[phase, verdict] for phase in phases]
        table.add_row(verdict, *map(str, row), str(sum(row)))
    Console(width=140).print(table)
    return int(any(verdict not in _GOOD for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())

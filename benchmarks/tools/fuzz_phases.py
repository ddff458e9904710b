"""Feed the phases mutated dumps of the phase before, and hold what is accepted against one device.

    python -m benchmarks.tools.fuzz_phases [--inputs 500] [--seed 0] [--jobs 1] [--keep DIR]

A dump of every phase of the tutorial's model is taken apart by the grammar of the printed IR:
attributes of ours, shardings, names of meshes, symbols, types, sizes, operands, operations. One or
two pieces change. What comes out goes through the remaining phases; it has to be refused with a
message, or to run on four devices and give what the mutated dump says: its operations in program
order on one device, without meshes, shardings, stages and schedules
(`benchmarks.tools.whole_program`)."""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from jaxlib.mlir import ir
from rich.console import Console
from rich.table import Table

from benchmarks.tools.fuzz_opt import run_in_child, tool, verdict_of
from benchmarks.tools.whole_program import NoMeaningError, whole_program
from shardopt.dialect.dtypes import numpy_dtype
from shardopt.runtime.program.instructions import Program

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_MODEL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "mlp.mlir"
_OPTIONS = "num-microbatches=4 layers=2 cluster=cpu-test:1x4 num-stages=2"
_TOLERANCE = 1e-4
_SECONDS = 120
_SIZES = ("0", "-1", "1", "3", "2147483648", "9223372036854775807", "99999999999999999999")

Generator = random.Random
Mutation = Callable[[str, Generator], str]


@dataclass(frozen=True)
class Input:
    """A mutated dump behind `phase`."""

    number: int
    phase: str
    mutations: tuple[str, ...]
    text: str


# ---- mutations ----


def _replace(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _choose(pattern: str, text: str, generator: Generator) -> re.Match[str] | None:
    matches = list(re.finditer(pattern, text))
    return generator.choice(matches) if matches else None


def _swap(pattern: str) -> Mutation:
    """Exchange two pieces of a kind that are not the same."""

    def mutate(text: str, generator: Generator) -> str:
        first = _choose(pattern, text, generator)
        others = (
            []
            if first is None
            else [match for match in re.finditer(pattern, text) if match[0] != first[0]]
        )
        if first is None or not others:
            return text
        second = generator.choice(others)
        front, back = sorted((first, second), key=lambda match: match.start())
        return _replace(_replace(text, back, front[0]), front, back[0])

    return mutate


def _drop(pattern: str) -> Mutation:
    def mutate(text: str, generator: Generator) -> str:
        match = _choose(pattern, text, generator)
        return text if match is None else _replace(text, match, "")

    return mutate


def _change(pattern: str, words: Sequence[str]) -> Mutation:
    def mutate(text: str, generator: Generator) -> str:
        match = _choose(pattern, text, generator)
        return text if match is None else _replace(text, match, generator.choice(words))

    return mutate


def _move_line(text: str, generator: Generator) -> str:
    """An operation stands somewhere else: nesting and order."""
    lines = text.split("\n")
    line = lines.pop(generator.randrange(len(lines)))
    lines.insert(generator.randrange(len(lines)), line)
    return "\n".join(lines)


def _repeat_line(text: str, generator: Generator) -> str:
    lines = text.split("\n")
    at = generator.randrange(len(lines))
    lines.insert(at, lines[at])
    return "\n".join(lines)


# One attribute of ours with a value without brackets, or with one level of them.
_OURS = (
    r"shardopt\.\w+ = (?:\{[^{}]*\}|\[[^\[\]]*\]|array<[^<>]*>|\"[^\"]*\"|[^\s,{}\[\]]+(?: : \w+)?)"
    r"(?:, )?"
)
_TYPE_SHARDING = r"sharding=<@\w+, \[[^\]]*\](?:, unreduced=\{[^}]*\})?>"
_XLA = r"\"\{(?:replicated|devices=[^\"]*|maximal[^\"]*|manual)\}\""
_STRINGS = (
    '""',
    '"{manual}"',
    '"{maximal device=0}"',
    '"{devices=[3,1]<=[3]}"',
    '"{devices=[-1,2]<=[2]}"',
    '"{replicated}"',
    '"{devices=[1,2]<=[2]}"',
    '"{devices=[2,1]<=[2]}"',
    '"{unreduced}"',
)


def _number_in(pattern: str, text: str, generator: Generator) -> str:
    """One number in a piece becomes another: a size that cannot be, or its neighbour."""
    match = _choose(pattern, text, generator)
    if match is None:
        return text
    number = _choose(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", match[0], generator)
    if number is None:
        return text
    neighbours = (str(int(float(number[0])) + 1), "inf", "nan")
    return _replace(
        text, match, _replace(match[0], number, generator.choice((*_SIZES, *neighbours)))
    )


def _in_ir(mutate: Callable[[ir.Module, Generator], None]) -> Mutation:
    """A mutation of the module itself, of one that nothing has mutated before: parsing others may
    end this process."""

    def mutation(text: str, generator: Generator) -> str:
        from shardopt.ir.context import make_context

        if text not in (dump for _, dump in _dumps()):
            return text
        with make_context() as context:
            module = ir.Module.parse(text, context)
            before = str(module)
            mutate(module, generator)
            after = str(module)
        return text if after == before else after

    return mutation


def _reread(module: ir.Module, generator: Generator) -> None:
    """An operation reads another value of the same type."""
    op = generator.choice(_operations_of(module))
    if not len(op.operands):
        return
    number = generator.randrange(len(op.operands))
    block = op.block
    values = [*block.arguments]
    for view in block.operations:
        if view.operation == op:
            break
        values += view.operation.results
    old = op.operands[number]
    others = [value for value in values if value != old and value.type == old.type]
    if others:
        op.operands[number] = generator.choice(others)


def _reorder(module: ir.Module, generator: Generator) -> None:
    """An operation stands somewhere else between its operands and its readers."""
    op = generator.choice(_operations_of(module))
    block = [view.operation for view in op.block.operations]
    here = block.index(op)
    least, most = here, here
    made = set(_read(op))
    while least and not any(result in made for result in block[least - 1].results):
        least -= 1
    results = set(op.results)
    while most < len(block) - 2 and not results & set(_read(block[most + 1])):
        most += 1
    target = generator.randint(least, most)
    if here < len(block) - 1 and target != here:
        (op.move_before if target < here else op.move_after)(block[target])


def _operations_of(module: ir.Module) -> list[ir.Operation]:
    """Those of functions and fragments; inside of reductions StableHLO leaves open what happens
    where the order matters."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                for view in block.operations:
                    found.append(view.operation)
                    if not view.operation.name.startswith("stablehlo."):
                        visit(view.operation)

    for function in module.body.operations:
        visit(function.operation)
    return found


def _read(op: ir.Operation) -> Iterator[ir.Value]:
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _read(view.operation)


_SAME_SIGNATURE = ("add", "subtract", "multiply", "maximum", "minimum")


def _retyped(op: str) -> str:
    return rf"(?<=stablehlo\.){op}(?= %)"


MUTATIONS: dict[str, Mutation] = {
    "metadata gone": _drop(_OURS),
    "metadata swapped": _swap(_OURS),
    "metadata number": partial(_number_in, _OURS),
    "sharding swapped": _swap(_TYPE_SHARDING),
    "xla sharding swapped": _swap(_XLA),
    "xla sharding": _change(_XLA, _STRINGS),
    "aliasing": partial(_number_in, r"tf\.aliasing_output = \d+"),
    "iterations": partial(_number_in, r"iterations = \d+"),
    "mesh": _swap(r"(?<=<)\"m\d\"|(?<=mesh=)\"m\d\""),
    "symbol": _swap(r"@\w+"),
    "symbol typo": _change(r"@\w+", ("@typo", "@main", "@microbatch", '@"日本"')),
    "type": _swap(r"tensor<[^<>]*>"),
    "size": _change(r"(?<=[<x])\d+(?=x)", _SIZES),
    "number": _change(r"\b\d+\b", _SIZES),
    "small number": _change(r"\b\d\b", ("0", "1", "2", "3")),
    "operand": _swap(r"%[\w#]+"),
    "operand of its type": _in_ir(_reread),
    "operation of its type": _change(_retyped(f"(?:{'|'.join(_SAME_SIGNATURE)})"), _SAME_SIGNATURE),
    "operation moved in order": _in_ir(_reorder),
    "operation gone": _drop(r"\n[^\n]* = [^\n]*"),
    "operation moved": _move_line,
    "operation twice": _repeat_line,
    "brackets": _drop(r"[\[\](){}<>]"),
}


def make_inputs(count: int, seed: int) -> Iterator[Input]:
    """The same inputs for the same seed and the same compiler."""
    dumps = _dumps()
    generator = random.Random(seed)
    for number in range(count):
        phase, text = generator.choice(dumps)
        names: list[str] = []
        wanted = generator.choice((1, 1, 2))
        while len(names) < wanted:  # not every dump has what a mutation changes
            name = generator.choice(list(MUTATIONS))
            mutated = MUTATIONS[name](text, generator)
            if mutated != text:
                text = mutated
                names.append(name)
        yield Input(number, phase, tuple(names), text)


@cache
def _dumps() -> list[tuple[str, str]]:
    """(phase, module behind it)."""
    from shardopt.tools.opt import main

    with tempfile.TemporaryDirectory() as folder:
        code = main(
            [
                str(_MODEL),
                "--to=export",
                f"--phase-options={_OPTIONS}",
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
                f"--phase-options={_for(following)}",
            ]
        else:
            arguments = [str(path), "--shardopt-verify-exported", "-o", str(out)]
        status = run_in_child(tool(arguments), errors, _SECONDS)
        text = errors.read_text(errors="replace")
        verdict = verdict_of(status, text)
        if verdict != "ran":
            return item, verdict, text
        return item, *_executed(path, out, errors)


def _for(phases: Sequence[str]) -> str:
    """The options that these phases take."""
    takers = {
        "num-microbatches": "microbatch",
        "layers": "cluster",
        "cluster": None,
        "num-stages": "stage",
    }
    kept = []
    for option in _OPTIONS.split():
        taker = takers[option.partition("=")[0]]
        if taker in phases or (taker is None and {"stage", "shard", "reshard"} & set(phases)):
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
            expected = Reference(whole_program(load_module(path.read_bytes(), context)))
        except NoMeaningError as error:
            print(f"NOT COMPARED: {error}", file=sys.stderr)
            return 0
    return _compare(expected, inputs, outputs)


def _inputs(program: Program) -> list[np.ndarray]:
    """Of both signs, unlike those of a run without data: signs tell operations apart."""
    generator = np.random.default_rng(0)
    arrays = []
    for argument in program.arguments:
        spec = argument.value.spec
        arrays.append(generator.normal(0, 0.1, spec.shape).astype(numpy_dtype(spec.dtype)))
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
    import shardopt.runtime.driver
    import shardopt.solve.stages.dp.kernels  # numba, too
    import shardopt.tools.opt.driver  # noqa: F401

    for name in registry.PASSES:
        registry.pass_class(name)


# What is refused only when it runs is refused late, but says so.
_GOOD = ("equal", "not compared", "refused", "accepted, then refused")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Feed the phases mutated dumps.")
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs with a wrong outcome")
    args = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    context = get_context("forkserver")
    inputs = list(make_inputs(args.inputs, args.seed))
    with ProcessPoolExecutor(args.jobs, mp_context=context, initializer=_preload) as pool:
        for item, verdict, text in pool.map(run, inputs, chunksize=4):
            counts[item.phase, verdict] += 1
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

"""Feed the phases mutated dumps of the phase before, and hold what is accepted against one device.

    python -m benchmarks.tools.fuzz_phases [--inputs 500] [--seed 0] [--jobs 1] [--keep DIR]

A dump of every phase of the tutorial's model is taken apart by the grammar of the printed IR:
attributes of ours, shardings, names of meshes, symbols, types, sizes, operands, operations. One or
two pieces change. What comes out goes through the remaining phases; it has to be refused with a
message, or to run. Mutations that say only how something is computed (metadata and shardings) must
not change what: such a program runs on four devices, and its results are compared with those of the
model on one."""

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

from rich.console import Console
from rich.table import Table

from benchmarks.tools.fuzz_opt import run_in_child, tool, verdict_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_MODEL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "mlp.mlir"
_OPTIONS = "num-microbatches=4 layers=2 cluster=cpu-test:1x4 num-stages=2"
_TOLERANCE = 1e-4
_SECONDS = 120
_SIZES = ("0", "-1", "1", "3", "2147483648", "9223372036854775807", "99999999999999999999")

Generator = random.Random


@dataclass(frozen=True)
class Input:
    """A mutated dump behind `phase`; `keeps_results` says that it must compute the same."""

    number: int
    phase: str
    mutations: tuple[str, ...]
    text: str
    keeps_results: bool


# ---- mutations ----


def _replace(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _choose(pattern: str, text: str, generator: Generator) -> re.Match[str] | None:
    matches = list(re.finditer(pattern, text))
    return generator.choice(matches) if matches else None


def _swap(pattern: str) -> Callable[[str, Generator], str]:
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


def _drop(pattern: str) -> Callable[[str, Generator], str]:
    def mutate(text: str, generator: Generator) -> str:
        match = _choose(pattern, text, generator)
        return text if match is None else _replace(text, match, "")

    return mutate


def _change(pattern: str, words: Sequence[str]) -> Callable[[str, Generator], str]:
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

# Name -> (mutation, whether results have to stay the same).
MUTATIONS: dict[str, tuple[Callable[[str, Generator], str], bool]] = {
    "metadata gone": (_drop(_OURS), True),
    "metadata swapped": (_swap(_OURS), True),
    "metadata number": (
        lambda text, generator: _number_in(_OURS, text, generator),
        True,
    ),
    "sharding swapped": (_swap(_TYPE_SHARDING), True),
    "xla sharding swapped": (_swap(_XLA), True),
    "xla sharding": (_change(_XLA, _STRINGS), True),
    "aliasing": (
        lambda text, generator: _number_in(r"tf\.aliasing_output = \d+", text, generator),
        False,
    ),
    "mesh": (_swap(r"(?<=<)\"m\d\"|(?<=mesh=)\"m\d\""), True),
    "symbol": (_swap(r"@\w+"), False),
    "symbol typo": (_change(r"@\w+", ("@typo", "@main", "@microbatch", '@"日本"')), False),
    "type": (_swap(r"tensor<[^<>]*>"), False),
    "size": (_change(r"(?<=[<x])\d+(?=x)", _SIZES), False),
    "number": (_change(r"\b\d+\b", _SIZES), False),
    "operand": (_swap(r"%[\w#]+"), False),
    "operation gone": (_drop(r"\n[^\n]* = [^\n]*"), False),
    "operation moved": (_move_line, False),
    "operation twice": (_repeat_line, False),
    "brackets": (_drop(r"[\[\](){}<>]"), False),
}


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


def make_inputs(count: int, seed: int) -> Iterator[Input]:
    """The same inputs for the same seed and the same compiler."""
    dumps = _dumps()
    generator = random.Random(seed)
    for number in range(count):
        phase, text = generator.choice(dumps)
        names, keeps = [], True
        for _ in range(generator.choice((1, 1, 2))):
            name = generator.choice(list(MUTATIONS))
            mutate, keeps_results = MUTATIONS[name]
            mutated = mutate(text, generator)
            if mutated != text:
                text, keeps = mutated, keeps and keeps_results
                names.append(name)
        yield Input(number, phase, tuple(names), text, keeps)


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
        return item, *_executed(out, item.keeps_results, errors)


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


def _executed(out: Path, compare: bool, errors: Path) -> tuple[str, str]:
    """Run the exported module in a child; whether its results are those of the model."""

    status = run_in_child(partial(_run_and_compare, out, compare), errors, _SECONDS)
    text = errors.read_text(errors="replace")
    verdict = verdict_of(status, text)
    if verdict == "ran":
        return ("equal" if compare else "ran"), text
    return ("different" if "DIFFERS" in text else f"accepted, then {verdict}"), text


def _run_and_compare(path: Path, compare: bool) -> int:
    import numpy as np

    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.driver import open_run, prepare
    from shardopt.runtime.inputs import random_inputs
    from shardopt.runtime.reference import Reference
    from shardopt.support.errors import UserError

    with make_context() as context:
        try:
            program = prepare(load_module(path.read_bytes(), context, name="input.mlir"))
        except UserError as error:
            print(f"input.mlir: error: {error}", file=sys.stderr)
            return 1
        inputs = random_inputs(program, 0)
        with open_run(program, "local", quick_compile=True) as opened:
            opened.load(inputs)
            outputs = [np.asarray(each) for each in opened.step()]
        if not compare:
            return 0
        expected = Reference(load_module(_MODEL.read_bytes(), context))(inputs)
    for number, (left, right) in enumerate(zip(outputs, expected, strict=True)):
        if left.shape != right.shape or not np.allclose(left, right, _TOLERANCE, _TOLERANCE):
            print(f"result {number} DIFFERS by {np.abs(left - right).max():g}", file=sys.stderr)
            return 3
    return 0


# ---- all runs ----


def _preload() -> None:
    import shardopt.passes.registry as registry
    import shardopt.runtime.driver
    import shardopt.solve.stages.dp.kernels  # numba, too
    import shardopt.tools.opt.driver  # noqa: F401

    for name in registry.PASSES:
        registry.pass_class(name)


_GOOD = ("equal", "ran", "refused", "accepted, then refused")


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

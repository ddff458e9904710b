"""Feed `shardopt-opt` mutated inputs: how many run, how many are refused, and that none crashes,
hangs or is silent.

    python -m benchmarks.tools.fuzz_opt [--inputs 10000] [--seed 0] [--jobs 2] [--keep DIR]

Seeds are the lit tests of this repository, as text, as MLIR bytecode and as portable artifacts, and
the pipelines of all phases. Every input runs `shardopt-opt INPUT --shardopt-import`, or a valid
module through a mutated pipeline, in a process of its own (forked after the imports), because a
fault in native code takes its process along. A refusal counts only with exit code 1 and a message
that names the file or the pipeline."""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shardopt.support.time_limits import ENDS, limit_time

ROOT = Path(__file__).resolve().parents[2]
# Of the processor; shardopt-opt itself gives up reading damaged bytecode after 30.
TIMEOUT_SECONDS = 60
# What asks for more is wrong, and would have the system end other processes.
_MEMORY_BYTES = 6 << 30
PIPELINE = "pipeline"
_VALID_MODULE = ROOT / "docs" / "tutorial" / "mlp.mlir"
_NUMBERS = (b"0", b"-1", b"1", b"2147483648", b"9223372036854775807", b"99999999999999999999")


@dataclass(frozen=True)
class Input:
    """A mutated file: what kind of seed it came from, which mutations made it, its bytes."""

    number: int
    kind: str
    mutations: tuple[str, ...]
    data: bytes


# ---- inputs ----


def _flip(data: bytearray, generator: random.Random, _: bytes) -> None:
    for _ in range(generator.randint(1, 8)):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)


def _truncate(data: bytearray, generator: random.Random, _: bytes) -> None:
    del data[generator.randrange(len(data)) :]


def _remove(data: bytearray, generator: random.Random, _: bytes) -> None:
    start = generator.randrange(len(data))
    del data[start : start + generator.randint(1, 64)]


def _repeat(data: bytearray, generator: random.Random, _: bytes) -> None:
    start = generator.randrange(len(data))
    piece = data[start : start + generator.randint(1, 200)]
    data[start:start] = piece * generator.randint(1, 4)


def _splice(data: bytearray, generator: random.Random, other: bytes) -> None:
    start = generator.randrange(len(other))
    at = generator.randrange(len(data))
    data[at:at] = other[start : start + generator.randint(1, 400)]


def _change_number(data: bytearray, generator: random.Random, _: bytes) -> None:
    numbers = list(re.finditer(rb"\d+", bytes(data)))
    if numbers:
        match = generator.choice(numbers)
        data[match.start() : match.end()] = generator.choice(_NUMBERS)


def _drop_line(data: bytearray, generator: random.Random, _: bytes) -> None:
    lines = bytes(data).splitlines(keepends=True)
    del lines[generator.randrange(len(lines))]
    data[:] = b"".join(lines)


def _swap(data: bytearray, generator: random.Random, pattern: bytes) -> None:
    """Exchange two matches of a pattern."""
    matches = list(re.finditer(pattern, bytes(data)))
    if len(matches) > 1:
        first, second = sorted(generator.sample(matches, 2), key=lambda match: match.start())
        data[second.start() : second.end()], data[first.start() : first.end()] = first[0], second[0]


def _swap_types(data: bytearray, generator: random.Random, _: bytes) -> None:
    _swap(data, generator, rb"tensor<[^<>]*>")


def _swap_words(data: bytearray, generator: random.Random, _: bytes) -> None:
    _swap(data, generator, rb"[%@!#]?[A-Za-z_][\w.]*")


MUTATIONS: dict[str, Callable[[bytearray, random.Random, bytes], None]] = {
    "flip": _flip,
    "truncate": _truncate,
    "remove": _remove,
    "repeat": _repeat,
    "splice": _splice,
    "number": _change_number,
    "line": _drop_line,
    "types": _swap_types,
    "words": _swap_words,
}


def _seeds() -> list[tuple[str, bytes]]:
    """(kind, content): the lit tests, those that parse in three encodings, and pipelines."""
    from jaxlib.mlir import ir

    from shardopt.ir.context import make_context
    from shardopt.ir.diagnostics import native_errors_raised
    from shardopt.ir.io import load_module, module_bytecode, portable_artifact
    from shardopt.support.errors import UserError

    seeds = [(PIPELINE, text.encode()) for text in _pipelines()]
    for path in sorted((ROOT / "tests" / "lit").rglob("*.mlir")):
        seeds.append(("text", path.read_bytes()))
        with suppress(UserError, ValueError, ir.MLIRError), make_context() as context:
            module = load_module(path.read_bytes(), context)
            seeds.append(("bytecode", module_bytecode(module)))
            with native_errors_raised(context):  # forms with mpmd types have no portable artifact
                seeds.append(("portable", portable_artifact(module)))
    return [(kind, data) for kind, data in seeds if data]


def _pipelines() -> list[str]:
    """Phases, their expansions, and what a user might write."""
    from shardopt.pipeline.phases import PHASES, expand_phase, phase_range

    options = "cluster=cpu-test:1x4 num-stages=2 num-microbatches=4 batch-args=2,3"
    return [
        phase_range(options=options),
        *(f"builtin.module({expand_phase(phase)})" for phase in PHASES),
        "builtin.module(shardopt-import{unroll=true},func.func(canonicalize{max-iterations=3},cse))",
        "shardopt-inline-calls,shardopt-unroll-loops{only=all "
        "max-iterations=4},symbol-dce,shardopt-normalize",
    ]


def make_inputs(count: int, seed: int) -> Iterator[Input]:
    """The same inputs for the same seed and the same tests."""
    seeds = _seeds()
    generator = random.Random(seed)
    for number in range(count):
        kind, content = generator.choice(seeds)
        data, names = bytearray(content), []
        for _ in range(generator.randint(1, 3)):
            name = generator.choice(list(MUTATIONS))
            if data:
                MUTATIONS[name](data, generator, generator.choice(seeds)[1])
                names.append(name)
        yield Input(number, kind, tuple(names), bytes(data))


# ---- one run ----


def run(item: Input) -> tuple[Input, str, str]:
    """(input, verdict, stderr): "ran", "refused", or what must not happen."""
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder) / "input.mlir", Path(folder) / "stderr"
        path.write_bytes(item.data)
        arguments = [str(path), "--shardopt-import"]
        if item.kind == PIPELINE:
            arguments = [str(_VALID_MODULE), "--pass-pipeline=" + item.data.decode("latin-1")]
        status = run_in_child(tool([*arguments, "-o", os.devnull]), errors)
        text = errors.read_text(errors="replace")
    return item, verdict_of(status, text), text


def run_in_child(work: Callable[[], int], errors: Path, seconds: int = TIMEOUT_SECONDS) -> int:
    """How a child ends that does the work; what it says goes into the file."""
    child = os.fork()
    if child == 0:
        _child(work, errors, seconds)
    return os.waitpid(child, 0)[1]


def tool(arguments: Sequence[str]) -> Callable[[], int]:
    """`shardopt-opt` as a process of its own would run it."""

    def work() -> int:
        from shardopt.tools.opt import main

        sys.argv = ["shardopt-opt", *arguments]  # arguments passed directly would run unsupervised
        return main()

    return work


def _child(work: Callable[[], int], errors: Path, seconds: int) -> None:
    """Never returns."""
    code = 70
    try:
        limit_time(seconds)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = work()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def verdict_of(status: int, text: str) -> str:
    """ "ran", "refused", or what must not happen."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hung" if number in ENDS else f"crashed ({signal.Signals(number).name})"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "ran"
    if code == 1:
        named = any(word in text for word in ("input.mlir", "pipeline", _VALID_MODULE.name))
        return "refused" if named and "error:" in text else "refused without saying where"
    return f"internal error (exit code {code})"


# ---- all runs ----


def _preload() -> None:
    """Import once what the forks would import each."""
    import shardopt.passes.registry as registry
    import shardopt.solve.stages.dp.kernels  # numba, too
    import shardopt.tools.opt.driver  # noqa: F401

    for name in registry.PASSES:
        registry.pass_class(name)


def _print(counts: Counter[tuple[str, str]], console: Console) -> None:
    kinds = sorted({kind for kind, _ in counts})
    table = Table("outcome", *kinds, "all", title="mutated inputs")
    for verdict in sorted({verdict for _, verdict in counts}):
        row = [counts[kind, verdict] for kind in kinds]
        table.add_row(verdict, *map(str, row), str(sum(row)))
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Feed shardopt-opt mutated inputs.")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for inputs with a wrong outcome")
    args = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    bad = 0
    context = get_context("forkserver")
    with ProcessPoolExecutor(args.jobs, mp_context=context, initializer=_preload) as pool:
        for item, verdict, text in pool.map(run, make_inputs(args.inputs, args.seed), chunksize=50):
            counts[item.kind, verdict] += 1
            if verdict in ("ran", "refused"):
                continue
            bad += 1
            if args.keep is not None:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / f"{item.number}-{item.kind}.bin").write_bytes(item.data)
                (args.keep / f"{item.number}-{item.kind}.txt").write_text(
                    f"{verdict}\n{item.mutations}\n{text}"
                )
    _print(counts, Console(width=120))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

"""How long it takes to write a checkpoint, and to read it, on the same plan and on another.

    python -m benchmarks.runtime.checkpoints [--width 2048] [--backend process] [--repeat 3]
    [--folder DIR]

The state is four square weights of float32 and their momentum, on two meshes of two devices; the
other plan is one mesh of four. `plain` writes as many bytes to one file, and reads them, with an
fsync as checkpoints have; its seconds are the least that the disk takes. Reading is from the
system's cache in both cases. Seconds are medians.

The second table is about steps, in turns: some of which the first begins a checkpoint in the
background, and as many without. What a checkpoint adds is the difference of the two, by the clock
and in processor time of the workers, which other work on the machine moves less."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.runtime.samples import workers_cpu_seconds
from benchmarks.runtime.state_programs import mlp
from shardopt.runtime.driver import open_run
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.run import Run
from shardopt.runtime.state.initializers import normal
from shardopt.runtime.state.periodic import CheckpointOptions

_BLOCK = 1 << 20
_STEPS = 6  # of a turn: enough that a checkpoint is written before it ends


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--backend", default="process")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write, by default a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        _measure(args, Path(folder))


def _measure(args: argparse.Namespace, folder: Path) -> None:

    with _start(mlp(args.width, stages=2, devices=2), args.backend) as run:
        made = _seconds(1, lambda number: _make(run))
        written = _seconds(args.repeat, lambda number: run.save(folder / str(number)))
        read = _seconds(args.repeat, lambda number: run.restore(folder / str(number)))
    with _start(mlp(args.width, stages=1, devices=4), args.backend) as run:
        elsewhere = _seconds(args.repeat, lambda number: run.restore(folder / str(number)))
    bytes_ = sum(path.stat().st_size for path in (folder / "0").iterdir())
    plain = _seconds(args.repeat, lambda number: _write(folder / f"plain{number}", bytes_))
    plain_read = _seconds(args.repeat, lambda number: _read(folder / f"plain{number}"))
    rows = {
        "made by the workers": made,
        "checkpoint written": written,
        "plain file written": plain,
        "checkpoint read": read,
        "checkpoint read on another plan": elsewhere,
        "plain file read": plain_read,
    }
    table = Table(
        "", "seconds", "MiB/s", box=None, title=f"{bytes_ / 2**20:.1f} MiB, median of {args.repeat}"
    )
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.3f}", f"{bytes_ / 2**20 / seconds:.0f}")
    Console(width=120).print(table, _steps_table(args, folder / "beside"))


def _steps_table(args: argparse.Namespace, folder: Path) -> Table:
    options = CheckpointOptions(folder, every=2 * _STEPS, keep=1)
    turns: dict[bool, list[tuple[list[float], float]]] = {True: [], False: []}
    with _start(mlp(args.width, stages=2, devices=2), args.backend, options) as run:
        _make(run)
        for _ in range(2 * _STEPS - 1):  # the next one begins a checkpoint
            run.step()
        for _ in range(args.repeat):
            for saves in (True, False):
                cpu = workers_cpu_seconds()
                steps = [_seconds(1, lambda number: run.step()) for _ in range(_STEPS)]
                turns[saves].append((steps, workers_cpu_seconds() - cpu))
    step = median(each for steps, _ in turns[False] for each in steps)
    cpu_step = median(cpu / _STEPS for _, cpu in turns[False])
    pairs = list(zip(turns[True], turns[False], strict=True))
    added = median(sum(with_) - sum(without) for (with_, _), (without, _) in pairs)
    added_cpu = median(with_ - without for (_, with_), (_, without) in pairs)
    table = Table("", "seconds", "of the workers' CPU", box=None, title="steps and checkpoints")
    table.add_row("step alone", f"{step:.3f}", f"{cpu_step:.3f}")
    first, second = (median(steps[k] for steps, _ in turns[True]) for k in (0, 1))
    table.add_row("step with the beginning of a checkpoint", f"{first:.3f}", "")
    table.add_row("step after that", f"{second:.3f}", "")
    table.add_row("added by a checkpoint, in all", f"{added:.3f}", f"{added_cpu:.3f}")
    table.add_row("the same in steps", f"{added / step:.2f}", f"{added_cpu / cpu_step:.2f}")
    return table


def _start(program: Program, backend: str, checkpoints: CheckpointOptions | None = None) -> Run:
    return open_run(program, backend, quick_compile=True, checkpoints=checkpoints)


def _make(run: Run) -> None:
    arguments = run.program.signature.arguments
    run.create(dict.fromkeys(range(len(arguments)), normal(0, 0.02, 0)))


def _seconds(repeat: int, work: Callable[[int], object]) -> float:
    samples = []
    for number in range(repeat):
        begin = perf_counter()
        work(number)
        samples.append(perf_counter() - begin)
    return median(samples)


def _write(path: Path, size: int) -> None:
    block = os.urandom(_BLOCK)
    with path.open("wb") as file:
        for _ in range(size // _BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(_BLOCK):
            pass


if __name__ == "__main__":
    main()
